"""Divide generated tasks into disjoint splits by a hash of their content."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cadre import random_keys
from cadre.env import GeneratedTasks, Split
from cadre.errors import ConfigError
from cadre.types import Task

TRIES = 4000  # draws for a task; one in ten belongs to the test split
SPLIT_SIZES: dict[Split, int] = {"train": 100_000, "test": 10_000}


def in_split(split: Split, *content: str) -> bool:
    """Return True if a task of this content belongs to the split: one in ten by its hash is for testing. So no test
    task can be a training task, whatever the seeds."""
    return (random_keys.key("split", *content) % 10 == 0) == (split == "test")


def drawn_tasks(
    split: Split, draw: Callable[[int, int], dict[str, Any] | None], settings: Mapping[str, Any], name: str
) -> GeneratedTasks:
    """Return the tasks of a split: number i is the first that `draw(i, attempt)` makes of an attempt 0, 1, ...; it
    returns None for a task of another split.

    A task raises ConfigError after `TRIES` attempts, as with these settings there may be none.
    """

    def make(index: int) -> dict[str, Any]:
        data = next((task for attempt in range(TRIES) if (task := draw(index, attempt)) is not None), None)
        if data is None:
            values = ", ".join(f"{key} {value!r}" for key, value in settings.items())
            raise ConfigError(
                f"settings: got {values}, with which none of {TRIES} draws was a task of the split {split!r}; expected "
                "some. Take settings with more tasks, such as a greater size."
            )
        return data

    return GeneratedTasks(SPLIT_SIZES[split], make, name)


def shared_tasks(training: Iterable[Task], held_out: Iterable[Task]) -> list[str]:
    """Return the ids of held-out tasks whose data a training task has too, in whatever order of its keys."""

    def content(task: Task) -> str:
        return json.dumps(task.data, sort_keys=True, default=repr)

    training_data = set(map(content, training))
    return [task.id for task in held_out if content(task) in training_data]
