"""The trees that a run keeps: `trees.jsonl` has the first ones of every step, whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cadre.errors import RunError

# A tree as JSON: {"step": 3, "task": {...}, "root": {...}}, the fields those of the records.
KeptTree = Mapping[str, Any]


def tree_of(folder: Path, step: int, number: int = 0) -> KeptTree:
    """The tree with this number, from 0, that was kept of a step, from 1. Raises RunError where there is none."""
    path = folder / "trees.jsonl"
    if not path.is_file():
        raise RunError(f"play: {folder} holds no trees.jsonl; expected the folder of a run that has made a step.")
    steps: dict[int, int] = {}
    for tree in _trees(path):
        made = tree["step"] + 1
        if (made, steps.get(made, 0)) == (step, number):
            return tree
        steps[made] = steps.get(made, 0) + 1
    raise RunError(_none(folder, step, number, steps))


def all_of(folder: Path) -> Iterator[KeptTree]:
    """Every tree of a run, in the order in which they were kept; none where it kept none."""
    path = folder / "trees.jsonl"
    return _trees(path) if path.is_file() else iter(())


def _trees(path: Path) -> Iterator[KeptTree]:
    """The whole lines of the file; a last one that was cut off is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def _none(folder: Path, step: int, number: int, steps: Mapping[int, int]) -> str:
    if not steps:
        return f"play: {folder} has kept no tree; expected train.trees_kept of 1 or more. Train with that."
    if step not in steps:
        return f"play --step: got {step}; expected a step of {folder}, {min(steps)} to {max(steps)}. Name one of those."
    return (
        f"play --task: got {number}; expected 0 to {steps[step] - 1}, as step {step} has kept {steps[step]}. "
        "Name one of those, or train with a larger train.trees_kept."
    )
