"""A test on what the problem shows does not count, in whatever spelling; one that differs in what it asks does."""

import asyncio

import pytest

from cadre.types import Reward, Task
from cadre_tasks.code import shown, tester
from cadre_tasks.code.code import Code
from cadre_tasks.data.records import CodingProblem
from tests.cadre_tasks.code.copies import COPIES, OWN, PROBLEMS
from tests.helpers.slow import few_of


def is_own(answer: str, problem: CodingProblem) -> bool:
    return asyncio.run(tester.written(answer, problem)) is not None


@pytest.mark.parametrize(
    ("problem", "answer"), few_of(COPIES, COPIES[::8]), ids=lambda value: getattr(value, "id", value)
)
def test_a_shown_example_in_another_spelling_is_no_test_of_ones_own(problem: CodingProblem, answer: str) -> None:
    assert not is_own(answer, problem)


@pytest.mark.parametrize(("problem", "answer"), few_of(OWN, OWN[::8]), ids=lambda value: getattr(value, "id", value))
def test_another_call_is_one_of_ones_own(problem: CodingProblem, answer: str) -> None:
    assert is_own(answer, problem)


def reward_of(problem: CodingProblem, program: str, tests: str) -> Reward:
    return asyncio.run(Code(Task("t", dict(vars(problem)))).step({"coder": program, "tester": tests}))


@pytest.mark.parametrize(
    ("name", "copied", "own_tests"),
    [
        (
            "first",
            "assert get_char(list('abca')) == 'a'",
            "assert get_char('noon') == 'o'\nassert get_char('ab') is None",
        ),
        ("sums", "```input\n2\n5 5\n1 2\n```\n```output\n10\n3\n```", "```input\n1\n7 8\n```\n```output\n15\n```"),
    ],
)
@pytest.mark.parametrize("has_reference", few_of([True, False], [False]))
def test_copies_earn_nothing_beside_a_right_program(
    name: str, copied: str, own_tests: str, has_reference: bool
) -> None:
    """Also where the only right program is the coder's."""
    problem = PROBLEMS[name]
    bare = CodingProblem(
        **{**vars(problem), "id": f"{name}-{has_reference}", "reference": problem.reference if has_reference else ""}
    )
    assert reward_of(bare, problem.reference, copied).local["tester"] == 0.0
    assert reward_of(bare, problem.reference, own_tests).local["tester"] > 0.4


def test_headings_of_examples() -> None:
    text = "Read.\n\nInput\n\nA number.\n\nExamples\n\nInput\n\n3\n4\n\nOutput\n\n7\n\nNote\n\nSo."
    text += "\n\nSample Input 2:\n5\nOutput: 5"
    assert shown.examples_in(text) == [("3\n4", "7"), ("5", "5")]


@pytest.mark.parametrize(
    ("arguments", "out", "cases"),
    [
        ("2\n1 2\n3 4", "3\n7", [("1 2", "3"), ("3 4", "7")]),
        ("2\na\nb\nc\nd", "1\n2\n3\n4", [("a\nb", "1\n2"), ("c\nd", "3\n4")]),
        ("5\n1 2 3 4 5", "15", []),
        ("3 4", "7", [("3 4", "7")]),
        ("0\n", "", []),
    ],
)
def test_cases_of_an_example(arguments: str, out: str, cases: list[tuple[str, str]]) -> None:
    assert shown.divided(arguments, out) == cases


def test_a_slow_program_divides_nothing() -> None:
    async def run(arguments: str) -> str | None:
        return None

    assert asyncio.run(shown.divided_by_running("2\n1\n1\n5\n2", "1\n2", run)) == []
