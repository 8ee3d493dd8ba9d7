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

from cadre.errors import RunError
from cadre.file_limits import MIB, LineTooLongError, lines_of, parse_json, size_of
from cadre.files import OpenRecord, explain_disk_errors, open_plain, path_exists, to_json, validate_record

# Of a file whose lines are held at once. In memory they take about four times as much.
MAX_BYTES = 512 * MIB


class DamagedLineError(RunError):
    """A complete line that does not hold what a run writes."""


def append(path: Path, record: Mapping[str, Any]) -> int:
    """Write one record after the last complete line; return the byte offset at which it begins. On a full disk the file
    stays as it was. Raises RunError."""
    line = (to_json(record) + "\n").encode()
    with explain_disk_errors(path), open_plain(path, flags=os.O_RDWR | os.O_CREAT) as file:
        end = _complete_length(file)
        descriptor = file.fileno()
        os.ftruncate(descriptor, end)
        os.lseek(descriptor, end, os.SEEK_SET)
        try:
            written = 0
            while written < len(line):
                written += os.write(descriptor, line[written:])
        except OSError:
            # Half a line would be skipped by readers, but its bytes would count against the disk.
            os.ftruncate(descriptor, end)
            raise
    return end


def complete_length(path: Path, block: int = 1 << 16) -> int:
    """Return the number of bytes up to and including the last newline."""
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


def records(path: Path, model: type = OpenRecord) -> Iterator[dict[str, Any]]:
    """Yield every complete line as an object that fits the model; nothing if there is no file. Raises RunError that
    names a broken line."""
    for _, record in records_with_offsets(path, 0, model):
        yield record


def read_all(path: Path, model: type = OpenRecord) -> list[dict[str, Any]]:
    """Return all records as a list. Raises RunError for a file that is too large for that, too."""
    check_size(path)
    return list(records(path, model))


def check_size(path: Path) -> None:
    """Raise RunError if the lines of a file would fill the memory if they were held at once."""
    if path_exists(path) and (size := os.lstat(path).st_size) > MAX_BYTES:
        expected = f"expected at most {size_of(MAX_BYTES)} where all lines are read at once"
        raise RunError(f"{path}: it holds {size_of(size)}; {expected}. Restore it from a copy.")


def records_with_offsets(path: Path, start: int = 0, model: type = OpenRecord) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (byte offset after the line, object) for every complete line from byte `start` on, where a line begins."""
    if not path_exists(path):
        return
    number, end = 0, start
    try:
        with open_plain(path) as file:
            file.seek(start)
            for line in lines_of(file):
                number += 1
                if not line.endswith(b"\n"):
                    return
                record: dict[str, Any] = parse_json(line)
                validate_record(record, model)
                end += len(line)
                yield end, record
    except LineTooLongError as error:
        raise RunError(f"{path}, line {number + 1}: {error}. Restore the file, or remove that line.") from None
    except ValueError as error:
        advice = "Restore the file from a copy. With --resume such lines are left out and named."
        got = f"{path}, line {number}: {error}"
        raise DamagedLineError(f"{got}; expected one object a line, as the run wrote it. {advice}") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); expected what the run wrote. Restore it.") from None


def truncate(path: Path, is_cut: Callable[[dict[str, Any]], bool], model: type = OpenRecord) -> None:
    """Cut the file off before the first line for which `is_cut` holds. In place: no copy, so no disk space is
    needed."""
    if not path_exists(path):
        return
    length = 0
    for end, record in records_with_offsets(path, 0, model):
        if is_cut(record):
            break
        length = end
    with open_plain(path, flags=os.O_RDWR) as file:
        os.ftruncate(file.fileno(), length)


def repair(path: Path, model: type) -> list[str]:
    """Remove the lines that do not fit the model; return what was wrong with each, as `line 3: it is empty`. The file
    as it was is kept beside it, as `NAME.damaged` or, if that exists, `NAME.damaged-2` and so on. What follows the last
    newline was cut off by a crash and is no line."""
    if not path_exists(path):
        return []
    faults, valid_lines, number = [], [], 0
    with open_plain(path) as file:
        try:
            for number, line in enumerate(lines_of(file), 1):
                if line.endswith(b"\n"):
                    try:
                        validate_record(parse_json(line), model)
                        valid_lines.append(line)
                    except ValueError as error:
                        faults.append(f"line {number}: {error}")
        except LineTooLongError as error:  # it hides all that follows it, which is lost too
            faults.append(f"line {number + 1}: {error}")
    if faults:
        fresh = path.with_name(f"{path.name}.new")
        names = (f"{path.name}.damaged" + (f"-{number}" if number > 1 else "") for number in count(1))
        copy = next(free for free in map(path.with_name, names) if not path_exists(free))
        with explain_disk_errors(path):
            fresh.unlink(missing_ok=True)
            fresh.write_bytes(b"".join(valid_lines))
            os.link(path, copy)
            fresh.replace(path)
    return faults
