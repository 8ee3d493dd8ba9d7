"""Which split a generated task belongs to."""

from __future__ import annotations

from cadre import random_keys
from cadre.env import Split

SPLIT_SIZES: dict[Split, int] = {"train": 100_000, "test": 10_000}


def in_split(split: Split, *content: str) -> bool:
    """Whether what `content` describes belongs to the split: one in ten by its hash is for testing.

    A task belongs to the split that its content hashes to, so no test task can be a training task, whatever the seeds.
    """
    return (random_keys.key("split", *content) % 10 == 0) == (split == "test")
