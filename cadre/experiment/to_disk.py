"""What the disk refuses (full, read-only, broken) becomes a paragraph that says which file, and how to go on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cadre.errors import RunError

# How libraries that are written in Rust tell of the system's errors, in exceptions of their own.
OF_SYSTEM = re.compile(r"\(os error (\d+)\)")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes `path`. Raises RunError where the system refuses it."""
    try:
        yield
    except Exception as error:
        if (why := refusal(error)) is None:
            raise
        raise RunError(
            f"{path}: {why}; expected a disk that can be written to. What was written before is whole: make room, or "
            "mend the disk, and go on with --resume."
        ) from error


def refusal(error: Exception) -> str | None:
    """What the system said, in words, or None where the error is another's."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    told = OF_SYSTEM.search(str(error))
    return os.strerror(int(told.group(1))) if told else None
