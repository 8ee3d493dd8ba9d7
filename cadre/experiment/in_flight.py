"""Steps that are sampled and not yet learned from, and their place in a checkpoint.

They are kept as the trees themselves: the weights that drew them are gone by then, and trees are small beside weights.
"""

from __future__ import annotations

import json
import math
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
NOT_FINITE = "number that is not finite"


@dataclass(frozen=True)
class StepSample:
    """All that was sampled for update number `step`, and how many seconds that took."""

    step: int
    sampled: Sampled
    seconds: float


def write(folder: Path, steps: Sequence[StepSample]) -> None:
    """One line a step in `folder/in_flight.jsonl`, and pictures beside it; no file where there is none."""
    if steps:
        lines = (json.dumps(_plain(asdict(step)), allow_nan=False) + "\n" for step in steps)
        (folder / FILE).write_text("".join(lines))
        pictures.save(folder, {image for step in steps for tree in step.sampled.trees for image in images_of(tree)})


def read(folder: Path) -> tuple[StepSample, ...]:
    """What `write` wrote, number for number."""
    lines = jsonl.records(folder / FILE)
    if (folder / pictures.FOLDER).is_dir():
        lines = (pictures.filled(line, folder) for line in lines)
    try:
        return tuple(_records().validate_python(_numbers(line)) for line in lines)
    except ValidationError as error:
        raise damaged(folder / FILE, str(error).splitlines()[1].strip()) from None


def _plain(value: Any) -> Any:
    """Return values that JSON has: without the bytes of pictures, which are read again by their digest, and with a name
    for each number that is not finite, which the data of a task may hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {NOT_FINITE: repr(value)}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if not isinstance(inner, bytes)}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _numbers(value: Any) -> Any:
    """Return what `_plain` was given, with the numbers that it named."""
    if isinstance(value, dict):
        if value.keys() == {NOT_FINITE} and value[NOT_FINITE] in ("nan", "inf", "-inf"):
            return float(value[NOT_FINITE])
        return {key: _numbers(inner) for key, inner in value.items()}
    return [_numbers(inner) for inner in value] if isinstance(value, list) else value


@cache
def _records() -> TypeAdapter[StepSample]:
    return TypeAdapter(StepSample)
