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
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from cadre.errors import ConfigError, DataError, first_line, nearest
from cadre.rows import FileState, file_state, read_json_lines
from cadre_tasks.data.public_sets import BOX, with_integer_keys
from cadre_tasks.data.records import (
    RECORDS,
    CodingProblem,
    Kind,
    Problem,
    Record,
    check_fields,
    prompt_text,
    solution_key,
)

log = logging.getLogger("cadre_tasks.data")
ENDING = ".jsonl"
WORD = re.compile(r"[^\W\d_]{2,}")
# Fields that a record of each kind must have; for programs, one of `tests` and `hidden` besides.
REQUIRED_FIELDS: dict[Kind, tuple[str, ...]] = {
    "problem": ("question", "answer"),
    "program": ("statement",),
    "article": ("text",),
}


def is_user_file(name: str) -> bool:
    """Return True if a data set is named by its file."""
    return name.endswith(ENDING)


def load_user_file(path: str, kind: Kind, fields: Mapping[str, str]) -> tuple[Record, ...]:
    """Return the records of a file, in its order; repeated ones count once. Equal statements may have other tests.

    fields   a record's field: the file's field, where that has another name
    Raises ConfigError for fields that such records do not have, DataError for a file or a line that cannot be used.
    """
    known = list(RECORDS[kind].__dataclass_fields__)
    for field in fields:
        if field not in known:
            raise ConfigError(
                f"settings.fields.{field}: a {kind} has no such field; expected "
                f"{', '.join(known)}.{nearest(field, known)}"
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
        row = {field: raw.get(renamed.get(field, field)) for field in RECORDS[kind].__dataclass_fields__}
        try:
            record = _make_record(kind, f"{file.stem}-{number}", row)
        except ValueError as error:
            raise DataError(f"{where} {error}. Fix or remove the line.") from None

        item = (prompt_text(record), *(solution_key(record) if isinstance(record, CodingProblem) else ()))
        if item not in records:
            records[item], lines[item] = record, number
            continue
        if {**vars(records[item]), "id": ""} != {**vars(record), "id": ""}:
            raise DataError(
                f"{where} asks what line {lines[item]} asks, with another answer. Remove one of the two lines."
            )
        repeated += 1
    if not records:
        raise DataError(f"data: {file} holds no items; expected one JSON object a line. Name another file.")
    if repeated:
        log.warning("data: %s repeats %d of its items; each counts once.", file, repeated)
    return tuple(records.values())


def _make_record(kind: Kind, name: str, row: Mapping[str, Any]) -> Record:
    """Return the record of a row's values by field. Raises ValueError that names a field by which nothing is judged."""
    is_call, values = bool(row.get("entry")), dict[str, Any](id=name, **dict.fromkeys(REQUIRED_FIELDS[kind], ""))
    if kind == "article":
        values["title"] = ""
    for field, value in row.items():
        if value in (None, "", []):
            continue
        if field in ("names", "references"):
            value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
        elif field in ("public", "hidden"):
            value = tuple(_read_case(case, is_call) for case in value) if isinstance(value, list) else value
        elif field != "tolerance" and type(value) in (int, float) and math.isfinite(value):
            value = str(value)  # numbers are written out
        values[field] = value
    record = RECORDS[kind](**values)
    check_fields(record)
    for field in REQUIRED_FIELDS[kind]:
        if not values[field].strip() and not values.get("starter"):
            _reject(field, values[field], "a text that is not empty")
    if isinstance(record, CodingProblem):
        return _check_program(record)
    if isinstance(record, Problem):
        answer = record.answer
        box = BOX.search(answer)
        if "####" in answer or (box is not None and WORD.search(answer, 0, box.start())):
            _reject("answer", answer, "the answer alone, such as '2', without how it was found")
    return record


def _reject(field: str, value: Any, expected: str) -> NoReturn:
    raise ValueError(f"{field}: got {repr(value)[:80]}; expected {expected}")


def _read_case(case: Any, is_call: bool) -> Any:
    """Return a case of JSON as that of a record, with integer keys of tables; what is none as it is."""
    if not isinstance(case, list) or len(case) != 2:
        return case
    if is_call and isinstance(case[0], list):
        return tuple(map(with_integer_keys, case[0])), with_integer_keys(case[1])
    return tuple(case)


def _check_program(program: CodingProblem) -> CodingProblem:
    """Return a program with the names that its tests use. Raises ValueError if nothing decides, or no program could
    pass: test code that is no Python, or that uses no name."""
    entry, tests = program.entry, program.tests
    if not tests and not program.hidden:
        _reject("hidden", None, "hidden cases, or test code in `tests`, as something must decide")
    if tests and program.hidden:
        _reject("hidden", program.hidden, "none beside `tests`, as one of the two decides; write all in one of them")
    if tests and not entry:
        _reject("entry", entry, "the name of the function that `tests` tests")
    if entry and (not entry.isidentifier() or keyword.iskeyword(entry)):
        _reject("entry", entry, "the name of a function alone, such as 'add'")
    if not tests:
        return program
    program = replace(program, names=program.names or (entry,))
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(tests)))
    except (SyntaxError, ValueError, RecursionError) as error:
        _reject("tests", tests, f"Python, which this is not ({first_line(error)})")
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    has_check = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in nodes)
    names = {entry, *program.names}
    if not has_check and not used & names:
        _reject("tests", tests, f"asserts that use {' or '.join(sorted(names))}, or a `check(candidate)`")
    return program
