"""Your own data: a file of JSON lines, read by the names that its fields have.

A record's fields are found under their own names, or under those that `settings.fields` gives:
`{question: prompt, answer: gold}` reads the question from `prompt`. What a file has beside them is left alone.
"""

from __future__ import annotations

import ast
import keyword
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from cadre.data.jsonl import State, rows_of, state_of
from cadre.data.parse import numbered
from cadre.data.records import Article, Kind, Problem, Program, Record, decided_by, text_of
from cadre.errors import ConfigError, DataError, first_line, nearest

log = logging.getLogger("cadre.data")
ENDING = ".jsonl"
USES = (ast.Name, ast.Attribute)
# What a record of each kind must have; `tests` or `hidden` decides about a program.
NEEDED: dict[Kind, tuple[str, ...]] = {
    "problem": ("question", "answer"),
    "program": ("statement",),
    "article": ("text",),
}
KNOWN: dict[Kind, tuple[str, ...]] = {
    "problem": ("id", "question", "answer", "tolerance"),
    "program": ("id", "statement", "entry", "starter", "public", "hidden", "tests", "setup", "names", "reference"),
    "article": ("id", "title", "text", "references"),
}


def is_user_file(name: str) -> bool:
    """Whether a data set is named by its file."""
    return name.endswith(ENDING)


@dataclass(frozen=True)
class Row:
    """A row of a file under a record's own names, and where it stands, for errors."""

    values: Mapping[str, Any]
    where: str

    def text(self, field: str, default: str = "") -> str:
        """A text; numbers are written out. Raises DataError for anything else."""
        value = self.values.get(field, default)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value in (math.inf, -math.inf):
            self.refuse(field, value, "a text")
        if value != value:  # what tables write for a cell that is missing
            self.refuse(field, value, "a text, where NaN is none")
        return str(value)

    def needed(self, field: str) -> str:
        """A text that is not empty."""
        text = self.text(field)
        if not text.strip():
            self.refuse(field, text, "a text that is not empty")
        return text

    def number(self, field: str) -> float:
        """A number that is not negative, 0 where there is none."""
        value = self.values.get(field, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            self.refuse(field, value, "a number from 0 on")
        return float(value)

    def cases(self, field: str, called: bool) -> tuple[tuple[Any, Any], ...]:
        """Pairs: of texts for a script, of a list of arguments and a value for a function, tables of numbers having
        these as keys."""
        value = self.values.get(field) or []
        first: type = list if called else str
        pairs = isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
        if not pairs or not all(isinstance(given, first) and (called or isinstance(out, str)) for given, out in value):
            form = "[[arguments, ...], value]" if called else "[stdin, stdout]"
            self.refuse(field, value, f"a list of pairs {form}")
        if not called:
            return tuple((given, out) for given, out in value)
        return tuple((tuple(map(numbered, given)), numbered(out)) for given, out in value)

    def texts(self, field: str) -> tuple[str, ...]:
        """One text or a list of them."""
        value = self.values.get(field) or []
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            self.refuse(field, value, "a text or a list of texts")
        return tuple(listed)

    def refuse(self, field: str, value: Any, expected: str) -> NoReturn:
        raise DataError(f"{self.where} {field}: got {repr(value)[:80]}; expected {expected}. Fix or remove the line.")


def _problem(row: Row, name: str) -> Problem:
    answer = row.needed("answer")
    if "####" in answer:
        row.refuse("answer", answer, "the answer alone, such as '2', without how it was found")
    return Problem(name, row.needed("question"), answer, row.number("tolerance"))


def _program(row: Row, name: str) -> Program:
    entry, tests, starter = row.text("entry"), row.text("tests"), row.text("starter")
    public, hidden = (row.cases(field, bool(entry)) for field in ("public", "hidden"))
    if not tests and not hidden:
        row.refuse("hidden", None, "hidden cases, or test code in `tests`, as something must decide")
    if tests and hidden:
        row.refuse("hidden", list(hidden), "none beside `tests`, as one of the two decides; write all in one of them")
    if tests and not entry:
        row.refuse("entry", entry, "the name of the function that `tests` tests")
    if entry and (not entry.isidentifier() or keyword.iskeyword(entry)):
        row.refuse("entry", entry, "the name of a function alone, such as 'add'")
    names = row.texts("names") or ((entry,) if tests else ())
    if tests:
        _refuse_idle(row, tests, {entry, *names})
    return Program(
        name,
        row.text("statement") if starter else row.needed("statement"),
        entry,
        starter,
        public,
        hidden,
        tests,
        row.text("setup"),
        names,
        row.text("reference"),
    )


def _refuse_idle(row: Row, tests: str, names: set[str]) -> None:
    """Refuse test code that no program can pass, or that tests none: what is no Python, or uses none of the names."""
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(tests)))
    except (SyntaxError, ValueError, RecursionError) as error:
        row.refuse("tests", tests, f"Python, which this is not ({first_line(error)})")
    used = {node.id if isinstance(node, ast.Name) else node.attr for node in nodes if isinstance(node, USES)}
    checks = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in nodes)
    if not checks and not used & names:
        row.refuse("tests", tests, f"asserts that use {' or '.join(sorted(names))}, or a `check(candidate)`")


def _article(row: Row, name: str) -> Article:
    return Article(name, row.text("title"), row.needed("text"), row.texts("references"))


MAKE: dict[Kind, Callable[[Row, str], Record]] = {"problem": _problem, "program": _program, "article": _article}


def load_user_file(path: str, kind: Kind, fields: Mapping[str, str]) -> tuple[Record, ...]:
    """The records of a file, in its order; repeated ones count once. Programs of one statement may have other tests.

    fields   a record's field: the file's field, where that has another name
    Raises ConfigError for fields that such records do not have, DataError for a file or a line that cannot be used.
    """
    for field in fields:
        if field not in KNOWN[kind]:
            raise ConfigError(
                f"settings.fields.{field}: a {kind} has no such field; expected some of {', '.join(KNOWN[kind])}. "
                f"Remove it.{nearest(field, KNOWN[kind])}"
            )
    return _load(path, kind, tuple(sorted(fields.items())), state_of([Path(path).expanduser()]))


@lru_cache(maxsize=16)
def _load(path: str, kind: Kind, fields: tuple[tuple[str, str], ...], _state: State) -> tuple[Record, ...]:
    file, names = Path(path).expanduser(), dict(fields)
    records: dict[tuple[Any, ...], Record] = {}
    lines: dict[tuple[Any, ...], int] = {}
    repeated = 0
    for number, values in rows_of(file):
        record = _record(values, kind, names, f"data: {file}, line {number}:", f"{file.stem}-{number}")
        item = (text_of(record), *(decided_by(record) if isinstance(record, Program) else ()))
        if item not in records:
            records[item], lines[item] = record, number
            continue
        if _content(records[item]) != _content(record):
            raise DataError(
                f"data: {file}, line {number}: asks what line {lines[item]} asks, with another answer; expected one "
                "answer a question. Remove one of the two lines."
            )
        repeated += 1
    if not records:
        raise DataError(f"data: {file} holds no items; expected one JSON object a line. Name another file.")
    if repeated:
        log.warning("data: %s repeats %d of its items; each counts once.", file, repeated)
    return tuple(records.values())


def _content(record: Record) -> dict[str, Any]:
    return {**vars(record), "id": ""}


def _record(values: Mapping[str, Any], kind: Kind, names: Mapping[str, str], where: str, name: str) -> Record:
    for field in (*NEEDED[kind], *names):
        if names.get(field, field) not in values:
            raise DataError(
                f"{where} got no field {names.get(field, field)!r} for {field}; got {', '.join(values) or 'none'}. "
                f"Fix the line, or name the file's own field with settings.fields, as in {{{field}: NAME}}."
            )
    taken = {field: values[names.get(field, field)] for field in KNOWN[kind] if names.get(field, field) in values}
    row = Row({field: value for field, value in taken.items() if value is not None}, where)
    return MAKE[kind](row, row.text("id", name))
