"""Stepping the joint actions of one decision, each on its own copy of the state, and drawing what they lead to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cadre.env import Env
from cadre.rollout.conversations import words
from cadre.rollout.rounds import together
from cadre.types import Drawing, Reward, Sample


async def step_each(env: Env, actions: Sequence[dict[str, Sample]]) -> tuple[list[Env], list[Reward]]:
    """What each action leads to from the state of `env`, and what it pays; `env` itself stays as it is.

    Equal actions are stepped once and share the state that they lead to; nobody steps that state again, only its forks.
    """
    places: dict[Any, int] = {}
    said = [words(action) if env.repeatable else number for number, action in enumerate(actions)]
    order = [places.setdefault(what, len(places)) for what in said]
    distinct = [actions[order.index(place)] for place in places.values()]
    forks = [env.fork() for _ in distinct]
    rewards = await together(*(fork.step_samples(action) for fork, action in zip(forks, distinct, strict=True)))
    return [forks[place] for place in order], [rewards[place] for place in order]


def draw(envs: Sequence[Env], wanted: bool) -> tuple[Drawing, ...]:
    """What each environment renders, the same one once; None for each where drawings are not `wanted`."""
    drawn = {id(env): env.render() if wanted else None for env in envs}
    return tuple(drawn[id(env)] for env in envs)
