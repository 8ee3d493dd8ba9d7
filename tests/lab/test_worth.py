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
    while observations := env.observe():
        texts = {role: observation.messages[0].content for role, observation in observations.items()}
        await env.step({role: players[role](text[1:]) for role, text in texts.items()})
    return bool(env.success)


def share(kind: type[InTurns], players: dict[str, Player], **settings: Any) -> float:
    """Return the fraction of the first test tasks that the players solve."""

    async def all_of_them() -> list[bool]:
        return [await play(kind(task, **settings), players) for task in tasks]

    tasks = kind.tasks("test")[:300]
    return sum(asyncio.run(all_of_them())) / len(tasks)


def guess(*recorded: str) -> str:
    """The first that is seen, else a 0."""
    return next((digit for digit in recorded if digit != NOTHING), "0")


def copying(recorded: str) -> str:
    return guess(*recorded)


BOTH = {"first": copying, "second": copying}


@pytest.mark.parametrize(("known_fraction", "single_agent_success"), [(0.0, 0.25), (0.5, 0.625), (1.0, 1.0)])
def test_a_relay_is_worth_what_the_second_does_not_see(known_fraction: float, single_agent_success: float) -> None:
    assert share(Relay, BOTH, known_fraction=known_fraction) == 1.0
    assert share(Relay, BOTH, known_fraction=known_fraction, single_agent=True) == pytest.approx(
        single_agent_success, abs=0.07
    )


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_channel_passes_as_many_digits_as_it_is_wide(width: int) -> None:
    assert share(Channel, BOTH, width=width) == pytest.approx(width / 4, abs=0.07)
    assert share(Channel, BOTH, width=width, single_agent=True) == pytest.approx(0.25, abs=0.07)


@pytest.mark.parametrize(("same", "team"), [(0.0, 0.88), (1.0, 0.7)])
def test_a_verifier_helps_as_far_as_its_errors_are_its_own(same: float, team: float) -> None:
    players = {"first": lambda recorded: recorded, "second": lambda recorded: guess(recorded[1], recorded[0])}
    assert share(Verifier, players, same=same) == pytest.approx(team, abs=0.06)
    assert share(Verifier, players, same=same, single_agent=True) == pytest.approx(0.7, abs=0.06)


@pytest.mark.parametrize(("differ_fraction", "equal_fraction"), [(0.0, 1.0), (1.0, 0.0)])
def test_jobs_want_the_same_answers_or_others(differ_fraction: float, equal_fraction: float) -> None:
    tables = [Jobs(task, differ_fraction=differ_fraction).wanted for task in Jobs.tasks("test")[:50]]
    assert sum(expected["first"] == expected["second"] for expected in tables) == equal_fraction * 50


@pytest.mark.parametrize("kind", [Relay, Channel, Verifier, Jobs])
def test_the_contract_holds(kind: type) -> None:
    assert asyncio.run(check_env(EnvSpec(f"{worth_tasks.__file__}:{kind.__name__}", {}), episodes=2))
