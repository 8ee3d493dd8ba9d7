"""Stepping the joint actions of one decision, each on its own copy of the state, and drawing what they lead to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cadre.env import Env
from cadre.rollout.conversations import words
from cadre.rollout.failed_branches import Contain, contained
from cadre.rollout.rounds import together
from cadre.types import BranchFailure, Drawing, Reward, Sample


async def step_each(
    env: Env, actions: Sequence[dict[str, Sample]], contain: Contain
) -> tuple[list[Env], list[Reward | BranchFailure]]:
    """Return the states that the actions lead to from the state of `env`, which stays as it is, and the rewards.

    Equal actions are stepped once and share the state that they lead to; nobody steps that state again, only its forks.
    A step that fails has its failure in the place of a reward, and so has an action one of whose samples failed.
    """
    places: dict[Any, int] = {}
    said = [words(action) if env.repeatable else number for number, action in enumerate(actions)]
    order = [places.setdefault(what, len(places)) for what in said]
    distinct = [actions[order.index(place)] for place in places.values()]
    forks = [env.fork() for _ in distinct]

    async def stepped(fork: Env, action: dict[str, Sample]) -> Reward | BranchFailure:
        failed = [sample.failure for sample in action.values() if sample.failure is not None]
        return failed[0] if failed else await contained(fork.step_samples(action), contain)

    rewards = await together(*(stepped(fork, action) for fork, action in zip(forks, distinct, strict=True)))
    return [forks[place] for place in order], [rewards[place] for place in order]


def draw(envs: Sequence[Env | None], wanted: bool) -> tuple[Drawing, ...]:
    """What each environment renders, the same one once; None for each where drawings are not `wanted`."""
    drawn = {id(env): env.render() if wanted and env is not None else None for env in envs}
    return tuple(drawn[id(env)] for env in envs)
