"""Facts about source, asked for behind the sandbox; mutants; what tests are worth; each by hand."""

import ast
import asyncio
from typing import Any

import pytest

from cadre_tasks.code import inspect, source, tester
from cadre_tasks.code.judge import StdioTests, UnitTests
from cadre_tasks.data.records import CodingProblem

SQUARES = "def squares(items):\n    return [x * x for x in items if x > 0]"
PROBLEM = CodingProblem(
    "p", "Square what is positive. It must pass: assert squares([2]) == [4]", "squares",
    tests="assert squares([2]) == [4]\nassert squares([-1, 3]) == [9]\nassert squares([0, 1]) == [1]",
    names=("squares",), reference=SQUARES,
)  # fmt: skip
SCRIPT = CodingProblem("s", "Add.", public=(("1 2\n", "3\n"),), hidden=(("5 5\n", "10\n"), ("0 9\n", "9\n")),
                 reference="a, b = map(int, input().split())\nprint(a + b)")  # fmt: skip
AUX = "def aux(x):\n    return x + 1"


def used(main: str, helping: str = AUX) -> dict[str, bool]:
    return source.use({"helping": helping, "main": main, "helper": "aux", "entry": "f"})


def facts(called: bool, wrapper: bool) -> dict[str, bool]:
    return {"helps": True, "defined": True, "bound": True, "called": called, "wrapper": wrapper}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return aux(x)", facts(True, True)),
        ("'Text.'\n    y = 1\n    z = aux(x)\n    pass\n    return z", facts(True, True)),
        ("return aux(x) * 2", facts(True, False)),
        ("z = aux(x)\n    return z + x", facts(True, False)),
        ("if x:\n        return aux(x)\n    return 0", facts(True, False)),
        ("aux(x)\n    return x", facts(True, False)),
        ("z = aux(x)\n    return x", facts(True, False)),
        ("return x", facts(False, False)),
        ("return auxiliary(x)", facts(False, False)),
        ("return sum(map(aux, x))", facts(True, False)),
        ("return sorted(x, key=aux)", facts(True, False)),
        ("g = aux\n    return g(x)", facts(True, False)),
        ("aux\n    return x", facts(False, False)),
    ],
)
def test_how_main_uses_aux(body: str, expected: dict[str, bool]) -> None:
    assert used(f"def f(x):\n    {body}") == expected


def test_functions_between_main_and_aux_are_looked_into() -> None:
    between = "def one(x): return aux(x)\ndef two(x): return one(x)\ndef f(x): return x + two(x)"
    assert used(between)["called"] is True
    assert used("def one(x): return aux(x)\ndef f(x): return x")["called"] is False
    assert used("def f(x): return sum(aux(x))", "def aux(x):\n    yield x")["helps"] is True


def test_what_is_defined() -> None:
    assert (used("f = lambda x: x")["defined"], used("f = lambda x: x")["bound"]) == (False, True)
    assert used("def g(x): return aux(x)")["defined"] is False
    assert used("def f(x): aux(x)")["defined"] is False  # it returns nothing
    assert used("def f(x): return aux(x)", "aux = 3")["helps"] is False
    own_used = used(f"{AUX}\ndef f(x): return aux(x) + 1")
    assert (own_used["defined"], own_used["called"]) == (True, False)  # its own aux, not the partner's


HOSTILE = ["(" * 100_000, "x = " + "[" * 5000, "\x00", "def f(:", "-" * 200_000 + "1", "lambda:" * 5000 + "0"]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_source_that_breaks_parsers_is_no_answer(text: str) -> None:
    async def asked(**request: Any) -> Any:
        return await inspect.ask("asserts", entry="f", shown="", **request)

    assert asyncio.run(asked(source=text)) is None


def test_mutants_change_one_thing_each() -> None:
    mutants = source.mutants({"source": SQUARES, "count": 10})
    assert mutants == [
        "def squares(items):\n    return None",
        "def squares(items):\n    return [x + x for x in items if x > 0]",
        "def squares(items):\n    return [x * x for x in items if x >= 0]",
        "def squares(items):\n    return [x * x for x in items if x > 1]",
    ]
    assert source.mutants({"source": SQUARES, "count": 2}) == [mutants[1], mutants[3]]
    assert source.mutants({"source": "pass", "count": 3}) == []
    assert len({ast.dump(ast.parse(text)) for text in mutants}) == 4


def test_mutants_that_pass_the_tests_or_differ_in_type_alone_are_none() -> None:
    """2 + 2 is 4, and 2 > 1; None is no list. Left is the right program with changed answers."""
    weak = CodingProblem("w", "", "squares", tests="assert squares([2]) == [4]", names=("squares",))
    stored = asyncio.run(tester.mutants(weak, SQUARES, 4))
    assert [text.startswith(SQUARES) for text in stored] == [True, True]  # answers of zero, and others


TESTS = {
    # text: (valid, agrees, kills, worth)
    "assert squares([3, -3]) == [9]\nassert squares([1]) == [1]": (True, 1.0, 2 / 2, 1.0),
    "assert squares([3]) == [9]": (True, 1.0, 1 / 2, 0.2 + 0.8 / 2),
    "assert squares([3]) == [9]\nassert squares([3]) == [8]": (True, 0.5, 0.0, 0.2),
    "assert squares([3]) == [8]": (True, 0.0, 0.0, 0.2),
    "assert squares([3]) == squares([3])": (True, 1.0, 0.0, 0.2),
    "assert squares([3]) or True": (True, 1.0, 0.0, 0.2),
}  # fmt: skip


@pytest.mark.parametrize("text", TESTS)
def test_asserts_by_hand(text: str) -> None:
    """The mutants are `x + x` and `x > 1`: `x >= 0` passes the problem's tests, and `None` is known by its type."""

    async def judged() -> tester.Worth:
        return await tester.worth(await tester.written(text, three()), three(), SQUARES, 4)

    valid, agrees, kills, value = TESTS[text]
    result = asyncio.run(judged())
    assert (result.valid, result.agrees, result.kills) == (valid, agrees, pytest.approx(kills))
    assert sum(result.parts.values()) == pytest.approx(value)


def three() -> CodingProblem:
    """The problem with a test less and another name, so that three of its four mutants fail."""
    tests = "assert squares([3, -1]) == [9]\nassert squares([1]) == [1]"
    return CodingProblem("three", PROBLEM.statement, "squares", tests=tests, names=("squares",), reference=SQUARES)


NO_TESTS = ["", "assert True", "assert 1 + 1 == 2", "assert other(3) == 9", "print(squares([3]))", "import os",
            'assert squares( [2] )==[4]  # the example', "assert (", "raise SystemExit"]  # fmt: skip


@pytest.mark.parametrize("text", NO_TESTS)
def test_what_is_no_test_of_its_own(text: str) -> None:
    assert asyncio.run(tester.written(f"```python\n{text}\n```", PROBLEM)) is None
    assert sum(asyncio.run(tester.worth(None, PROBLEM, SQUARES, 4)).parts.values()) == 0.0


def block(arguments: str, expected: str) -> str:
    return f"Try this:\n```input\n{arguments}\n```\n```output\n{expected}\n```\n"


def test_pairs_for_scripts() -> None:
    text = block("1   2", "3") + block("4 4", "8") + block("1 0", "1")
    result = asyncio.run(tester.written(text, SCRIPT))
    assert result == StdioTests((("4 4\n", "8\n"), ("1 0\n", "1\n")))  # the first is the statement's own
    assert asyncio.run(tester.written(block("1 2", "3"), SCRIPT)) is None
    good = asyncio.run(tester.worth(result, SCRIPT, SCRIPT.reference, 4))
    assert (good.agrees, good.kills) == (1.0, 1.0)
    wrong = asyncio.run(tester.worth(StdioTests((("4 4", "9"),)), SCRIPT, SCRIPT.reference, 4))
    assert sum(wrong.parts.values()) == pytest.approx(0.2)


def test_without_a_right_program_tests_are_only_tests() -> None:
    result = asyncio.run(tester.worth(UnitTests("assert f(1) == 1"), PROBLEM, "", 4))
    assert result.parts == pytest.approx({"valid": 0.2, "agrees": 0.0, "kills": 0.0})
