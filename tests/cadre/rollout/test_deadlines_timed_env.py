"""The outputs of an environment are checked when it is played: rewards are numbers, observations conversations."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import asdict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from cadre.errors import ContractError
from cadre.rollout.deadlines import TimedEnv
from cadre.rollout.grow import NO_LIMITS
from cadre.types import Message, Observation, Reward, Task
from tests.helpers.games import Digit


def stepped(reward: Any) -> Reward:
    class Paying(Digit):
        async def step(self, actions: dict[str, str]) -> Reward:
            return reward

    env = TimedEnv.made(Paying, Task("t", {"digit": 1}), ("speaker",), NO_LIMITS)
    return asyncio.run(env.step({"speaker": "1"}))


@pytest.mark.parametrize(
    "number",
    [1, True, np.float32(1), np.int64(1), np.array(1.0), torch.tensor(1.0), torch.tensor(1), Decimal(1), Fraction(1)],
)
def test_scalars_of_any_kind_become_floats(number: Any) -> None:
    reward = stepped(Reward(team=number, local={"speaker": number}, parts={"part": number}))
    assert reward == Reward(1.0, {"speaker": 1.0}, {"part": 1.0})
    assert {type(reward.team), type(reward.local["speaker"]), type(reward.parts["part"])} == {float}
    json.dumps(asdict(reward))


@pytest.mark.parametrize("number", [math.nan, math.inf, 1e308, -1e101, "1", None, 1j, np.ones(2), torch.ones(2), [1.0]])
@pytest.mark.parametrize("field", ["team", "local", "parts"])
def test_what_is_no_finite_number_is_refused(number: Any, field: str) -> None:
    named = {"local": {"speaker": number}, "parts": {"part": number}}
    with pytest.raises(ContractError, match=rf"Reward.{field}.*expected"):
        stepped(Reward(**{field: named.get(field, number)}))


@pytest.mark.parametrize("name", ["x\udc80", "", "two\nlines"])
def test_a_part_has_a_name_that_can_be_printed(name: str) -> None:
    with pytest.raises(ContractError, match=r"^Paying.step: got the name .* in Reward.parts; expected printable"):
        stepped(Reward(parts={name: 1.0}))
    assert stepped(Reward(1e100, parts={"größe/2": 1.0})) == Reward(1e100, parts={"größe/2": 1.0})


@pytest.mark.parametrize("local", [{"nobody": 1.0}, {1: 1.0}])
def test_only_known_roles_are_paid(local: Any) -> None:
    with pytest.raises(ContractError, match="expected"):
        stepped(Reward(local=local))


@pytest.mark.parametrize("reward", [None, 1.0, {"team": 1.0}])
def test_a_reward_is_a_reward(reward: Any) -> None:
    with pytest.raises(ContractError, match="expected a Reward"):
        stepped(reward)


@pytest.mark.parametrize(
    "observations",
    [
        None,
        [],
        {"nobody": Observation("nobody", (Message("user", "x"),))},
        {"speaker": "x"},
        {"speaker": Observation("speaker", ())},
        {"speaker": Observation("speaker", (Message("user", 1),))},  # type: ignore[arg-type]
        {"speaker": Observation("speaker", (Message("robot", "x"),))},  # type: ignore[arg-type]
        {"speaker": Observation("speaker", (Message("user", "\udcff"),))},
    ],
)
def test_an_observation_is_a_conversation(observations: Any) -> None:
    class Showing(Digit):
        def observe(self) -> Any:
            return observations

    with pytest.raises(ContractError, match="expected"):
        TimedEnv.made(Showing, Task("t", {"digit": 1}), ("speaker",), NO_LIMITS).observe()


@pytest.mark.parametrize(("success", "selected"), [(True, True), (np.bool_(False), False), (torch.tensor(True), True)])
def test_success_is_a_bool(success: Any, selected: bool) -> None:
    class JudgedReward(Digit):
        @property
        def success(self) -> Any:
            return success

    assert TimedEnv.made(JudgedReward, Task("t", {"digit": 1}), ("speaker",), NO_LIMITS).success is selected


@pytest.mark.parametrize("success", [None, "yes", 1.0, np.ones(2)])
def test_other_successes_are_refused(success: Any) -> None:
    class JudgedReward(Digit):
        @property
        def success(self) -> Any:
            return success

    with pytest.raises(ContractError, match="expected True or False"):
        _ = TimedEnv.made(JudgedReward, Task("t", {"digit": 1}), ("speaker",), NO_LIMITS).success


def test_a_task_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(ContractError, match="plain values"):
        TimedEnv.made(Digit, Task("t", {"digit": np.int64(1)}), ("speaker",), NO_LIMITS)
