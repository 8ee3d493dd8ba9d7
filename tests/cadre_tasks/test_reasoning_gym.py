"""Generators of reasoning-gym as solver and verifier, against the real package."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.types import Task
from cadre_tasks.reasoning_gym import ReasoningGym

pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")


def test_the_verifier_sees_the_answer_and_decides() -> None:
    env = ReasoningGym(Task("t", {"seed": 1}))
    right = env.problem["answer"]
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
    question = of_two.problem["question"]
    assert sum(question.count(sign) for sign in "+-") == 1, question


@pytest.mark.parametrize(
    ("dataset", "options", "expected"),
    [
        ("chain_sum", {"max_term": 2}, r"got 'max_term'.*Did you mean max_terms\?"),
        ("chain_sum", {"seed": 2}, "got 'seed'; expected options of chain_sum"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "expected what chain_sum takes, which says: "),
        ("chain_sum", {"min_terms": "five"}, "expected what chain_sum takes, which says: "),
        ("composite", {}, "Must specify at least one dataset"),
    ],
)
def test_options_that_a_generator_refuses_are_told(dataset: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        ReasoningGym(Task("t", {"seed": 0}), dataset, options)


CODE = "__import__('os').system('touch {}')"


@pytest.mark.parametrize(
    ("dataset", "answers"),
    [
        ("string_insertion", [CODE, "oracle_answer", "[].__class__", "open('/etc/passwd').read()"]),
        ("spiral_matrix", [CODE, "[entry]"]),
        ("countdown", [CODE, "9**9**9**9", "S('1')", "oo.func"]),
        ("polynomial_multiplication", [CODE]),
        ("n_queens", [CODE]),
        ("intermediate_integration", [CODE]),
    ],
)
def test_no_answer_is_run(dataset: str, answers: list[str], tmp_path: Path) -> None:
    env = ReasoningGym(Task("t", {"seed": 3}), dataset)
    for answer in answers:
        assert asyncio.run(env.worth(answer.format(tmp_path / "here"))) < 1.0
    assert list(tmp_path.iterdir()) == []
    assert asyncio.run(env.worth(env.problem["answer"])) == 1.0 or dataset == "countdown"


def test_formulas_and_literals_are_read_as_the_package_does() -> None:
    inserted = ReasoningGym(Task("t", {"seed": 3}), "string_insertion")
    assert asyncio.run(inserted.worth(repr(list(inserted.problem["answer"])))) > 0.0
    product = ReasoningGym(Task("t", {"seed": 3}), "polynomial_multiplication")
    assert asyncio.run(product.worth(f"1*({product.problem['answer']})")) == 1.0


def test_no_question_is_in_both_splits() -> None:
    """Generators of few questions too, whose seeds differ."""
    splits = {split: ReasoningGym.tasks(split, dataset="prime_factorization")[:60] for split in ("train", "test")}
    requests = {split: {task.data["question"] for task in tasks} for split, tasks in splits.items()}
    assert not requests["train"] & requests["test"]
    for task in splits["test"][:5]:
        assert ReasoningGym(task, "prime_factorization").problem["question"] == task.data["question"]
