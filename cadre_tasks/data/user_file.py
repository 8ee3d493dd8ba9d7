"""The user's own data: a file of JSON lines, read by the names of its fields.

A record's fields are read from fields of the same names, or from those that `settings.fields` gives:
`{question: prompt, answer: gold}` reads the question from `prompt`. Other fields of the file are ignored.
"""

from __future__ import annotations

import ast
import keyword
import logging
import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from cadre.errors import ConfigError, DataError, first_line, nearest
from cadre.rows import FileState, file_state, read_json_lines
from cadre_tasks.data.public_sets import BOX, with_integer_keys
from cadre_tasks.data.records import Article, CodingProblem, Kind, Problem, Record, prompt_text, solution_key

log = logging.getLogger("cadre_tasks.data")
ENDING = ".jsonl"
WORD = re.compile(r"[^\W\d_]{2,}")
# Fields that a record of each kind must have; for programs, one of `tests` and `hidden` besides.
REQUIRED_FIELDS: dict[Kind, tuple[str, ...]] = {
    "problem": ("question", "answer"),
    "program": ("statement",),
    "article": ("text",),
}
FIELDS: dict[Kind, tuple[str, ...]] = {
    "problem": ("id", "question", "answer", "tolerance"),
    "program": ("id", "statement", "entry", "starter", "public", "hidden", "tests", "setup", "names", "reference"),
    "article": ("id", "title", "text", "references"),
}


def is_user_file(name: str) -> bool:
    """Return True if a data set is named by its file."""
    return name.endswith(ENDING)


def load_user_file(path: str, kind: Kind, fields: Mapping[str, str]) -> tuple[Record, ...]:
    """Return the records of a file, in its order; repeated ones count once. Equal statements may have other tests.

    fields   a record's field: the file's field, where that has another name
    Raises ConfigError for fields that such records do not have, DataError for a file or a line that cannot be used.
    """
    for field in fields:
        if field not in FIELDS[kind]:
            raise ConfigError(
                f"settings.fields.{field}: a {kind} has no such field; expected some of {', '.join(FIELDS[kind])}. "
                f"Remove it.{nearest(field, FIELDS[kind])}"
            )
    return _load(path, kind, tuple(sorted(fields.items())), file_state([Path(path).expanduser()]))


@lru_cache(maxsize=16)
def _load(path: str, kind: Kind, fields: tuple[tuple[str, str], ...], _state: FileState) -> tuple[Record, ...]:
    file, renamed = Path(path).expanduser(), dict(fields)
    records: dict[tuple[Any, ...], Record] = {}
    lines: dict[tuple[Any, ...], int] = {}
    repeated = 0
    for number, raw in read_json_lines(file):
        where = f"data: {file}, line {number}:"
        for field in (*REQUIRED_FIELDS[kind], *renamed):
            if renamed.get(field, field) not in raw:
                raise DataError(
                    f"{where} got no field {renamed.get(field, field)!r} for {field}; got {', '.join(raw) or 'none'}. "
                    f"Fix the line, or name the file's own field with settings.fields, as in {{{field}: NAME}}."
                )
        values = {field: raw.get(renamed.get(field, field)) for field in FIELDS[kind]}
        row = UserRow({field: value for field, value in values.items() if value is not None}, where)
        record = MAKERS[kind](row, row.text("id", f"{file.stem}-{number}"))

        item = (prompt_text(record), *(solution_key(record) if isinstance(record, CodingProblem) else ()))
        if item not in records:
            records[item], lines[item] = record, number
            continue
        if {**vars(records[item]), "id": ""} != {**vars(record), "id": ""}:
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


@dataclass(frozen=True)
class UserRow:
    """A row of a file under the names of a record's fields, and its position for errors."""

    values: Mapping[str, Any]
    where: str

    def text(self, field: str, default: str = "") -> str:
        """Return a text; numbers are written out. Raises DataError for anything else."""
        value = self.values.get(field, default)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value in (math.inf, -math.inf):
            self.reject(field, value, "a text")
        if value != value:  # NaN, which tables write for a missing cell
            self.reject(field, value, "a text, where NaN is none")
        return str(value)

    def required_text(self, field: str) -> str:
        """Return a text that is not empty."""
        text = self.text(field)
        if not text.strip():
            self.reject(field, text, "a text that is not empty")
        return text

    def number(self, field: str) -> float:
        """Return a number that is not negative, 0 by default."""
        value = self.values.get(field, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            self.reject(field, value, "a number from 0 on")
        return float(value)

    def cases(self, field: str, is_function: bool) -> tuple[tuple[Any, Any], ...]:
        """Return pairs of texts for a script, of arguments and value for a function, with integer keys of tables."""
        value = self.values.get(field) or []
        input_type: type = list if is_function else str
        is_pairs = isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
        if not is_pairs or not all(
            isinstance(case_input, input_type) and (is_function or isinstance(output, str))
            for case_input, output in value
        ):
            form = "[[arguments, ...], value]" if is_function else "[stdin, stdout]"
            self.reject(field, value, f"a list of pairs {form}")
        if not is_function:
            return tuple((case_input, output) for case_input, output in value)
        return tuple(
            (tuple(map(with_integer_keys, case_input)), with_integer_keys(output)) for case_input, output in value
        )

    def texts(self, field: str) -> tuple[str, ...]:
        """Return one text or a list of them as a tuple."""
        value = self.values.get(field) or []
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            self.reject(field, value, "a text or a list of texts")
        return tuple(texts)

    def reject(self, field: str, value: Any, expected: str) -> NoReturn:
        raise DataError(f"{self.where} {field}: got {repr(value)[:80]}; expected {expected}. Fix or remove the line.")


def _make_problem(row: UserRow, name: str) -> Problem:
    answer = row.required_text("answer")
    box = BOX.search(answer)
    if "####" in answer or (box is not None and WORD.search(answer, 0, box.start())):
        row.reject("answer", answer, "the answer alone, such as '2', without how it was found")
    return Problem(name, row.required_text("question"), answer, row.number("tolerance"))


def _make_program(row: UserRow, name: str) -> CodingProblem:
    entry, tests, starter = row.text("entry"), row.text("tests"), row.text("starter")
    public, hidden = (row.cases(field, bool(entry)) for field in ("public", "hidden"))
    if not tests and not hidden:
        row.reject("hidden", None, "hidden cases, or test code in `tests`, as something must decide")
    if tests and hidden:
        row.reject("hidden", list(hidden), "none beside `tests`, as one of the two decides; write all in one of them")
    if tests and not entry:
        row.reject("entry", entry, "the name of the function that `tests` tests")
    if entry and (not entry.isidentifier() or keyword.iskeyword(entry)):
        row.reject("entry", entry, "the name of a function alone, such as 'add'")
    names = row.texts("names") or ((entry,) if tests else ())
    if tests:
        _validate_tests(row, tests, {entry, *names})
    return CodingProblem(
        name,
        row.text("statement") if starter else row.required_text("statement"),
        entry,
        starter,
        public,
        hidden,
        tests,
        row.text("setup"),
        names,
        row.text("reference"),
    )


def _validate_tests(row: UserRow, tests: str, names: set[str]) -> None:
    """Reject test code that no program can pass, as it is no Python, or that tests nothing, as it uses no name."""
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(tests)))
    except (SyntaxError, ValueError, RecursionError) as error:
        row.reject("tests", tests, f"Python, which this is not ({first_line(error)})")
    used_names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    }
    has_check = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in nodes)
    if not has_check and not used_names & names:
        row.reject("tests", tests, f"asserts that use {' or '.join(sorted(names))}, or a `check(candidate)`")


def _make_article(row: UserRow, name: str) -> Article:
    return Article(name, row.text("title"), row.required_text("text"), row.texts("references"))


MAKERS: dict[Kind, Callable[[UserRow, str], Record]] = {
    "problem": _make_problem,
    "program": _make_program,
    "article": _make_article,
}
