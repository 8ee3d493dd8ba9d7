"""Use of aux by main is found with other helpers in its place: sham uses earn nothing, honest pairs all."""

import asyncio

import pytest

from cadre_tasks.code import source
from cadre_tasks.code.grade_pairs import BEST, Graded, grade
from cadre_tasks.data.records import CodingProblem
from tests.cadre_tasks.code.helpers import HONEST, PAIRS, SHOWS, WHOLE
from tests.helpers.slow import few_of

UNUSED = 0.4 + 0.6 + 0.5 + 1.0  # as where aux is not called


def graded(problem: CodingProblem, aux: str, main: str) -> Graded:
    return asyncio.run(grade(problem, aux, main))


@pytest.mark.parametrize("name", few_of(SHOWS, SHOWS[::24]))
def test_a_helper_that_is_called_for_show_is_as_one_that_is_not_called(name: str) -> None:
    result = graded(*PAIRS[name])
    assert result.verdict.ok, result.verdict
    assert result.value <= UNUSED + 1e-9, result.parts


@pytest.mark.parametrize("name", few_of(HONEST, HONEST[1::16]))
def test_an_honest_helper_is_paid_in_full(name: str) -> None:
    result = graded(*PAIRS[name])
    assert result.verdict.ok, result.verdict
    assert result.value == pytest.approx(BEST), result.parts


ENOUGH = ["an assert of a constant", "times one", "plus nothing", "a branch", "or zero"]


@pytest.mark.parametrize("name", few_of(ENOUGH, ENOUGH[::3]))
def test_nor_is_it_in_a_test_that_is_judged_as_a_whole(name: str) -> None:
    result = graded(WHOLE, *PAIRS[name][1:])
    assert (result.verdict.passed, result.verdict.total) == (1, 1)
    assert result.value == pytest.approx(UNUSED)


def test_nor_does_an_honest_one_lose_there() -> None:
    result = graded(WHOLE, "def aux(n):\n    return n", "def twice(n):\n    return n + aux(n)")
    assert result.value == pytest.approx(BEST)


def test_the_parts_by_hand() -> None:
    """Calling is worth .5, not using what is called costs .5, and there is no more to it than a wrapper has."""
    result = graded(*PAIRS["an assert of a constant"])
    assert result.parts == {
        "aux": 0.4, "main": 0.6, "parses": 0.5, "tests": 1.0, "calls": 0.5, "more": 0.0, "ignored": -0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("main", "gated"),
    [
        ("assert aux(1) is True", "assert cadre_gate(1, lambda: aux(1) is True)"),
        ("y = aux(n)\nz = y\nif z: w", "y = aux(n)\nz = y\nif cadre_gate(1, lambda: z):\n    w"),
        ("x = n > 2 and aux(n) > 3", "x = n > 2 and cadre_gate(1, lambda: aux(n) > 3)"),
        ("while aux(n) > 2:\n    n -= not aux(n)", "while aux(n) > 2:\n    n -= cadre_gate(1, lambda: not aux(n))"),
        ("[x for x in n if aux(x)]", "[x for x in n if cadre_gate(1, lambda: aux(x))]"),
        ("if (y := aux(n)): w", "if (y := aux(n)):\n    w"),
        ("if n > 2: w", "if n > 2:\n    w"),
    ],
)
def test_tests_of_what_the_helper_returns(main: str, gated: str) -> None:
    assert source.gated({"source": main, "helper": "aux"}) == gated
