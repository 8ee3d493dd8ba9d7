"""JSON lines: every row with its line, and what is wrong with a line in one paragraph."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from cadre.errors import DataError
from cadre.file_limits import lines_of, open_regular, parse_json

State = tuple[tuple[str, int, int], ...]


def state_of(files: Iterable[Path]) -> State:
    """(name, time of change, size) of the files that are there: what is kept of files is kept by it, so that one that
    has changed is read again."""
    told = [(str(file), file.stat()) for file in files if file.is_file()]
    return tuple((name, about.st_mtime_ns, about.st_size) for name, about in told)


def rows_of(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, row) of every line that is not empty, lines counted from 1.

    Raises DataError for a file that cannot be read, and for a line that is not UTF-8, no JSON object, or holds half a
    character (a lone surrogate), which no tokenizer takes.
    """
    try:
        with open_regular(file) as opened:
            for number, line in enumerate(_lines(opened, file), 1):
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield number, _row(line.rstrip(b"\n"), f"data: {file}, line {number}:")
    except OSError as error:
        raise DataError(f"data: {file} cannot be read: {error.strerror}. Fix the path or its permissions.") from None


def _lines(opened: BinaryIO, file: Path) -> Iterator[bytes]:
    number = 0
    try:
        for line in lines_of(opened):
            number += 1
            yield line
    except ValueError as error:
        raise DataError(
            f"data: {file}, line {number + 1}: {error}; expected one object a line. Fix the file."
        ) from None


def _row(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        row = parse_json(line.decode())
    except UnicodeDecodeError as error:
        raise DataError(f"{where} got the byte {line[error.start]:#x}; expected UTF-8. Convert the file.") from None
    except ValueError as error:
        raise DataError(f"{where} got no JSON ({error}); expected one object. Fix or remove the line.") from None
    if not isinstance(row, dict):
        raise DataError(f"{where} got {type(row).__name__}; expected one JSON object. Fix or remove the line.")
    refuse_halves(row, where)
    return row


def refuse_halves(row: Mapping[str, Any], where: str) -> None:
    """Raise DataError for a row that holds half a character, which JSON can spell."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataError(f"{where} got half of a character (a lone surrogate); expected whole ones. Fix it.") from None
