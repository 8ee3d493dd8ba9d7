"""Rows of a data file, by its ending: JSON lines, a JSON list, or Parquet."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cadre.data.jsonl import refuse_halves, rows_of
from cadre.errors import DataError, first_line
from cadre.file_limits import open_regular, parse_json, read_bytes

ENDINGS = (".jsonl", ".parquet", ".json")
# Of a list in JSON, which is held in memory whole.
MOST_BYTES = 2 << 30


def rows_in(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, row) of every row. Raises DataError for a file that cannot be read as its ending says."""
    if file.suffix == ".parquet":
        return ((f"{file}, row {index}", row) for index, row in enumerate(_parquet(file)))
    if file.suffix == ".json":
        return ((f"{file}, item {index}", row) for index, row in enumerate(_listed(file)))
    return ((f"{file}, line {line}", row) for line, row in rows_of(file))


def _parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(
            f"data: reading {file} needs the package pyarrow; got none. pip install 'cadre-rl[data]', or convert the "
            "file to JSON lines."
        ) from None
    try:
        with open_regular(file) as held, parquet.ParquetFile(held) as opened:
            for batch in opened.iter_batches(1_000):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise DataError(
            f"data: {file} cannot be read as Parquet: {first_line(error)}. Fetch or write it again."
        ) from None


def _listed(file: Path) -> list[Mapping[str, Any]]:
    try:
        rows = parse_json(read_bytes(file, MOST_BYTES).removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        raise DataError(f"data: {file} cannot be read ({error.strerror}). Fix the path or the file.") from None
    except ValueError as error:
        raise DataError(f"data: {file} cannot be read as JSON ({error}). Fix the file.") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"data: {file} holds no list of objects; expected one, or JSON lines. Fix the file.")
    for index, row in enumerate(rows):
        refuse_halves(row, f"data: {file}, item {index}:")
    return rows
