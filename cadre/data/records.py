"""The records that the loaders make, one a kind of task. All hold plain values, so `dataclasses.asdict` is a task."""

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


def _texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(text, str) for text in value)


def _cases(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(case, tuple) and len(case) == 2 for case in value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


# By the type that a field declares: what it is called, and whether a value is one.
FITS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a text", lambda value: isinstance(value, str)),
    float: ("a number from 0 on", _number),
    tuple[str, ...]: ("a list of texts", _texts),
    tuple[tuple[Any, Any], ...]: ("a list of pairs", _cases),
}


def refuse_misfit(record: Record) -> None:
    """Raise ValueError for a field that is not of the type that its record declares."""
    for field in fields(record):
        value, (expected, fits) = getattr(record, field.name), FITS[field.type]
        if not fits(value):
            raise ValueError(f"{field.name}: {expected} was expected; got {repr(value)[:80]}")
    if isinstance(record, Program):
        first = tuple if record.entry else str
        for given, out in record.public + record.hidden:
            if not isinstance(given, first) or not (record.entry or isinstance(out, str)):
                form = "arguments and a value" if record.entry else "two texts"
                raise ValueError(f"a case of {form} was expected; got {repr((given, out))[:80]}")
