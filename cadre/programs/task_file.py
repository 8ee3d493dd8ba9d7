"""The tasks of a program: one JSON object a line, whatever the program reads in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cadre import random_keys
from cadre.data.jsonl import rows_of
from cadre.env import Split
from cadre.errors import ConfigError, DataError
from cadre.programs.calls import canonical
from cadre.types import Task


def tasks_of(train: str, test: str, held_out: float, split: Split) -> Sequence[Task]:
    """The tasks of a split: of the file `train`, without a share of them by the hash of their content that is held out,
    or, where there is a file `test`, of that. A row that stands in both is for testing alone.

    Raises ConfigError or DataError for files that cannot be used, and for a split without tasks.
    """
    rows = _rows(train)
    if test:
        tested = [*_rows(test)]
        known = {canonical(row) for row in tested}
        chosen = tested if split == "test" else [row for row in rows if canonical(row) not in known]
    else:
        chosen = [row for row in rows if (_draw(row) < 10_000 * held_out) == (split == "test")]
    if not chosen:
        raise DataError(
            f"settings.tasks: {train} leaves no task to {split} with; expected one or more. Add rows, name a file for "
            "settings.test, or change settings.held_out."
        )
    return [Task(str(row.get("id", f"{split}-{number}")), row) for number, row in enumerate(chosen)]


def _draw(row: Mapping[str, Any]) -> int:
    return random_keys.key("held-out", canonical(row)) % 10_000


def _rows(file: str) -> Sequence[Mapping[str, Any]]:
    path = Path(file)
    if not path.is_file():
        raise ConfigError(
            f"settings.tasks: there is no file {file}; expected one JSON object a line, such as "
            '{"id": "1", "question": "2 + 2?"}. Fix the path.'
        )
    return _read(path, path.stat().st_mtime_ns)


@lru_cache
def _read(path: Path, _changed_at: int) -> Sequence[Mapping[str, Any]]:
    unique = {canonical(row): row for _, row in rows_of(path)}
    return list(unique.values())
