"""The hidden law: expressions and laws by hand, what a theory is worth, and what it costs to guess."""

import pytest

from cadre.envs.worlds import formula
from cadre.envs.worlds.lab import Lab, LabSolo, told_of, worth_of
from cadre.envs.worlds.lab_laws import Law, outcome, parse_theory, parse_trial
from cadre.types import Task
from tests.envs.playing import play, seen, total
from tests.envs.worlds.trying import check_contract, check_exploits, check_hostile, check_references, check_splits

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
    line, switches, heat = (parse_theory(law.told, law) or {} for law in (LINE, SWITCHES, HEAT))
    assert outcome(LINE, line, {"x": 4}) == (11,)
    assert outcome(SWITCHES, switches, {}) == (0, 1, 0)
    assert outcome(SWITCHES, switches, {"A": 1, "B": 1}) == (1, 1, 1)
    assert outcome(HEAT, heat, {"m1": 3, "q1": 1, "m2": 4, "q2": 2}) == (17,)
    circle = parse_theory("A = B\nB = not A", SWITCHES) or {}
    assert outcome(SWITCHES, circle, {}) == (None, None, 0)
    assert outcome(SWITCHES, circle, {"A": 1}) == (1, 0, 0)


def test_what_a_theory_is_worth() -> None:
    def worth(law: Law, text: str) -> float:
        return worth_of(law, parse_theory(text, law), parse_theory(law.told, law), 7)

    assert worth(LINE, "x + x + 3") == 1.0
    assert worth(LINE, "result = 3 + 2*x") == 1.0
    assert worth(LINE, "2*x") == 0.0
    assert worth(LINE, "11") == 0.0  # the commonest outcome at the best
    assert worth(SWITCHES, "B = not A\nC = A and B") == 1.0
    # Of 27 ways to set the switches: C is wrong in one, A and B at 1 and C left alone; 8 show B alone.
    assert worth(SWITCHES, "B = not A") == pytest.approx(0.5 * (26 - 8) / (27 - 8))


def test_an_episode_by_hand() -> None:
    task = Task("line", told_of(LINE, 3))
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
    env = LabSolo(Task("line", told_of(LINE, 3)), experiments=2, prompts="compact")
    rewards = play(env, "0", "1")
    assert seen(env, "agent") == "lab law\nx\n0 3\n1 5"
    assert len(env.observe()["agent"].messages) == 5
    assert total([*rewards, *play(env, "2*x+3")], "agent") == pytest.approx(1.0)


def test_noise_is_the_same_for_equal_actions() -> None:
    task = Task("line", told_of(LINE, 3))
    results = []
    for _ in range(2):
        env = Lab(task, experiments=9, noise=2)
        play(env, *["Try: x=4"] * 9)
        results.append([int(came) for _, came in env.results])
    assert results[0] == results[1]
    assert len(set(results[0])) > 1
    assert all(abs(number - 11) <= 2 for number in results[0])


def test_references_exploits_and_hostile_answers() -> None:
    check_references("lab", 30)
    check_exploits("lab", 30)
    check_hostile("lab", 200)


def test_splits_and_contract() -> None:
    check_splits("lab", "equations")
    check_contract(["lab", "lab-solo"], ["Try: x=1 y=2", "Law: x + y", "1 2"], experiments=2)
