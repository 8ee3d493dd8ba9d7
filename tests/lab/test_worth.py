"""The situations in which a second agent may be worth its tokens: bounds, reached by players who know the rules."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from lab import worth_tasks
from lab.worth_tasks import NOTHING, Channel, InTurns, Jobs, Relay, Verifier

# What a player says, given the digits that it is shown after whose turn it is.
Player = Callable[[str], str]


async def play(env: Any, players: dict[str, Player]) -> bool:
    while seen := env.observe():
        texts = {role: observation.messages[0].content for role, observation in seen.items()}
        await env.step({role: players[role](text[1:]) for role, text in texts.items()})
    return bool(env.success)


def share(kind: type[InTurns], players: dict[str, Player], **settings: Any) -> float:
    """Of the first test tasks that the players solve."""

    async def all_of_them() -> list[bool]:
        return [await play(kind(task, **settings), players) for task in tasks]

    tasks = kind.tasks("test")[:300]
    return sum(asyncio.run(all_of_them())) / len(tasks)


def guess(*seen: str) -> str:
    """The first that is seen, else a 0."""
    return next((digit for digit in seen if digit != NOTHING), "0")


def copying(seen: str) -> str:
    return guess(*seen)


BOTH = {"first": copying, "second": copying}


@pytest.mark.parametrize(("known", "alone"), [(0.0, 0.25), (0.5, 0.625), (1.0, 1.0)])
def test_a_relay_is_worth_what_the_second_does_not_see(known: float, alone: float) -> None:
    assert share(Relay, BOTH, known=known) == 1.0
    assert share(Relay, BOTH, known=known, alone=True) == pytest.approx(alone, abs=0.07)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_channel_passes_as_many_digits_as_it_is_wide(width: int) -> None:
    assert share(Channel, BOTH, width=width) == pytest.approx(width / 4, abs=0.07)
    assert share(Channel, BOTH, width=width, alone=True) == pytest.approx(0.25, abs=0.07)


@pytest.mark.parametrize(("same", "team"), [(0.0, 0.88), (1.0, 0.7)])
def test_a_verifier_helps_as_far_as_its_errors_are_its_own(same: float, team: float) -> None:
    said = {"first": lambda seen: seen, "second": lambda seen: guess(seen[1], seen[0])}
    assert share(Verifier, said, same=same) == pytest.approx(team, abs=0.06)
    assert share(Verifier, said, same=same, alone=True) == pytest.approx(0.7, abs=0.06)


@pytest.mark.parametrize(("apart", "alike"), [(0.0, 1.0), (1.0, 0.0)])
def test_jobs_want_the_same_answers_or_others(apart: float, alike: float) -> None:
    tables = [Jobs(task, apart=apart).wanted for task in Jobs.tasks("test")[:50]]
    assert sum(wanted["first"] == wanted["second"] for wanted in tables) == alike * 50


@pytest.mark.parametrize("kind", [Relay, Channel, Verifier, Jobs])
def test_the_contract_holds(kind: type) -> None:
    assert asyncio.run(check_env(EnvSpec(f"{worth_tasks.__file__}:{kind.__name__}", {}), episodes=2))
