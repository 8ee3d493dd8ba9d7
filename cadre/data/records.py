"""The records that the loaders make, one a kind of task. All hold plain values, so `dataclasses.asdict` is a task."""

from dataclasses import dataclass
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
class Program:
    """A programming problem: what is asked, and the tests that decide.

    entry       the function asked for; empty where a script reads stdin and writes stdout
    starter     code that the answer goes on from: a signature, or imports and a docstring
    public      cases that the statement shows: (stdin, stdout), or (arguments, value) of a call
    hidden      cases that it does not show; these decide
    tests       test code instead of cases (`assert`s, or `check(candidate)`), with the `setup` that it needs
    names       what the test code may use of a program, the first being its candidate
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


Record = Problem | Program | Article
RECORDS: dict[Kind, type[Record]] = {"problem": Problem, "program": Program, "article": Article}


def text_of(record: Record) -> str:
    """What a model reads of a record; a leak is a likeness of these."""
    match record:
        case Problem():
            return record.question
        case Program():
            return f"{record.statement}\n{record.starter}"
        case Article():
            return record.text


def decided_by(record: Record) -> tuple[Any, ...]:
    """What says whether an answer is right: an item that asks the same and is decided by the same is a repetition."""
    match record:
        case Problem():
            return record.answer, record.tolerance
        case Program():
            return repr(record.public), repr(record.hidden), record.tests
        case Article():
            return ()
