"""The hidden law: expressions and laws by hand, what a theory is worth, and what it costs to guess."""

import math
from typing import Any

import pytest

from cadre.envs.splits import SPLIT_SIZES
from cadre.errors import ConfigError
from cadre.types import Task
from cadre_tasks.worlds import formula
from cadre_tasks.worlds.lab import Lab, LabSingleAgent, law_data, tells, worth_of
from cadre_tasks.worlds.lab_laws import Kind, Law, behaviour, outcome, parse_theory, parse_trial
from tests.cadre_tasks.worlds.trying import (
    check_contract,
    check_exploits,
    check_hostile,
    check_references,
    check_splits,
)
from tests.helpers.playing import play, seen, total
from tests.helpers.slow import few_of

LINE = Law("formula", ("x",), {"result": "2*x + 3"}, {})
SWITCHES = Law("causal", ("A", "B", "C"), {"B": "not A", "C": "A and B"}, {})
HEAT = Law("chemistry", ("m1", "q1", "m2", "q2"), {"heat": "m1 + m2 + 5*q1*q2"}, {"arn": (3, 1), "bel": (4, 2)})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2*x + 3", 11),
        ("x**2 // 3 - y", 4),
        ("(x + y) % 3", 2),
        ("x if x > y else y", 4),
        ("max(x, y, 9) - min(x, y) + abs(-2)", 10),
        ("not x", 0),
        ("x == 4 and not y != 1", 1),
        ("x // 0", None),
        ("x ** 4 * 9999999999 * 99999999", None),
    ],
)
def test_expressions_and_their_values(text: str, number: int | None) -> None:
    tree = formula.parse(text, ("x", "y"))
    assert tree is not None
    assert formula.value(tree, {"x": 4, "y": 1}) == number


@pytest.mark.parametrize(
    "text",
    ["", "z", "x +", "x.real", "x()", "f(x)", "__import__('os')", "lambda: x", "[x]", "x / 2", "x ** y", "x ** 9",
     "1.5", "'a'", "x; y", "x = 1", "x < y < 3", "max(x)", "abs(x, y)", "(" * 100 + "x", "x" * 400, "x := 3", "٣ + x",
     "True.x"],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    assert formula.parse(text, ("x", "y")) is None


@pytest.mark.parametrize(
    ("law", "text", "inputs"),
    [
        (LINE, "I try\nTry: x=4", {"x": 4}),
        (LINE, "7", {"x": 7}),
        (LINE, "Try: x=10", None),
        (LINE, "Try: y=1", None),
        (LINE, "", None),
        (SWITCHES, "Try: A=1 C=0", {"A": 1, "C": 0}),
        (SWITCHES, "Try: none", {}),
        (SWITCHES, "Try: A=2", None),
        (SWITCHES, "Try: nothing", None),
        (HEAT, "Try: arn, bel", {"m1": 3, "q1": 1, "m2": 4, "q2": 2}),
        (HEAT, "Try: arn", None),
    ],
)
def test_what_an_experiment_sets(law: Law, text: str, inputs: dict[str, int] | None) -> None:
    assert parse_trial(text, law) == inputs


def test_what_laws_give() -> None:
    line, switches, heat = (parse_theory(law.statement, law) or {} for law in (LINE, SWITCHES, HEAT))
    assert outcome(LINE, line, {"x": 4}) == (11,)
    assert outcome(SWITCHES, switches, {}) == (0, 1, 0)
    assert outcome(SWITCHES, switches, {"A": 1, "B": 1}) == (1, 1, 1)
    assert outcome(HEAT, heat, {"m1": 3, "q1": 1, "m2": 4, "q2": 2}) == (17,)
    circle = parse_theory("A = B\nB = not A", SWITCHES) or {}
    assert outcome(SWITCHES, circle, {}) == (None, None, 0)
    assert outcome(SWITCHES, circle, {"A": 1}) == (1, 0, 0)


def test_what_a_theory_is_worth() -> None:
    def worth(law: Law, text: str) -> float:
        return worth_of(law, parse_theory(text, law), parse_theory(law.statement, law), 7)

    assert worth(LINE, "x + x + 3") == 1.0
    assert worth(LINE, "result = 3 + 2*x") == 1.0
    assert worth(LINE, "2*x") == 0.0
    assert worth(LINE, "11") == 0.0  # the commonest outcome at the best
    assert worth(SWITCHES, "B = not A\nC = A and B") == 1.0
    # Of 27 ways to set the switches: C is wrong in one, A and B at 1 and C left alone; 8 show B alone.
    assert worth(SWITCHES, "B = not A") == pytest.approx(0.5 * (26 - 8) / (27 - 8))


def test_a_law_whose_outcomes_are_all_the_same() -> None:
    """3*x*(x + 1) is a multiple of six: what is asked for is always 0. Such a law is judged, and is no task."""
    law = Law("formula", ("x",), {"result": "(3*x + 12 + 3*x*x) % 6"}, {})
    truth = parse_theory(law.statement, law)
    assert worth_of(law, parse_theory("x", law), truth, 7) == 0.0
    assert worth_of(law, parse_theory("0", law), truth, 7) == 1.0
    assert not tells(law, 7)
    assert tells(LINE, 7)


def test_a_law_is_what_follows_the_sign_that_names_its_result() -> None:
    text = parse_theory("Law: result = 3*x+4 if x>=4 else 2*x", LINE) or {}
    assert [outcome(LINE, text, {"x": x})[0] for x in (3, 4)] == [6, 16]
    text = parse_theory("Law: result=(x == 2)", LINE) or {}
    assert [outcome(LINE, text, {"x": x})[0] for x in (1, 2)] == [0, 1]
    assert parse_theory("Law: result == 2", LINE) is None


def test_a_law_may_end_with_a_full_stop() -> None:
    text = parse_theory("Law: result = 2*x.", LINE) or {}
    assert outcome(LINE, text, {"x": 3}) == (6,)
    text = parse_theory("Law:\nA = B;\nB = not A.", SWITCHES) or {}
    assert outcome(SWITCHES, text, {"A": 1}) == (1, 0, 0)
    text = parse_theory("So:\n`Law: result = 2*x`", LINE) or {}
    assert outcome(LINE, text, {"x": 4})[0] == 8
    assert parse_trial("`Try: 3`", LINE) == {"x": 3}


@pytest.mark.parametrize(
    ("kind", "depth"),
    few_of(
        [("formula", 1), ("formula", 2), ("causal", 1), ("causal", 2), ("chemistry", 2)],
        [("causal", 1)],
    ),
)
def test_laws_that_do_the_same_are_in_one_split(kind: Kind, depth: int) -> None:
    settings: dict[str, Any] = {"variables": 3, "depth": depth} if kind != "chemistry" else {"depth": depth}
    result = {}
    for split in SPLIT_SIZES:
        envs = [Lab(task) for task in Lab.tasks(split, kind=kind, **settings)[:30]]
        result[split] = {behaviour(env.law) for env in envs}
        assert all(tells(env.law, env.task.data["seed"]) for env in envs)
    assert not result["train"] & result["test"]


def test_laws_that_are_written_in_two_ways() -> None:
    item, other_behaviour, third = (
        behaviour(Law("formula", ("x", "y"), {"result": text}, {}))
        for text in ("2*x + 2*y + 1 + 3*x*y", "2*x + 2*y + 1 + 3*y*x", "2*x + 2*y + 1 + 3*x*x")
    )
    assert item == other_behaviour != third


@pytest.mark.parametrize(
    ("kind", "variables", "expected"),
    [
        ("formula", 5, "got 5 with kind formula; expected 1 to 4"),
        ("causal", 1, "got 1 with kind causal; expected 3 to 6"),
        ("chemistry", 4, "got 4 with kind chemistry; expected none"),
    ],
)
def test_variables_that_no_law_has_are_refused(kind: Kind, variables: int, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Lab.tasks("train", kind=kind, variables=variables)


def test_an_episode_by_hand() -> None:
    task = Task("line", law_data(LINE, 3))
    env = Lab(task, experiments=2)
    first, second = play(env, "Try: x=0", "what?")
    assert (first.team, dict(first.local)) == (0, {})
    assert second.parts == {"experiment/formed": 0.0}
    assert "- x=0: 3" in seen(env, "theorist")
    assert "- unreadable: nothing" in seen(env, "theorist")
    (reward,) = play(env, "So\nLaw: 2*x + 3")
    assert (reward.team, reward.local) == (0.5, {"theorist": pytest.approx(0.5)})
    assert env.success
    assert env.observe() == {}
    assert env.privileged() == "law 2*x + 3"


def test_compact_prompts_and_one_agent() -> None:
    env = LabSingleAgent(Task("line", law_data(LINE, 3)), experiments=2, prompts="compact")
    rewards = play(env, "0", "1")
    assert seen(env, "agent") == "lab law\nx\n0 3\n1 5"
    assert len(env.observe()["agent"].messages) == 5
    assert total([*rewards, *play(env, "2*x+3")], "agent") == pytest.approx(1.0)


def test_noise_is_the_same_for_equal_actions() -> None:
    task = Task("line", law_data(LINE, 3))
    results = []
    for _ in range(2):
        env = Lab(task, experiments=9, noise=2)
        play(env, *["Try: x=4"] * 9)
        results.append([int(came) for _, came in env.results])
    assert results[0] == results[1]
    assert len(set(results[0])) > 1
    assert all(abs(number - 11) <= 2 for number in results[0])


@pytest.mark.parametrize("share", [0.07, pytest.param(1.0, marks=pytest.mark.slow)])
def test_references_exploits_and_hostile_answers(share: float) -> None:
    check_references("lab", math.ceil(share * 30))
    check_exploits("lab", math.ceil(share * 30))
    check_hostile("lab", math.ceil(share * 200))


@pytest.mark.slow
def test_splits_and_contract() -> None:
    check_splits("lab", "equations")
    check_contract(["lab", "lab-single-agent"], ["Try: x=1 y=2", "Law: x + y", "1 2"], experiments=2)
