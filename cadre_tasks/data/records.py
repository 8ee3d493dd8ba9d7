"""The records that the loaders make, one class for each kind of task.

All fields hold plain values, so the dictionary of a record is the data of a task.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from cadre_sandbox.compare import Comparison

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
    comparison  of a script's output with the expected one, see `cadre_sandbox.compare.same_output`
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
    comparison: Comparison = "words"


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


def check_fields(record: Record) -> None:
    """Raise ValueError for a field that is not of the type that its record declares, or a case of another form."""
    is_call = isinstance(record, CodingProblem) and bool(record.entry)
    for field in fields(record):
        value, expected = getattr(record, field.name), "a list of texts"
        if field.name == "comparison":
            expected, is_valid = f"one of {', '.join(get_args(Comparison))}", value in get_args(Comparison)
        elif field.type is str:
            expected, is_valid = "a text", isinstance(value, str)
        elif field.type is float:
            expected, is_valid = "a number from 0 on", type(value) in (int, float) and 0 <= value < math.inf
        elif field.name in ("public", "hidden"):
            expected = f"a list of pairs {'[[arguments, ...], value]' if is_call else '[stdin, stdout]'}"
            is_valid = isinstance(value, tuple) and all(
                isinstance(case, tuple)
                and len(case) == 2
                and isinstance(case[0], tuple if is_call else str)
                and (is_call or isinstance(case[1], str))
                for case in value
            )
        else:
            is_valid = isinstance(value, tuple) and all(isinstance(text, str) for text in value)
        if not is_valid:
            raise ValueError(f"{field.name}: got {repr(value)[:80]}; expected {expected}")


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
