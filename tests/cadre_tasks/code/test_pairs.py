"""aux and main: the graded reward by hand, the feedback modes, the exploits, and the public sets where at hand."""

import asyncio
from dataclasses import replace

import pytest

from cadre.envs.spec import EnvSpec
from cadre.errors import DataError
from cadre.types import Task
from cadre_tasks.code.grade_pairs import BEST, Graded, grade
from cadre_tasks.code.pairs import Pairs
from cadre_tasks.data import load
from cadre_tasks.data.records import CodingProblem
from tests.cadre_sandbox.attacks.cheats import CHEATS
from tests.helpers.code_pairs import AUX, MAIN, PROBLEM, TASK
from tests.helpers.playing import check, play, seen, source
from tests.helpers.public_sets import FOLDER, rows
from tests.helpers.slow import few_of


def graded(aux: str, main: str) -> dict[str, float]:
    return asyncio.run(grade(PROBLEM, aux, main)).parts


FULL = {"aux": 0.4, "main": 0.6, "parses": 0.5, "tests": 1.0, "calls": 0.5, "more": 1.0, "ignored": 0.0}
IGNORED = {**FULL, "more": 0.0, "ignored": -0.5}  # worth as much as no call
OWN = {"aux": 0.4, "main": 0.6, "parses": 0.5, "tests": 1.0}  # no call of the other's aux
DOUBLE = "def aux(n):\n    return n + n"
CASES = {
    "the best": (AUX, MAIN, FULL),
    "in fences": (f"Sure:\n```python\n{AUX}\n```", f"```\n{MAIN}\n```", FULL),
    "a wrapper": ("def aux(n):\n    return n + n", "def twice(n):\n    return aux(n)", {**FULL, "more": 0.0}),
    "aux is ignored": (AUX, "def twice(n):\n    aux(n)\n    return n + n", IGNORED),
    "aux changes nothing": (
        AUX,
        "def twice(n):\n    try: h = aux(n)\n    except Exception: h = n\n    return h + n",
        IGNORED,
    ),
    "aux in a branch never taken": (
        AUX,
        "def twice(n):\n    if n is PROBLEM: return aux(n)\n    return n + n".replace("PROBLEM", "...") + "",
        IGNORED,
    ),
    **{
        f"aux is ignored, {how}": (AUX, f"def twice(n):\n    {line}\n    return n + n", IGNORED)
        for how, line in {"in a text": "str(aux(n))", "in a list": "[aux(n)]", "named": "y = aux(n); y = 2 * n"}.items()
    },
    "aux is ignored, in a pair": (AUX, "def twice(n):\n    return (n + n, aux(n))[0]", IGNORED),
    "aux answers a question that is never yes": (
        "def aux(n):\n    return n == 1000",
        "def twice(n):\n    return 0 if aux(n) else n + n",
        IGNORED,
    ),
    **{
        f"a wrapper, {how}": (DOUBLE, f"def twice(n):\n    {line}", {**FULL, "more": 0.0})
        for how, line in {
            "with a type": "y: int = aux(n)\n    return y",
            "in one": "return (y := aux(n))",
            "within": "if True: return aux(n)",
            "and nothing": "return aux(n) + n * 0",
            "or again": "return aux(n) or aux(n)",
        }.items()
    },
    **{
        f"its own aux, {how}": (AUX, f"{helper}\ndef twice(n):\n    y = aux(n)\n    return y + 0 * n", OWN)
        for how, helper in {
            "a lambda": "aux = lambda n: n + n",
            "a class": "class aux(int):\n    def __new__(cls, n): return n + n",
            "within": "if True:\n    def aux(n): return n + n",
            "imported": "from operator import pos as aux\nif aux: aux = lambda n: 2 * n",
        }.items()
    },
    "alone": (AUX, "def twice(n):\n    return n + n", {"aux": 0.4, "main": 0.6, "parses": 0.5, "tests": 1.0}),
    "no aux": ("Here you are.", "def twice(n):\n    return n + n", {"aux": 0.0, "main": 0.6, "parses": 0.0}),
    "an aux that is no function": ("aux = 3", "def twice(n):\n    return aux(n)",
                                   {"aux": 0.0, "main": 0.6, "parses": 0.5, "tests": 0.0}),
    "no main": (AUX, "def thrice(n): return n", {"aux": 0.4, "main": 0.0}),
    "main does not parse": (AUX, "def twice(", {"aux": 0.4, "main": 0.0}),
    "one test in three": (AUX, "def twice(n):\n    return 6 * aux(1)", {**FULL, "tests": 1 / 3}),
    "nothing": ("", "", {"aux": 0.0, "main": 0.0}),
}  # fmt: skip


# One for each part of the reward; the others are ways to write the same.
QUICK_CASES = ["the best", "a wrapper", "aux is ignored", "its own aux, a lambda", "alone", "no aux", "no main",
               "one test in three", "nothing"]  # fmt: skip


@pytest.mark.parametrize("opening", ["", "import math\n\n", "class Solution:\n    "])
def test_a_starter_without_a_body_breaks_nothing(opening: str) -> None:
    """Mistake: a signature before the answers, which makes the whole an error of indentation. Of what is before it all
    that stands by itself is kept."""
    call = "math.pi and aux(number)" if "math" in opening else "aux(number)"
    problem = replace(PROBLEM, starter=f"{opening}def twice(number):\n")
    main = f"def twice(number):\n    half = {call}\n    return half + number"
    assert asyncio.run(grade(problem, AUX, main)).parts == pytest.approx(FULL)


@pytest.mark.parametrize("main", ["twice = lambda n: n + n", "class Twice:\n    pass\ntwice = lambda n: 2 * n"])
def test_a_function_bound_otherwise_may_solve_the_task_and_is_not_paid(main: str) -> None:
    result = asyncio.run(grade(PROBLEM, AUX, main))
    assert (result.parts, result.verdict.ok) == ({"aux": 0.4, "main": 0.0}, True)
    assert asyncio.run(grade(PROBLEM, "def aux(n): return n\ndef twice(n): return n + n", "x = 1")).verdict.total == 0


WAYS_TO_USE = [
    (AUX, "from __future__ import annotations\ndef twice(n: Any) -> Any:\n    return aux(n) + n"),
    (
        "def aux(number):\n    return [number]",
        "def twice(n):\n    a, b = map(aux, [n, n])\n    return a[0] + b[0]",
    ),
    (AUX, "def twice(n):\n    same = aux\n    return same(n) + n"),
    (AUX, "def half(n):\n    return aux(n)\n\ndef twice(n):\n    return half(n) + n"),
    ("def aux(n):\n    yield n\n    yield n", "def twice(n):\n    a, b = aux(n)\n    return a + b"),
    (
        "def aux(xs):\n    xs.append(xs[0])\n    return xs",
        "def twice(n):\n    xs = [n]\n    aux(xs)\n    return xs[0] + xs[1]",
    ),
]


@pytest.mark.parametrize(("aux", "main"), few_of(WAYS_TO_USE, WAYS_TO_USE[1::3]))
def test_ways_to_use_aux(aux: str, main: str) -> None:
    assert graded(aux, main) == pytest.approx(FULL)


@pytest.mark.parametrize("case", few_of(CASES, [*QUICK_CASES, *list(CASES)[::4]]))
def test_the_graded_reward_by_hand(case: str) -> None:
    aux, main, expected = CASES[case]
    assert graded(aux, main) == pytest.approx(expected)
    assert sum(FULL.values()) == BEST


@pytest.mark.parametrize("cheat", ["equal to everything", "exits when called", "overwritten builtins", "hunt by gc"])
def test_known_cheats_pass_no_test(cheat: str) -> None:
    parts = graded(AUX, CHEATS[cheat].replace("@ENTRY@", "twice"))
    assert parts.get("tests", 0.0) == 0.0
    assert sum(parts.values()) <= 0.4 + 0.6 + 0.5


def test_echoing_the_example_earns_less_than_an_honest_solution() -> None:
    echo = graded(AUX, "def twice(n):\n    return aux(6)")
    assert sum(echo.values()) < BEST - 1.0


def pair(**settings: object) -> Pairs:
    return Pairs(TASK, **settings)  # type: ignore[arg-type]


def test_a_turn_pays_what_it_gained() -> None:
    env = pair(turns=2)
    wrong = {"aux": AUX, "main": "def twice(n):\n    return aux(n) * 0 + 6"}
    rewards = play(env, wrong, {"aux": AUX, "main": MAIN})
    first = 0.4 + 0.6 + 0.5 + 1 / 3  # what aux gives is of no use, and so is the call
    assert [reward.team for reward in rewards] == pytest.approx([first, BEST - first])
    assert env.success
    assert env.observe() == {}


FEEDBACK = {
    "none": [],
    "passed": ["Not all tests pass."],
    "levels": ["`aux` is defined: yes", "main calls aux: yes", "tests passed: 1 of 3"],
    "failures": ["tests passed: 1 of 3", "failed: assert candidate(0) == 0"],
}


@pytest.mark.parametrize("mode", FEEDBACK)
def test_feedback(mode: str) -> None:
    env = pair(turns=2, feedback=mode)
    play(env, {"aux": AUX, "main": "def twice(n):\n    return aux(n) * 0 + 6"})
    for role in env.roles:
        message = seen(env, role)
        assert all(line in message for line in FEEDBACK[mode])
        assert message.endswith("Write it again, better.")
        assert ("assert candidate" in message) is (mode == "failures")
        assert env.observe()[role].messages[1].content in (AUX, "def twice(n):\n    return aux(n) * 0 + 6")


def test_an_expert_speaks_between_the_turns() -> None:
    env = pair(turns=2, feedback="expert")
    play(env, {"aux": AUX, "main": "def twice(n):\n    return 1"})
    assert list(env.observe()) == ["expert"]
    assert "def twice(n):\n    return 1" in seen(env, "expert")
    (reward,) = play(env, "Return number + number.")
    assert (reward.team, dict(reward.local)) == (0.0, {})
    assert seen(env, "aux").startswith("Return number + number.")
    game = EnvSpec("pairs", {"feedback": "expert", "source": source(), "held_out": 1})
    assert game.roles == ("aux", "main", "expert")
    assert EnvSpec("pairs", {"source": source()}).roles == ("aux", "main")


def test_halves_of_a_set_without_a_training_split() -> None:
    game = EnvSpec("pairs", {"source": source(), "held_out": 1})
    assert [task.data["id"] for task in game.tasks("test")] == ["HumanEval/900"]
    assert [task.data["id"] for task in game.tasks("train")] == ["HumanEval/901"]
    with pytest.raises(DataError, match=r"leaves 0 for training and 2 held out.*from 1 to 1"):
        EnvSpec("pairs", {"source": source()}).tasks("test")
    basic = EnvSpec("pairs", {"source": source(), "data": "mbpp"})
    assert [task.data["id"] for task in basic.tasks("train")] == ["mbpp-601", "mbpp-602"]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"data": "humaneval", "held_out": 1}, marks=pytest.mark.slow),
        {"data": "mbpp", "feedback": "expert"},
    ],
)
def test_the_contract(settings: dict[str, object]) -> None:
    assert len(check("pairs", [AUX, MAIN], episodes=1, turns=2, **settings)) == 6


def as_pair(program: CodingProblem) -> tuple[str, str]:
    """A reference as a pair: an aux that answers in a list, and a main that takes the answer out of it."""
    aux = f"{program.reference}\n\ndef aux(*arguments, whole={program.entry}):\n    return [whole(*arguments)]"
    return aux, f"def {program.entry}(*arguments):\n    found = aux(*arguments)\n    return found[0]"


@pytest.mark.parametrize(
    ("name", "file"),
    few_of(
        [("humaneval", "humaneval/HumanEval.jsonl"), ("mbpp", "mbpp/mbpp.jsonl")],
        [("humaneval", "humaneval/HumanEval.jsonl")],
    ),
)
def test_references_of_the_public_sets_score_full_marks(name: str, file: str) -> None:
    rows(file)
    programs = [item for item in load(name, "test", str(FOLDER)) if isinstance(item, CodingProblem)][::40]

    async def go() -> list[Graded]:
        return await asyncio.gather(*(grade(program, *as_pair(program)) for program in programs))

    low = [
        (program.id, result.parts)
        for program, result in zip(programs, asyncio.run(go()), strict=True)
        if result.value < BEST
    ]
    assert low == []


def test_codebleu_is_shown_and_not_paid() -> None:
    task = Task("t", {**vars(PROBLEM), "reference": "def twice(number):\n    return number + number"})
    plain, shown = (
        asyncio.run(Pairs(task, codebleu=codebleu).step({"aux": AUX, "main": MAIN})) for codebleu in (False, True)
    )
    assert shown.team == plain.team
    assert "codebleu" not in plain.parts
    assert 0.0 < shown.parts["codebleu"] < 1.0
    assert "codebleu" not in asyncio.run(Pairs(TASK, codebleu=True).step({"aux": AUX, "main": MAIN})).parts


@pytest.mark.parametrize(
    ("statement", "starter", "task"),
    [
        ("Twice it.", "def twice(n):\n", "Twice it.\n\ndef twice(n):\n"),
        ("Twice it.\n", "def twice(n):\n", "Twice it.\ndef twice(n):\n"),
        ("Twice it.", "", "Twice it."),
        ("", "def twice(n):\n", "def twice(n):\n"),
    ],
)
def test_a_statement_and_what_to_start_from_stand_apart(statement: str, starter: str, task: str) -> None:
    problem = replace(PROBLEM, statement=statement, starter=starter)
    env = Pairs(Task("t", dict(vars(problem))))
    assert seen(env, "main").endswith(f"no examples.\n\n{task}")
