"""What the disk refuses (full, read-only, broken) becomes a paragraph that says which file, and how to go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cadre.data.atomic import refusal
from cadre.errors import RunError


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


def write_text(path: Path, text: str) -> None:
    """Make this the file's text, whole or not at all. Raises RunError where the system refuses it."""
    fresh = path.with_name(f"{path.name}.new")
    with writing(path):
        fresh.unlink(missing_ok=True)  # it may be a link to elsewhere
        with fresh.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
