"""The trees that a run keeps, by step and number: the first ones of every step, whole (docs/trees.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cadre.errors import RunError
from cadre.experiment.trees import stream
from cadre.experiment.trees.format import KeptTree
from cadre.experiment.trees.stream import Entry


def tree_of(folder: Path, step: int, number: int = 0) -> KeptTree:
    """The tree with this number, from 0, that was kept of a step, from 1. Raises RunError where there is none."""
    if not (folder / stream.TREES).is_file():
        raise RunError(f"play: {folder} holds no trees.jsonl; expected the folder of a run that has made a step.")
    entries = stream.entries(folder)
    of_step = [entry for entry in entries if entry.step == step - 1]
    if number >= len(of_step):
        raise RunError(_none(folder, step, number, entries))
    return stream.read(folder, of_step[number])


def all_of(folder: Path) -> Iterator[KeptTree]:
    """Every tree of a run, in the order in which they were kept; none where it kept none."""
    return (stream.read(folder, entry) for entry in stream.entries(folder))


def _none(folder: Path, step: int, number: int, entries: Sequence[Entry]) -> str:
    steps = [entry.step + 1 for entry in entries]
    if not steps:
        return f"play: {folder} has kept no tree; expected train.trees_kept of 1 or more. Train with that."
    if step not in steps:
        return f"play --step: got {step}; expected a step of {folder}, {min(steps)} to {max(steps)}. Name one of those."
    return (
        f"play --task: got {number}; expected 0 to {steps.count(step) - 1}, as step {step} has kept "
        f"{steps.count(step)}. Name one of those, or train with a larger train.trees_kept."
    )
