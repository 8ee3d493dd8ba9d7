"""Append-only files of JSON lines: whole lines or none, whatever stops the process.

A line counts from its newline on. What follows the last newline was cut off by a crash: it is never read, and the next
`append` takes its place. What this leaves out: locking (one run has one writer, see `cadre.experiment.lock`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cadre.errors import RunError
from cadre.experiment.to_disk import writing
from cadre.file_limits import lines_of, open_regular, parse_json


def append(path: Path, record: Mapping[str, Any]) -> int:
    """Write one record behind the last whole line; returns the byte at which it begins.

    On a full disk the file is as it was. Raises RunError.
    """
    line = (json.dumps(record, allow_nan=True) + "\n").encode()
    with writing(path), path.open("ab") as file:
        end = whole_length(path)
        _write_whole(file.fileno(), line, end)
    return end


def _write_whole(descriptor: int, line: bytes, end: int) -> None:
    """Write `line` at byte `end`, and cut the file back to `end` where that fails half way."""
    os.ftruncate(descriptor, end)
    try:
        written = 0
        while written < len(line):
            written += os.write(descriptor, line[written:])
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def whole_length(path: Path, block: int = 1 << 16) -> int:
    """Bytes up to and including the last newline."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        while position > 0:
            start = max(0, position - block)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            position = start
    return 0


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line as an object; none where there is no file. Raises RunError that names a broken line."""
    for _, record in numbered(path):
        yield record


def numbered(path: Path, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every whole line from byte `start` on, where one begins, as (byte after it, object)."""
    if not path.exists():
        return
    end = start
    number = 0
    try:
        with open_regular(path) as file:
            file.seek(start)
            for number, line in enumerate(lines_of(file), 1):
                end += len(line)
                if line.endswith(b"\n"):
                    yield end, _parsed(path, number, line)
    except ValueError as error:
        raise RunError(f"{path}, line {number + 1}: {error}. Restore the file, or remove that line.") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); expected what the run wrote. Restore it.") from None


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise RunError(
            f"{path}, line {number}: not JSON ({error}); expected one object a line, as the run wrote it. The file was "
            "changed or damaged: restore it, or remove the lines from that one on and resume."
        ) from None
    if not isinstance(record, dict):
        raise RunError(f"{path}, line {number}: got {type(record).__name__}; expected an object. Restore the file.")
    return record


def cut(path: Path, begins: Callable[[dict[str, Any]], bool]) -> None:
    """Cut the file off before the first line for which `begins` holds, in place: no copy, so no space is needed."""
    if not path.exists():
        return
    kept = 0
    for end, record in numbered(path):
        if begins(record):
            break
        kept = end
    os.truncate(path, kept)
