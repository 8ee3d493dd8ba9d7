"""The records that the loaders make, one class for each kind of task.

All fields hold plain values, so the dictionary of a record is the data of a task.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

Kind = Literal["problem", "program", "article"]


@dataclass(frozen=True)
class Problem:
    """A mathematical problem: `Problem("aime24-7", "Find the sum of ...", "204")`.

    tolerance   how far a numerical answer may be off, absolutely; 0 where it must be exact
    """

    id: str
    question: str
    answer: str
    tolerance: float = 0.0


@dataclass(frozen=True)
class CodingProblem:
    """A programming problem: its statement, and the tests that decide.

    entry       the function asked for; empty where a script reads stdin and writes stdout
    starter     code that the answer continues: a signature, or imports and a docstring
    public      cases that the statement shows: (stdin, stdout), or (arguments, value) of a call
    hidden      cases that it does not show; these decide
    tests       test code instead of cases (`assert`s, or `check(candidate)`), with the `setup` that it needs
    names       names of the program that the test code may use, the first being its candidate
    reference   a solution as the data set has it; empty where it has none. Some of APPS are wrong, or no Python 3
    """

    id: str
    statement: str
    entry: str = ""
    starter: str = ""
    public: tuple[tuple[Any, Any], ...] = ()
    hidden: tuple[tuple[Any, Any], ...] = ()
    tests: str = ""
    setup: str = ""
    names: tuple[str, ...] = ()
    reference: str = ""


@dataclass(frozen=True)
class Article:
    """A text to write about: `Article("p1", "FearNet", "Incremental learning ...", ("FearNet is ...",))`.

    references   texts written by people for the same purpose; may be empty
    """

    id: str
    title: str
    text: str
    references: tuple[str, ...] = ()


Record = Problem | CodingProblem | Article
RECORDS: dict[Kind, type[Record]] = {"problem": Problem, "program": CodingProblem, "article": Article}


def prompt_text(record: Record) -> str:
    """Return the text of a record that a model reads; leaks are found by these."""
    match record:
        case Problem():
            return record.question
        case CodingProblem():
            return f"{record.statement}\n{record.starter}"
        case Article():
            return record.text


def solution_key(record: Record) -> tuple[Any, ...]:
    """Return the values that decide whether an answer is right. Items of equal text and equal key are repetitions."""
    match record:
        case Problem():
            return record.answer, record.tolerance
        case CodingProblem():
            return repr(record.public), repr(record.hidden), record.tests
        case Article():
            return ()


def _is_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(text, str) for text in value)


def _is_pairs(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(case, tuple) and len(case) == 2 for case in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


# By the declared type of a field: its name in errors, and the test of a value.
FIELD_TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a text", lambda value: isinstance(value, str)),
    float: ("a number from 0 on", _is_number),
    tuple[str, ...]: ("a list of texts", _is_texts),
    tuple[tuple[Any, Any], ...]: ("a list of pairs", _is_pairs),
}


def check_fields(record: Record) -> None:
    """Raise ValueError for a field that is not of the type that its record declares."""
    for field in fields(record):
        value, (expected, is_valid) = getattr(record, field.name), FIELD_TYPES[field.type]
        if not is_valid(value):
            raise ValueError(f"{field.name}: {expected} was expected; got {repr(value)[:80]}")
    if isinstance(record, CodingProblem):
        input_type = tuple if record.entry else str
        for case_input, expected_output in record.public + record.hidden:
            if not isinstance(case_input, input_type) or not (record.entry or isinstance(expected_output, str)):
                form = "arguments and a value" if record.entry else "two texts"
                raise ValueError(f"a case of {form} was expected; got {repr((case_input, expected_output))[:80]}")


# The source `example`: two invented items of every kind, one to train on and one held out. They take the place of any
# data set, so that a dry run can play an episode; nothing can be learned from them.
EXAMPLE = "example"

_PROBLEMS = (
    Problem("example-1", "A box holds 6 rows of 7 eggs. How many eggs are in it?", "42"),
    Problem("example-2", "A train leaves with 58 people and 13 get off. How many are left?", "45"),
)
_PROGRAMS = (
    CodingProblem(
        "example-1",
        "Return the sum of the even numbers of a list, 0 where there is none.",
        "even_sum",
        "def even_sum(numbers):\n",
        tests="assert even_sum([1, 2, 4]) == 6\nassert even_sum([]) == 0",
        names=("even_sum",),
        reference="def even_sum(numbers):\n    return sum(n for n in numbers if n % 2 == 0)",
    ),
    CodingProblem(
        "example-2",
        "Return a text with its words in reverse order, one space between them.",
        "turned_round",
        "def turned_round(text):\n",
        tests="assert turned_round('one two') == 'two one'\nassert turned_round('') == ''",
        names=("turned_round",),
        reference="def turned_round(text):\n    return ' '.join(reversed(text.split()))",
    ),
)
_ARTICLES = (
    Article(
        "example-1",
        "The lighthouse",
        "The lighthouse on the northern rocks has been without a keeper since its lamp was made to light itself. Twice "
        "a year a boat brings somebody who cleans the glass and looks at the batteries. Fishermen still steer by it.",
        ("A lighthouse without a keeper still guides fishermen.",),
    ),
    Article(
        "example-2",
        "The orchard",
        "An old orchard at the edge of the town was to be felled for a car park. Its neighbours counted forty kinds of "
        "apples in it, some of which nobody else grows. The car park was built somewhere else.",
        ("Neighbours saved an orchard with forty kinds of apples.",),
    ),
)
EXAMPLES: dict[Kind, tuple[Record, Record]] = {"problem": _PROBLEMS, "program": _PROGRAMS, "article": _ARTICLES}
