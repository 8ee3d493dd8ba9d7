"""Append-only files of JSON lines: whole lines or none, whatever stops the process.

A line counts from its newline on. What follows the last newline was cut off by a crash: it is never read, and the next
`append` overwrites it. There is no locking here: one run has one writer (`cadre.runs.folder.RunLock`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel

from cadre.errors import RunError
from cadre.file_limits import MIB, lines_of, size_of
from cadre.files import OpenRecord, explain_disk_errors, load_json, open_plain, path_exists, to_json, validate_record

# Of a file whose lines are held at once, which take some four times as much in memory.
MAX_BYTES = 512 * MIB


def append(path: Path, record: Mapping[str, Any]) -> int:
    """Write one record behind the last whole line; returns the byte at which it begins.

    On a full disk the file is as it was. Raises RunError.
    """
    line = (to_json(record) + "\n").encode()
    with explain_disk_errors(path), open_plain(path, flags=os.O_RDWR | os.O_CREAT) as file:
        end = _complete_length(file)
        _write_line(file.fileno(), line, end)
    return end


def _write_line(descriptor: int, line: bytes, end: int) -> None:
    """Write `line` at byte `end`, and cut the file back to `end` where that fails half way."""
    os.ftruncate(descriptor, end)
    os.lseek(descriptor, end, os.SEEK_SET)
    try:
        written = 0
        while written < len(line):
            written += os.write(descriptor, line[written:])
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def complete_length(path: Path, block: int = 1 << 16) -> int:
    """Bytes up to and including the last newline."""
    with open_plain(path) as file:
        return _complete_length(file, block)


def _complete_length(file: BinaryIO, block: int = 1 << 16) -> int:
    position = file.seek(0, os.SEEK_END)
    while position > 0:
        start = max(0, position - block)
        file.seek(start)
        newline = file.read(position - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0


def records(path: Path, model: type[BaseModel] = OpenRecord) -> Iterator[dict[str, Any]]:
    """Every whole line as an object that fits the model; none where there is no file. Raises RunError that names a
    broken line."""
    for _, record in records_with_offsets(path, 0, model):
        yield record


def read_all(path: Path, model: type[BaseModel] = OpenRecord) -> list[dict[str, Any]]:
    """Return what `records` yields, at once. Raises RunError for a file that is too large for that, too."""
    check_size(path)
    return list(records(path, model))


def check_size(path: Path) -> None:
    """Raises RunError where the lines of a file would fill the memory if they were held at once."""
    if path_exists(path) and (size := os.lstat(path).st_size) > MAX_BYTES:
        raise RunError(
            f"{path}: it holds {size_of(size)}; expected at most {size_of(MAX_BYTES)} where all lines are read at "
            "once, which is more than 100,000 steps. Restore it from a copy, or read its lines with a program of "
            "your own."
        )


def records_with_offsets(
    path: Path, start: int = 0, model: type[BaseModel] = OpenRecord
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every whole line from byte `start` on, where one begins, as (byte after it, object)."""
    if not path_exists(path):
        return
    end = start
    number = 0
    try:
        with open_plain(path) as file:
            file.seek(start)
            for number, line in enumerate(lines_of(file), 1):
                end += len(line)
                if line.endswith(b"\n"):
                    yield end, _parse_line(path, number, line, model)
    except ValueError as error:
        raise RunError(f"{path}, line {number + 1}: {error}. Restore the file, or remove that line.") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); expected what the run wrote. Restore it.") from None


def _parse_line(path: Path, number: int, line: bytes, model: type[BaseModel]) -> dict[str, Any]:
    try:
        record: dict[str, Any] = load_json(line)
        validate_record(record, model)
    except ValueError as error:
        raise RunError(
            f"{path}, line {number}: {error}; expected one object a line, as the run wrote it. The file was changed or "
            "damaged: restore it from a copy. With --resume such lines are left out and named."
        ) from None
    return record


def truncate(path: Path, begins: Callable[[dict[str, Any]], bool], model: type[BaseModel] = OpenRecord) -> None:
    """Cut the file off before the first line for which `begins` holds, in place: no copy, so no space is needed."""
    if not path_exists(path):
        return
    kept = 0
    for end, record in records_with_offsets(path, 0, model):
        if begins(record):
            break
        kept = end
    with open_plain(path, flags=os.O_RDWR) as file:
        os.ftruncate(file.fileno(), kept)


def repair(path: Path, model: type[BaseModel]) -> list[str]:
    """Leave out the lines that do not fit the model; returns what was wrong with each, `line 3: it is empty`.

    The file as it was is kept beside it, as `NAME.damaged` or, where that is taken, `NAME.damaged-2` and so on. What
    follows the last newline was cut off by a crash and is no line.
    """
    if not path_exists(path):
        return []
    wrong, kept = [], []
    with open_plain(path) as file:
        try:
            for number, line in enumerate(lines_of(file), 1):
                if not line.endswith(b"\n"):
                    break
                if (why := _find_fault(line, model)) is None:
                    kept.append(line)
                else:
                    wrong.append(f"line {number}: {why}")
        except ValueError as error:  # a line without end: what follows it is lost too
            wrong.append(f"line {len(kept) + len(wrong) + 1}: {error}")
    if wrong:
        fresh = path.with_name(f"{path.name}.new")
        with explain_disk_errors(path):
            fresh.unlink(missing_ok=True)
            fresh.write_bytes(b"".join(kept))
            os.link(path, _damaged_name(path))
            fresh.replace(path)
    return wrong


def _find_fault(line: bytes, model: type[BaseModel]) -> str | None:
    """What keeps a line from being a record of the model; None where it is one."""
    try:
        validate_record(load_json(line), model)
    except ValueError as error:
        return str(error)
    return None


def _damaged_name(path: Path) -> Path:
    names = (f"{path.name}.damaged" + (f"-{number}" if number > 1 else "") for number in count(1))
    return next(free for free in map(path.with_name, names) if not path_exists(free))
