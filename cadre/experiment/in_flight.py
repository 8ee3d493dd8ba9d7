"""Steps that are sampled and not yet learned from, and their place in a checkpoint.

They are kept as the trees themselves: the weights that drew them are gone by then, and trees are small beside weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cadre.experiment import jsonl
from cadre.experiment.records import damaged
from cadre.experiment.trees import pictures
from cadre.experiment.trees.format import images_of
from cadre.rollout.dynamic_sampling import Sampled

FILE = "in_flight.jsonl"


@dataclass(frozen=True)
class StepSample:
    """All that was sampled for update number `step`, and how many seconds that took."""

    step: int
    sampled: Sampled
    seconds: float


def write(folder: Path, steps: Sequence[StepSample]) -> None:
    """One line a step in `folder/in_flight.jsonl`, and pictures beside it; no file where there is none."""
    if steps:
        lines = (json.dumps(_without_bytes(asdict(step)), allow_nan=True) + "\n" for step in steps)
        (folder / FILE).write_text("".join(lines))
        pictures.save(folder, {image for step in steps for tree in step.sampled.trees for image in images_of(tree)})


def read(folder: Path) -> tuple[StepSample, ...]:
    """What `write` wrote, number for number."""
    lines = jsonl.records(folder / FILE)
    if (folder / pictures.FOLDER).is_dir():
        lines = (pictures.filled(line, folder) for line in lines)
    try:
        return tuple(_records().validate_python(line) for line in lines)
    except ValidationError as error:
        raise damaged(folder / FILE, str(error).splitlines()[1].strip()) from None


def _without_bytes(value: Any) -> Any:
    """Plain values without the bytes of pictures, which are read again by their digest."""
    if isinstance(value, dict):
        return {key: _without_bytes(inner) for key, inner in value.items() if not isinstance(inner, bytes)}
    return [_without_bytes(inner) for inner in value] if isinstance(value, list | tuple) else value


@cache
def _records() -> TypeAdapter[StepSample]:
    return TypeAdapter(StepSample)
