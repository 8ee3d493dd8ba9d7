"""Shared parts of the environments' tests: an episode of given texts, and the invented data as settings."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from tempfile import mkdtemp
from typing import Any

from cadre.env import Env
from cadre.envs.check import ACTIONS, check_env
from cadre.envs.spec import EnvSpec
from cadre.types import Reward
from cadre_tasks.games.tool_planner import ToolPlanner
from tests.cadre_tasks.data.invented import folder


@cache
def source() -> str:
    """A folder of invented rows of every data set."""
    from pathlib import Path

    return folder(Path(mkdtemp(prefix="cadre-invented-")))


def play(env: Env, *texts: str | Mapping[str, str]) -> list[Reward]:
    """One text a decision: for the role that is asked, or for each by name. All roles say the same if it is a text."""

    async def episode() -> list[Reward]:
        rewards = []
        for text in texts:
            requests = env.observe()
            assert requests, "the episode is over already"
            answer = {role: text if isinstance(text, str) else text[role] for role in requests}
            rewards.append(await env.step(answer))
        return rewards

    return asyncio.run(episode())


def total(rewards: Sequence[Reward], role: str) -> float:
    """Return a role's reward over an episode, at alpha 1."""
    return sum(reward.team + reward.local.get(role, 0.0) for reward in rewards)


def seen(env: Env, role: str) -> str:
    """The last message that a role sees now."""
    return env.observe()[role].messages[-1].content


def check(name: str, actions: Sequence[str] = (), episodes: int = 2, **settings: Any) -> list[str]:
    """The contract on a few episodes of hostile and given actions."""
    game = EnvSpec(name, {"source": source(), **settings})
    return asyncio.run(check_env(game, episodes, [*actions, *ACTIONS]))


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
    """Count the tasks that a program solves, as the tool of the team form."""
    return sum(play(env_class(task), program)[0].parts["tool/goal"] == 1.0 for task in tasks)
