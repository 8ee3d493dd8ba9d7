"""Read untrusted files: regular files alone, up to a size, and JSON of limited nesting.

A named pipe or a device is never waited for. Every failure is an OSError with its reason in `strerror`, as for a file
that does not exist, or a ValueError about the content.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

MIB = 1 << 20
# Descriptions that people and libraries write: recipes, configurations, manifests.
DESCRIPTION = 16 * MIB
# One line of a file of rows or of a run's records.
LINE = 256 * MIB

# The fewest files and connections at once with which anything trains: the sandbox's programs alone take some dozen.
LEAST_DESCRIPTORS = 64


def open_untrusted(path: Path | str, flags: int = os.O_RDONLY, follow_links: bool = True) -> BinaryIO:
    """Open a regular file without waiting. Raises OSError for anything else, and for a link that is not to be followed.
    This is the one place where files of somebody else are opened."""
    flags |= os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        # A pipe without a writer would be waited for, and a terminal could become the process's own.
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    except ValueError as error:  # a NUL byte, or a character that no file name has
        raise OSError(errno.EINVAL, f"no name of a file ({error})", str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else "it is no regular file", str(path))
    return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "rb")


def read_bytes(path: Path | str, limit: int = DESCRIPTION) -> bytes:
    """Return the content of a regular file. Raises OSError, also for one of more than `limit` bytes."""
    with open_untrusted(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it holds more than {size_of(limit)}, the most that is read", str(path))
    return content


def read_text(path: Path | str, limit: int = DESCRIPTION) -> str:
    """Return the text of a regular file. Raises OSError, and UnicodeDecodeError for another encoding than UTF-8."""
    return read_bytes(path, limit).decode().replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path | str, limit: int = DESCRIPTION) -> Any:
    """Return the content of a JSON file. Raises OSError, and ValueError for one that is not JSON."""
    return parse_json(read_bytes(path, limit))


class LineTooLongError(ValueError):
    """A line of more bytes than are read."""


def lines_of(file: BinaryIO, limit: int = LINE) -> Iterator[bytes]:
    """Yield the lines of an open file, with their ends. Raises LineTooLongError at one of more than `limit` bytes."""
    while line := file.readline(limit + 1):
        if len(line) > limit:
            raise LineTooLongError(f"it holds more than {size_of(limit)}, the most that is read of one line")
        yield line


def parse_json(text: str | bytes, unique_keys: bool = False) -> Any:
    """Return the value of a JSON text, in UTF-8 with or without a byte order mark.

    Raises ValueError for any other text, with a message of one line such as `not JSON: it is empty`, and with
    `unique_keys` for an object that has a key twice, of which Python silently takes the last.
    """
    try:
        # Decoded here, as `json` would take bytes with zeros in them, as a power cut leaves, for another encoding.
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=_with_unique_keys if unique_keys else None)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ValueError("not JSON: it is nested too deeply") from None
    except ValueError as error:
        reason = str(error) if text.strip() else "it is empty"
        if "digits" in reason:  # Python's own advice is to raise its limit
            reason = f"a whole number of more than {sys.get_int_max_str_digits():,} digits"
        raise ValueError(f"not JSON: {reason}") from None


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        repeated = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"the key {repeated[:80]!r} stands twice")
    return mapping


def size_of(count: int) -> str:
    """Return a number of bytes in a readable unit: `16 MiB`."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 100 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.0f} PiB"


def raise_descriptor_limit(target: int = 65_536) -> int:
    """Raise this process's limit of open files as far as its user may, up to `target`, and return it. Shells give 1,024
    where the system allows many times that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = target if hard == resource.RLIM_INFINITY else min(target, hard)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return soft if soft != resource.RLIM_INFINITY else target
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def too_few_descriptors() -> str:
    """Return the error message for a process that met the limit of open files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = max(4_096, 4 * limit)
    return (
        f"descriptors: this process may have {limit:,} files and connections open at once, and needs more; expected "
        f"{target:,}. Run ulimit -n {target} in the shell before, or ask for fewer programs or episodes at once."
    )
