"""Read files that may hold anything: regular files alone, up to a size, and JSON that is not nested without end.

A named pipe or a device is never waited for. Everything that goes wrong is an OSError whose `strerror` says what, as
for a file that does not exist, or a ValueError about what the file holds. What this leaves out: the content's meaning.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

MIB = 1 << 20
# Descriptions that people and libraries write: recipes, configurations, manifests.
DESCRIPTION = 16 * MIB
# One line of a file of rows or of a run's records.
LINE = 256 * MIB

# Files and connections at once without which nothing trains: the programs of the sandbox alone take some dozen.
LEAST_DESCRIPTORS = 64

KINDS: dict[str, Callable[[int], bool]] = {
    "a folder": stat.S_ISDIR,
    "a named pipe": stat.S_ISFIFO,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
    "a socket": stat.S_ISSOCK,
}


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading, without waiting. Raises OSError for anything else."""
    try:
        # A pipe without a writer would be waited for, and a terminal could become the process's own.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # a NUL byte, or a character that no file name has
        raise OSError(errno.EINVAL, f"no name of a file ({error})", str(path)) from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # as sockets are refused
            raise OSError(errno.EINVAL, "it is a socket, not a regular file", str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = next((kind for kind, holds in KINDS.items() if holds(mode)), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path | str, most: int = DESCRIPTION) -> bytes:
    """Return what a regular file holds. Raises OSError, also for one of more than `most` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it holds more than {size_of(most)}, the most that is read", str(path))
    return content


def read_text(path: Path | str, most: int = DESCRIPTION, encoding: str = "utf-8") -> str:
    """Return the text of a regular file. Raises OSError, and UnicodeDecodeError for another encoding."""
    return read_bytes(path, most).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path | str, most: int = DESCRIPTION) -> Any:
    """Return what a JSON file says. Raises OSError, and ValueError for one that is not JSON."""
    return parse_json(read_bytes(path, most))


def lines_of(file: BinaryIO, most: int = LINE) -> Iterator[bytes]:
    """Yield the lines of an open file, with their ends. Raises ValueError at one of more than `most` bytes."""
    while line := file.readline(most + 1):
        if len(line) > most:
            raise ValueError(f"it holds more than {size_of(most)}, the most that is read of one line")
        yield line


def parse_json(text: str | bytes) -> Any:
    """Return what the JSON says. Raises ValueError, whose message is one line, for any other text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if "digits" in str(error):  # Python's own advice is to raise its limit
            raise ValueError(f"a whole number of more than {sys.get_int_max_str_digits():,} digits") from None
        raise


def size_of(count: int) -> str:
    """Bytes in the unit that people read: `16 MiB`."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 100 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.0f} PiB"


def raise_descriptor_limit(wanted: int = 65_536) -> int:
    """Let this process open as many files as its user may, up to `wanted`; returns how many that are. Shells give 1,024
    where the system allows many times that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft if soft != resource.RLIM_INFINITY else wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def too_few_descriptors() -> str:
    """A sentence for whoever met the limit of open files."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(4_096, 4 * most)
    return (
        f"descriptors: this process may have {most:,} files and connections open at once, and needs more; expected "
        f"{wanted:,}. Run ulimit -n {wanted} in the shell before, or ask for fewer programs, episodes or processes at "
        "once."
    )
