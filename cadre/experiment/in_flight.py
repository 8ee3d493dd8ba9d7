"""Steps that are sampled and not yet learned from, and their place in a checkpoint.

They are kept as the trees themselves: the weights that drew them are gone by then, and trees are small beside weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from cadre.experiment import jsonl
from cadre.rollout.dynamic_sampling import Sampled

FILE = "in_flight.jsonl"


@dataclass(frozen=True)
class StepSample:
    """All that was sampled for update number `step`, and how many seconds that took."""

    step: int
    sampled: Sampled
    seconds: float


def write(folder: Path, steps: Sequence[StepSample]) -> None:
    """One line a step in `folder/in_flight.jsonl`; no file where there is none."""
    if steps:
        lines = (json.dumps(asdict(step), allow_nan=True) + "\n" for step in steps)
        (folder / FILE).write_text("".join(lines))


def read(folder: Path) -> tuple[StepSample, ...]:
    """What `write` wrote, number for number."""
    return tuple(_records().validate_python(line) for line in jsonl.records(folder / FILE))


@cache
def _records() -> TypeAdapter[StepSample]:
    return TypeAdapter(StepSample)
