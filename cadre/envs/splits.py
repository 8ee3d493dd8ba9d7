"""Which split a generated task belongs to."""

from __future__ import annotations

from collections.abc import Iterable

from cadre import random_keys
from cadre.env import Split
from cadre.types import Task

SPLIT_SIZES: dict[Split, int] = {"train": 100_000, "test": 10_000}


def in_split(split: Split, *content: str) -> bool:
    """Whether what `content` describes belongs to the split: one in ten by its hash is for testing.

    A task belongs to the split that its content hashes to, so no test task can be a training task, whatever the seeds.
    """
    return (random_keys.key("split", *content) % 10 == 0) == (split == "test")


def shared_tasks(training: Iterable[Task], held_out: Iterable[Task]) -> list[str]:
    """The ids of held-out tasks whose data a training task has too."""
    known = {repr(task.data) for task in training}
    return [task.id for task in held_out if repr(task.data) in known]
