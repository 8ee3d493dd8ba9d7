"""Rows of data files: JSON lines, a JSON list, or Parquet. An error names the file, the row, and what to do."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cadre.errors import DataError, first_line
from cadre.file_limits import LineTooLongError, open_regular, parse_json, read_bytes
from cadre.files import iterate_json_lines
from cadre.plugins import install_command

ENDINGS = (".jsonl", ".parquet", ".json")
# A JSON list is held in memory whole.
MAX_JSON_BYTES = 2 << 30
FileState = tuple[tuple[str, int, int], ...]


def file_state(files: Iterable[Path]) -> FileState:
    """Return (name, time of change, size) of the files that exist: the cache key of what was read from them."""
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def read_rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return (position, row) of every row. Raises DataError for a file that cannot be read as its ending says."""
    if file.suffix == ".parquet":
        return ((f"{file}, row {index}", row) for index, row in enumerate(_read_parquet(file)))
    if file.suffix == ".json":
        return ((f"{file}, item {index}", row) for index, row in enumerate(_read_json_list(file)))
    return ((f"{file}, line {line}", row) for line, row in read_json_lines(file))


def read_json_lines(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (line number, row) of every line that is not empty, counted from 1.

    Raises DataError for a file that cannot be read, and for a line that is not UTF-8 or no JSON object.
    """
    try:
        with open_regular(file) as opened:
            for line in iterate_json_lines(opened, _parse_row, skip_bom=True):
                if line.error is None:
                    yield line.number, line.value
                elif isinstance(line.error, LineTooLongError):
                    raise DataError(
                        f"data: {file}, line {line.number}: {line.error}; expected one object a line. Fix the file."
                    )
                elif line.content.strip():
                    raise DataError(f"data: {file}, line {line.number}: {line.error}")
    except OSError as error:
        raise DataError(f"data: {file} cannot be read: {error.strerror}. Fix the path or its permissions.") from None


def _parse_row(line: bytes) -> Mapping[str, Any]:
    """Return the object in a line. Raises ValueError with what it holds, what is expected, and what to do."""
    try:
        row = parse_json(line.rstrip(b"\n").decode(), unique_keys=True)
    except UnicodeDecodeError as error:
        raise ValueError(f"got the byte {line[error.start]:#x}; expected UTF-8. Convert the file.") from None
    except ValueError as error:
        raise ValueError(f"got no JSON ({error}); expected one object. Fix or remove the line.") from None
    if not isinstance(row, dict):
        raise ValueError(f"got {type(row).__name__}; expected one JSON object. Fix or remove the line.")
    return row


def _read_parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(
            f"data: reading {file} needs the package pyarrow; got none. Run {install_command('data')}, or convert "
            "the file to JSON lines."
        ) from None
    try:
        with open_regular(file) as opened, parquet.ParquetFile(opened) as table:
            for batch in table.iter_batches(1_000):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise DataError(
            f"data: {file} cannot be read as Parquet: {first_line(error)}. Fetch or write it again."
        ) from None


def _read_json_list(file: Path) -> list[Mapping[str, Any]]:
    try:
        rows = parse_json(read_bytes(file, MAX_JSON_BYTES).removeprefix(codecs.BOM_UTF8), unique_keys=True)
    except OSError as error:
        raise DataError(f"data: {file} cannot be read ({error.strerror}). Fix the path or the file.") from None
    except ValueError as error:
        raise DataError(f"data: {file} cannot be read as JSON ({error}). Fix the file.") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"data: {file} holds no list of objects; expected one, or JSON lines. Fix the file.")
    return rows
