"""Rows of data files: JSON lines, a JSON list, Parquet, or CSV. An error names the file, the row, and what to do."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cadre.errors import DataError, first_line
from cadre.file_limits import LineTooLongError, lines_of, open_untrusted, parse_json, read_bytes
from cadre.plugins import package

ENDINGS = (".jsonl", ".parquet", ".json")
# A JSON list is held in memory whole.
MAX_JSON_BYTES = 2 << 30
FileState = tuple[tuple[str, int, int], ...]


def file_state(files: Iterable[Path]) -> FileState:
    """Return (name, time of change, size) of the files that exist: the cache key of what was read from them."""
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def read_rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (position, row) of every row. Raises DataError for a file that cannot be read as its ending says."""
    if file.suffix not in READERS:
        yield from ((f"{file}, line {line}", row) for line, row in read_json_lines(file))
        return
    (read, unit), index = READERS[file.suffix], -1
    try:
        for index, row in enumerate(read(file)):
            yield f"{file}, {unit} {index}", row
    except (OSError, ValueError, NotImplementedError, csv.Error) as error:
        got = f"{file} cannot be read as {file.suffix[1:]} after {index + 1} rows ({first_line(error)})"
        raise DataError(f"data: {got}; expected rows. Fix the file, or fetch it again.") from None


def read_json_lines(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (line number, row) of every line that is not empty, counted from 1.

    Raises DataError for a file that cannot be read, and for a line that is not UTF-8, no JSON object, or holds half a
    character (a lone surrogate), which no tokenizer takes.
    """
    number = 0
    try:
        with open_untrusted(file) as opened:
            for number, line in enumerate(lines_of(opened), 1):
                if line.strip():
                    yield number, _parse_row(line)
    except LineTooLongError as error:
        raise DataError(f"data: {file}, line {number + 1}: {error}; expected an object. Fix the file.") from None
    except ValueError as error:
        raise DataError(f"data: {file}, line {number}: {error}") from None
    except OSError as error:
        raise DataError(f"data: {file} cannot be read: {error.strerror}. Fix the path or its permissions.") from None


def _parse_row(line: bytes) -> Mapping[str, Any]:
    """Return the object in a line. Raises ValueError with what it holds, what is expected, and what to do."""
    try:
        row = parse_json(line.rstrip(b"\n"), unique_keys=True)
    except ValueError as error:
        raise ValueError(f"it is {error}; expected one JSON object. Fix or remove the line.") from None
    if not isinstance(row, dict):
        raise ValueError(f"got {type(row).__name__}; expected one JSON object. Fix or remove the line.")
    _reject_surrogates(row)
    return row


def _reject_surrogates(row: Mapping[str, Any]) -> None:
    """Raise ValueError for a row with half a character, which JSON can spell and no tokenizer takes."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("got half of a character (a lone surrogate); expected whole ones. Fix it.") from None


def _read_parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    parquet = package("pyarrow.parquet", "data", "data:")
    with open_untrusted(file) as opened, parquet.ParquetFile(opened) as table:
        for batch in table.iter_batches(1_000):
            yield from batch.to_pylist()


def _read_csv(file: Path) -> Iterator[Mapping[str, Any]]:
    with open_untrusted(file) as opened, io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as text:
        reader = csv.DictReader(text, restkey="", strict=True)
        for row in reader:
            if "" in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has another number of columns than the first")
            yield row


def _read_json_list(file: Path) -> Iterator[Mapping[str, Any]]:
    rows = parse_json(read_bytes(file, MAX_JSON_BYTES), unique_keys=True)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it holds no list of objects")
    for row in rows:
        _reject_surrogates(row)
        yield row


# By ending: what yields the rows, and what a position is called.
READERS = {".parquet": (_read_parquet, "row"), ".json": (_read_json_list, "item"), ".csv": (_read_csv, "row")}
