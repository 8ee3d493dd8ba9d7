"""Plays an environment with given texts, for the tests of games."""

import asyncio
from collections.abc import Callable, Sequence

from cadre.types import Reward
from cadre_tasks.games.tool_planner import ToolPlanner


def play(env: ToolPlanner, *texts: str) -> list[Reward]:
    """Texts in the order in which the roles are asked."""

    async def episode() -> list[Reward]:
        rewards = []
        for text in texts:
            (role,) = env.observe()
            rewards.append(await env.step({role: text}))
        return rewards

    return asyncio.run(episode())


def play_out(env: ToolPlanner, policy: Callable[[ToolPlanner], str], alpha: float = 1.0) -> float:
    """The sum of all rewards, of the team times alpha and of every role, of an episode that one policy plays out."""
    total = 0.0
    while env.observe():
        (reward,) = play(env, policy(env))
        total += alpha * reward.team + sum(reward.local.values())
    return total


def prompt(env: ToolPlanner) -> str:
    """The last thing that the acting role is told."""
    (observation,) = env.observe().values()
    return observation.messages[-1].content


def solved_by(env_class: type[ToolPlanner], program: str, tasks: Sequence) -> int:
    """How many tasks a program solves, as the tool of the team form."""
    return sum(play(env_class(task), program)[0].parts["tool/goal"] == 1.0 for task in tasks)
