"""Which checkpoint of a run is meant: the latest, that of the best evaluation, or that of a step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cadre.errors import RunError
from cadre.experiment import checkpoint, jsonl, sealed
from cadre.experiment.records import Evaluation


@dataclass(frozen=True)
class Chosen:
    """A checkpoint by what a user calls it: the `best`, the one after `at` updates, or else the latest whole one."""

    best: bool = False
    at: int | None = None

    def find(self, run: Path) -> Path:
        """Return its folder. Raises RunError where the run has none that is whole."""
        folder = run / "checkpoints"
        step = best_step(run) if self.best else self.at
        if step is None:
            return checkpoint.latest(folder)
        what = f"the best evaluation of {run} is that after step {step}" if self.best else f"step {step} of {run}"
        kept = checkpoint.steps(folder)
        if step not in kept:
            raise RunError(
                f"checkpoint: {what}, and no checkpoint of it is there; expected one of "
                f"{', '.join(map(str, kept)) or 'some, and there is none'}. Name one with --at, or keep more with "
                "train.checkpoint_every=N."
            )
        path = folder / checkpoint.name_of(step)
        if (wrong := sealed.damage(path)) is not None:
            raise RunError(
                f"checkpoint: {what}, and {path} is damaged ({wrong}); expected a whole one. Restore it from a copy, "
                "or name another with --at."
            )
        return path


LATEST = Chosen()


def best_step(run: Path) -> int:
    """Return the step of the run's best evaluation, the first of equals. Raises RunError where it made none."""
    reports = jsonl.records(run / "evaluations.jsonl", Evaluation)
    best = max(((report["success"], -report["step"]) for report in reports), default=None)
    if best is None:
        raise RunError(
            f"--best: {run} has made no evaluation, so no checkpoint is its best; expected evaluations.jsonl of a run "
            "with evaluate.tasks above 0. Leave --best out for the latest checkpoint, or name one with --at STEP."
        )
    return -best[1]
