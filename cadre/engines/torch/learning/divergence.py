"""What is left to do when training has diverged: find the sequence at fault, keep it, and say so."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from cadre.engines.torch.learning.policy_optimiser import PATIENCE
from cadre.errors import DivergedError
from cadre.files import to_json
from cadre.types import TrainingSequence


def diverged(data: Sequence[TrainingSequence], norm: Callable[[TrainingSequence], float], path: Path) -> DivergedError:
    """The error of a policy's minibatch, once the sequence of the largest gradient `norm` is written to `path`."""
    worst = max(data, key=norm)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of pictures their digests; the bytes stand beside the trees.
    path.write_text(to_json(dataclasses.asdict(worst), default=lambda png: f"{len(png)} bytes"))
    return DivergedError(
        f"Policy {worst.policy!r}: {PATIENCE} optimiser steps in a row met a loss or gradient that is not finite; "
        f"the weights are as they were before. The sequence at fault is in {path}. Lower learner.learning_rate, "
        "or look at its rewards and log-probabilities."
    )


def check_finite(policy: str, what: str, numbers: Iterable[float]) -> None:
    """Raises DivergedError where a number is none, or is infinite: the model is lost from then on."""
    if not math.isfinite(sum(numbers)):
        raise DivergedError(
            f"Policy {policy!r}: {what} are not finite; expected numbers. Its weights have diverged, and the last "
            "checkpoint is from before that. Go on from there with a lower learner.learning_rate (cadre fork)."
        )


def path_for(policy: str, update: int, folder: Path | None) -> Path:
    """Where the sequence at fault goes: into the folder, or a temporary one."""
    return (folder or Path(tempfile.mkdtemp(prefix="cadre-diverged-"))) / f"diverged-{policy}-{update}.json"
