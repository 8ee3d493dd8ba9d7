"""Which split a generated task belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cadre import random_keys
from cadre.env import Split
from cadre.errors import ConfigError
from cadre.types import Task

TRIES = 4000  # draws for a task; one in ten belongs to the test split
SPLIT_SIZES: dict[Split, int] = {"train": 100_000, "test": 10_000}


def in_split(split: Split, *content: str) -> bool:
    """Whether what `content` describes belongs to the split: one in ten by its hash is for testing.

    A task belongs to the split that its content hashes to, so no test task can be a training task, whatever the seeds.
    """
    return (random_keys.key("split", *content) % 10 == 0) == (split == "test")


def drawn(split: Split, draw: Callable[[int], dict[str, Any] | None], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The first task that `draw` makes of an attempt 0, 1, ... and does not refuse as one of another split.

    Raises ConfigError after `TRIES` attempts, as with these settings there may be none.
    """
    made = next((task for task in map(draw, range(TRIES)) if task is not None), None)
    if made is None:
        told = ", ".join(f"{name} {value!r}" for name, value in settings.items())
        raise ConfigError(
            f"settings: got {told}, with which none of {TRIES} draws was a task of the split {split!r}; expected some. "
            "Take settings with more tasks, such as a greater size."
        )
    return made


def shared_tasks(training: Iterable[Task], held_out: Iterable[Task]) -> list[str]:
    """The ids of held-out tasks whose data a training task has too."""
    known = {repr(task.data) for task in training}
    return [task.id for task in held_out if repr(task.data) in known]
