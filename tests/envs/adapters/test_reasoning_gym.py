"""Generators of reasoning-gym as solver and verifier, against the real package."""

import asyncio
from typing import Any

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


def test_a_generator_has_its_own_options() -> None:
    of_two = ReasoningGym(Task("t", {"seed": 1}), "chain_sum", {"min_terms": 2, "max_terms": 2, "max_digits": 1})
    question = of_two.problems[0]["question"]
    assert sum(question.count(sign) for sign in "+-") == 1, question


@pytest.mark.parametrize(
    ("dataset", "options", "told"),
    [
        ("chain_sum", {"max_term": 2}, r"got 'max_term'.*Did you mean max_terms\?"),
        ("chain_sum", {"seed": 2}, "got 'seed'; expected options of chain_sum"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "expected what chain_sum takes, which says: "),
        ("chain_sum", {"min_terms": "five"}, "expected what chain_sum takes, which says: "),
        ("composite", {}, "Must specify at least one dataset"),
    ],
)
def test_options_that_a_generator_refuses_are_told(dataset: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ReasoningGym(Task("t", {"seed": 0}), dataset, options)
