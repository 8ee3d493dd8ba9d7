"""Generators of reasoning-gym as solver and verifier, against the real package."""

import asyncio

import pytest

from cadre.envs.adapters.reasoning_gym import ReasoningGym
from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.types import Task

pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")


def test_the_verifier_sees_the_answer_and_decides() -> None:
    env = ReasoningGym(Task("t", {"seed": 1}))
    right = env.problems[0]["answer"]
    first = asyncio.run(env.step({"solver": f"so <answer>{right}</answer>"}))
    assert (first.local, first.team) == ({"solver": 1.0}, 0.0)
    assert f"<answer>{right}</answer>" in env.observe()["verifier"].messages[0].content
    wrong = env.fork()
    assert asyncio.run(wrong.step({"verifier": "<answer>none</answer>"})).team < 1.0
    assert not wrong.success
    assert asyncio.run(env.step({"verifier": right})).team == 1.0
    assert env.success


@pytest.mark.parametrize("dataset", ["basic_arithmetic", "chain_sum", "leg_counting"])
def test_the_contract_holds(dataset: str) -> None:
    assert asyncio.run(check_env(EnvSpec("reasoning-gym", {"dataset": dataset})))


def test_an_unknown_generator_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean chain_sum\?"):
        ReasoningGym(Task("t", {"seed": 0}), "chain_sums")
