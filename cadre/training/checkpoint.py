"""Save and load training state.

A checkpoint is a folder step-000120/ with the weights and optimizer state of every policy and critic (safetensors), the
loop's own state (state.json), the configuration, and a manifest of checksums. It is written to a temporary folder,
synced, and renamed, so that a crash leaves either all of it or nothing. All randomness is keyed by the step, so the
step number is the random state and the position in the data. Beside it: running baselines, the best score so far, and
the steps that are sampled and not learned from yet.

The newest `train.checkpoints_kept` are kept, those of every `train.checkpoint_every`-th step, and the one with the best
evaluation.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cadre.config.experiment import dump
from cadre.errors import CadreError, DivergedError, EngineError, RunError
from cadre.files import find_damage, read_record, require_no_link, write_with_manifest
from cadre.runs import jsonl
from cadre.runs.folder import Run
from cadre.runs.records import CheckpointState, EvaluationLine
from cadre.team import Team, Weights
from cadre.training.asynchronous import SampledStep, StepQueue, read_sampled_steps, write_sampled_steps
from cadre.training.interrupt import Interrupt

log = logging.getLogger(__name__)


STATE_FILE = "state.json"


@dataclass(frozen=True)
class TrainingState:
    """What the loop itself carries from step to step.

    step        updates made so far
    baselines   the running baselines by name
    best_step   the step of the best evaluation so far, None before the first
    best        its share of successes
    in_flight   the next steps, as far as they are sampled
    """

    step: int = 0
    baselines: dict[str, float] = field(default_factory=dict)
    best_step: int | None = None
    best: float = 0.0
    in_flight: tuple[SampledStep, ...] = ()


def checkpoint_name(step: int) -> str:
    return f"step-{step:06d}"


def save_checkpoint(
    folder: Path, state: TrainingState, team: Team, config: str = "", weights: Mapping[str, Path] | None = None
) -> Path:
    """Write the state, and the configuration that made it, to `folder/step-NNNNNN`: whole, or not at all.

    One that is there already and whole is kept. `weights` are folders of policies in other checkpoints whose weights
    take the place of the team's, beside the optimisers that this one has.
    """
    final = folder / checkpoint_name(state.step)
    if final.exists():
        if find_checkpoint_damage(final) is None:
            return final
        final.unlink() if final.is_symlink() or final.is_file() else shutil.rmtree(final)

    def fill(partial: Path) -> None:
        for learner in team.learners:
            learner.save(partial)
        for policy, other in (weights or {}).items():
            _replace_weights(other, partial / policy)
        write_sampled_steps(partial, state.in_flight)
        (partial / STATE_FILE).write_text(json.dumps(_state_fields(state)))
        (partial / "config.yaml").write_text(config)

    return write_with_manifest(final, fill)


def _replace_weights(saved: Path, policy: Path) -> None:
    """Let a policy's folder have the files of another one, but for optimisers and value heads."""
    for path in policy.iterdir():
        if path.is_file():
            path.unlink()
    for path in saved.iterdir():
        if path.is_file():
            shutil.copyfile(path, policy / path.name)


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, whole or damaged, in order."""
    named = (re.fullmatch(r"step-(\d+)", path.name) for path in folder.glob("step-*"))
    return sorted(int(name[1]) for name in named if name)


def find_checkpoint_damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in words, or None where it is whole and its state can be read."""
    if (wrong := find_damage(checkpoint)) is not None:
        return wrong
    try:
        state = read_state(checkpoint)
    except RunError as error:
        return str(error)
    if checkpoint_name(state.step) != checkpoint.name:
        return f"{STATE_FILE} is of step {state.step}"
    return None


def latest_checkpoint(folder: Path, at_most: int | None = None) -> Path:
    """The newest whole checkpoint, of a step of `at_most` where that is given.

    A damaged one is passed over with a warning. Raises RunError where no whole one is left.
    """
    return next(intact_checkpoints(folder, at_most))


def intact_checkpoints(folder: Path, at_most: int | None = None) -> Iterator[Path]:
    """The whole checkpoints, newest first. Damaged ones are passed over with a warning. Raises RunError at the end."""
    require_no_link(folder)
    damaged: list[str] = []
    for path in _newest_first(folder, at_most):
        if (wrong := find_checkpoint_damage(path)) is not None:
            damaged.append(f"{path.name}: {wrong}")
            log.warning("The checkpoint %s is damaged: %s. The one before it is used.", path, wrong)
            continue
        yield path
    told = f" ({'; '.join(damaged)})" if damaged else ""
    raise RunError(
        f"checkpoint: {folder} holds no whole checkpoint{told}; expected step-NNNNNN with a manifest.json. Restore one "
        "from a copy, or train anew in another folder."
    )


def restore_latest(folder: Path, team: Team) -> tuple[Path, TrainingState]:
    """Restore a team from the newest checkpoint that is whole and fits it; returns that and its state.

    Those that are passed over are named in warnings, with the steps that are lost. Raises RunError where none is whole,
    and what the newest raised where none fits.
    """
    newest = max(checkpoint_steps(folder), default=0)
    first: CadreError | None = None
    candidates = intact_checkpoints(folder)
    while True:
        try:
            path = next(candidates)
        except RunError:
            if first is not None:
                raise first from None
            raise
        try:
            state = load_checkpoint(path, team)
        except (EngineError, RunError) as error:
            first = first or error
            log.warning("The checkpoint %s cannot be used: %s The one before it is tried.", path, error)
            continue
        if state.step < newest:
            log.warning("%s is used: %d steps after it are lost and made again.", path, newest - state.step)
        return path, state


def _newest_first(folder: Path, at_most: int | None) -> Iterator[Path]:
    for step in reversed(checkpoint_steps(folder)):
        if at_most is None or step <= at_most:
            yield folder / checkpoint_name(step)


def read_state(checkpoint: Path) -> TrainingState:
    """The loop's own state, without the weights."""
    record = read_record(checkpoint / STATE_FILE, CheckpointState)
    return TrainingState(**record.model_dump(), in_flight=read_sampled_steps(checkpoint))


def _state_fields(state: TrainingState) -> dict[str, Any]:
    fields = asdict(replace(state, in_flight=()))
    del fields["in_flight"]
    return fields


def load_checkpoint(checkpoint: Path, team: Team) -> TrainingState:
    """Restore every policy of the team and return the loop's own state."""
    for learner in team.learners:
        learner.load(checkpoint)
    return read_state(checkpoint)


async def load_weights(checkpoint: Path, team: Team, policies: Iterable[str]) -> None:
    """Let a team that only plays have the weights of these policies; no optimiser is made or read."""
    step = read_state(checkpoint).step
    await team.load(Weights(policy, step, checkpoint / policy) for policy in policies)


def remove_old_checkpoints(folder: Path, present: int, keep: int, best: int | None, every: int = 0) -> None:
    """Remove all checkpoints but the last `keep` up to the `present` step, the one of step `best`, and those of every
    `every`-th step. Those beyond the present were damaged, or the run would have gone on with them."""
    found = checkpoint_steps(folder)
    past = [step for step in found if step <= present]
    kept = {*past[max(0, len(past) - keep) :], best, *(step for step in past if every and step % every == 0)}
    for step in found:
        if step not in kept:
            damaged = folder / checkpoint_name(step)
            damaged.unlink() if damaged.is_symlink() or damaged.is_file() else shutil.rmtree(damaged)


@dataclass(frozen=True)
class CheckpointChoice:
    """A checkpoint by what a user calls it: the `best`, the one after `at` updates, or else the latest whole one."""

    best: bool = False
    at: int | None = None

    def find(self, run: Path) -> Path:
        """Return its folder. Raises RunError where the run has none that is whole."""
        folder = run / "checkpoints"
        step = best_evaluated_step(run) if self.best else self.at
        if step is None:
            return latest_checkpoint(folder)
        what = f"the best evaluation of {run} is that after step {step}" if self.best else f"step {step} of {run}"
        kept = checkpoint_steps(folder)
        if step not in kept:
            raise RunError(
                f"checkpoint: {what}, and no checkpoint of it is there; expected one of "
                f"{', '.join(map(str, kept)) or 'some, and there is none'}. Name one with --at, or keep more with "
                "train.checkpoint_every=N."
            )
        path = folder / checkpoint_name(step)
        if (wrong := find_damage(path)) is not None:
            raise RunError(
                f"checkpoint: {what}, and {path} is damaged ({wrong}); expected a whole one. Restore it from a copy, "
                "or name another with --at."
            )
        return path


LATEST = CheckpointChoice()


def best_evaluated_step(run: Path) -> int:
    """Return the step of the run's best evaluation, the first of equals. Raises RunError where it made none."""
    reports = jsonl.records(run / "evaluations.jsonl", EvaluationLine)
    best = max(((report["success"], -report["step"]) for report in reports), default=None)
    if best is None:
        raise RunError(
            f"--best: {run} has made no evaluation, so no checkpoint is its best; expected evaluations.jsonl of a run "
            "with evaluate.tasks above 0. Leave --best out for the latest checkpoint, or name one with --at STEP."
        )
    return -best[1]


class Checkpointer:
    """Holds the state of a training and writes its checkpoints; owned by the loop, lives as long as that.

    What is saved is always a state between two steps, with everything of the steps before it logged, and with the next
    steps as far as `ahead` has sampled them.
    """

    def __init__(self, run: Run, team: Team, state: TrainingState, ahead: StepQueue, interrupt: Interrupt) -> None:
        self.run, self.team, self.state, self.ahead, self._interrupt = run, team, state, ahead, interrupt
        self._folder = run.folder / "checkpoints"
        self._whole = True
        self._saved = time.monotonic()

    @asynccontextmanager
    async def to_the_end(self) -> AsyncIterator[None]:
        """Save whatever ends this, unless a step was just changing the weights, or one that was sampled from earlier
        ones is lost, or what was learned is worth nothing, or the end was forced: then the last checkpoint stands."""
        try:
            yield
        except DivergedError:
            self._whole = False
            raise
        finally:
            again = await self.ahead.close(self.state.step)
            if self._whole and again and not self._interrupt.forced:
                self.save()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A step that changes weights and logs what it did; at its end one more update has been made."""
        self._whole = False
        yield
        self.state = replace(self.state, step=self.state.step + 1)
        self._whole = True

    @property
    def is_changing(self) -> bool:
        """Whether a step is just changing the weights."""
        return not self._whole

    async def save_where_due(self) -> None:
        """By minutes, by steps, or because the evaluation just made is the best so far; once no step is being sampled
        from weights that are gone when this is read."""
        if self._due():
            await self.ahead.settle()
            self.save()

    def _due(self) -> bool:
        goal, step = self.run.config.train, self.state.step
        minutes = (time.monotonic() - self._saved) / 60
        by_time = 0 < goal.checkpoint_minutes <= minutes
        by_step = goal.checkpoint_every > 0 and step % goal.checkpoint_every == 0
        return by_time or by_step or self._best()[0] == step

    def save(self) -> None:
        """Write the state, once the logs of the steps before it are on the disk, and remove what need not be kept."""
        goal = self.run.config.train
        best_step, best = self._best()
        self.state = replace(self.state, best_step=best_step, best=best, in_flight=self.ahead.ready())
        self.run.flush()
        save_checkpoint(self._folder, self.state, self.team, dump(self.run.config))
        remove_old_checkpoints(self._folder, self.state.step, goal.checkpoints_kept, best_step, goal.checkpoint_every)
        self._saved = time.monotonic()

    def _best(self) -> tuple[int | None, float]:
        """The step of the best evaluation so far, the first of equals, and its share of successes."""
        reports = [(report["success"], -report["step"]) for report in self.run.evaluations()]
        success, step = max(reports, default=(0.0, None))
        return (None if step is None else -step), success
