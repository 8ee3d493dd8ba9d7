"""Save and load training state.

A checkpoint is a folder step-000120/ with the weights and optimizer state of every policy and critic (safetensors), the
loop's own state (state.json), the configuration, and a manifest of checksums. It is written to a temporary folder,
synced, and renamed, so that a crash leaves either all of it or nothing. All randomness is keyed by the step, so the
step number is the random state and the position in the data. Beside it: running baselines, the best score so far, and
the steps that are sampled and not learned from yet.

The newest `train.checkpoints_kept` are kept, those of every `train.checkpoint_every`-th step, and the one with the best
evaluation: that of the highest success, and among equal ones of the highest reward.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cadre.config.experiment import Experiment, dump
from cadre.errors import ConfigError, DivergedError, RunError
from cadre.files import find_damage, path_exists, read_record, require_no_link, write_with_manifest
from cadre.runs import jsonl
from cadre.runs.folder import Run
from cadre.runs.records import CheckpointState, EvaluationLine, Rating
from cadre.team import Team, Weights
from cadre.training.asynchronous import SampledStep, StepQueue, read_sampled_steps, write_sampled_steps
from cadre.training.interrupt import Interrupt

log = logging.getLogger(__name__)
STATE_FILE = "state.json"
OPPONENTS = "opponents"  # the folder of a run with the weights of the present members of the pool


@dataclass(frozen=True)
class TrainingState:
    """The state that the loop carries from step to step.

    step           updates made so far
    baselines      the running baselines by name
    best_step      the step of the best evaluation so far, None before the first
    best           its success rate
    ratings        of the learner and of the members of its pool of opponents
    sampled_steps  the next steps, as far as they are sampled
    curriculum     its level, and the tasks and successes that are counted on it
    """

    step: int = 0
    baselines: dict[str, float] = field(default_factory=dict)
    best_step: int | None = None
    best: float = 0.0
    ratings: dict[str, Rating] = field(default_factory=dict)
    sampled_steps: tuple[SampledStep, ...] = ()
    curriculum: dict[str, float] = field(default_factory=dict)


class Checkpointer:
    """Holds the state of a training and decides when it is saved: at its start, every few minutes or steps, at the best
    evaluation, at its end, and when it fails. Owned by the loop, lives as long as that.

    The saved state is always one between two steps, with everything of the steps before it logged, and with the next
    steps as far as `queue` has sampled them.
    """

    def __init__(self, run: Run, team: Team, state: TrainingState, queue: StepQueue, interrupt: Interrupt) -> None:
        self.run, self.team, self.state, self._queue, self._interrupt = run, team, state, queue, interrupt
        self._folder = run.folder / "checkpoints"
        self.is_updating = False  # while a step is changing the weights, and after one that failed
        self._saved_at = time.monotonic()

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Wrap a step that changes weights and logs; at its end one more update has been made."""
        self.is_updating = True
        yield
        self.state = replace(self.state, step=self.state.step + 1)
        self.is_updating = False

    @asynccontextmanager
    async def save_on_exit(self) -> AsyncIterator[None]:
        """Save however the block ends, with four exceptions, in which the last checkpoint stands: a step was changing
        the weights, a step that cannot be sampled again is lost, the loss diverged, or a second interrupt forced the
        end."""
        try:
            yield
        except DivergedError:
            self.is_updating = True
            raise
        finally:
            nothing_lost = await self._queue.close(self.state.step)
            if not self.is_updating and nothing_lost and not self._interrupt.forced:
                self.save()

    async def save_if_due(self) -> None:
        """Save by minutes, by steps, or if the evaluation just made is the best so far."""
        goal, step = self.run.train, self.state.step
        minutes = (time.monotonic() - self._saved_at) / 60
        by_time = 0 < goal.checkpoint_minutes <= minutes
        by_step = goal.checkpoint_every > 0 and step % goal.checkpoint_every == 0
        if by_time or by_step or self._best()[0] == step:
            # A step that is still being sampled could not be sampled again: its weights will be gone after a resume.
            await self._queue.drain()
            self.save()

    def save(self) -> None:
        """Write the state, after the logs of the steps before it are on the disk, and remove old checkpoints."""
        goal = self.run.train
        best_step, best = self._best()
        self.state = replace(self.state, best_step=best_step, best=best, sampled_steps=self._queue.sampled())
        # The order matters: a checkpoint whose log lines were lost could not be resumed from exactly.
        self.run.flush()
        members = {folder.name: folder for folder in (self.run.folder / OPPONENTS).glob("*")}
        save_checkpoint(self._folder, self.state, self.team, dump(self.run.config), members)
        remove_old_checkpoints(self._folder, self.state.step, goal.checkpoints_kept, best_step, goal.checkpoint_every)
        self._saved_at = time.monotonic()

    def _best(self) -> tuple[int | None, float]:
        """Return the step of the best evaluation so far, and its success rate."""
        best = best_report(self.run.evaluations())
        return (None, 0.0) if best is None else (best["step"], best["success"])


# ---- Writing


def checkpoint_name(step: int) -> str:
    return f"step-{step:06d}"


def save_checkpoint(
    folder: Path, state: TrainingState, team: Team, config: str = "", weights: Mapping[str, Path] | None = None
) -> Path:
    """Write the state, and the configuration that made it, to `folder/step-NNNNNN`: all of it, or nothing. An intact
    checkpoint of that step is kept as it is. `weights` are folders of policies whose weights replace the team's, or
    stand beside them; optimizers and value heads stay the team's."""
    final = folder / checkpoint_name(state.step)
    # After a resume the same step may be saved again; a damaged folder of that name is replaced.
    if final.exists():
        if find_checkpoint_damage(final) is None:
            return final
        _remove(final)

    def fill(partial: Path) -> None:
        for learner in team.learners:
            learner.save(partial)
        for policy, source in (weights or {}).items():
            # Files are weights; optimizers and value heads are in folders below.
            (partial / policy).mkdir(exist_ok=True)
            for path in (partial / policy).iterdir():
                if path.is_file():
                    path.unlink()
            for path in source.iterdir():
                if path.is_file():
                    shutil.copyfile(path, partial / policy / path.name)
        write_sampled_steps(partial, state.sampled_steps)
        fields = {name: value for name, value in vars(state).items() if name != "sampled_steps"}
        (partial / STATE_FILE).write_text(json.dumps(fields, default=vars))
        (partial / "config.yaml").write_text(config)

    return write_with_manifest(final, fill)


def remove_old_checkpoints(folder: Path, present: int, keep: int, best: int | None, every: int = 0) -> None:
    """Remove all checkpoints but the last `keep` up to the `present` step, the one of step `best`, and those of every
    `every`-th step. Those after the present step were damaged, or the run would have been resumed from them."""
    steps = checkpoint_steps(folder)
    # A resumed run may stand before steps that are damaged: only steps of the past count as the last ones.
    past = [step for step in steps if step <= present]
    kept_steps = {*past[max(0, len(past) - keep) :], best, *(step for step in past if every and step % every == 0)}
    for step in steps:
        if step not in kept_steps:
            _remove(folder / checkpoint_name(step))


def _remove(path: Path) -> None:
    path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)


# ---- Reading


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, intact or damaged, in order."""
    names = (re.fullmatch(r"step-(\d+)", path.name) for path in folder.glob("step-*"))
    return sorted(int(name[1]) for name in names if name)


def find_checkpoint_damage(checkpoint: Path) -> str | None:
    """Return a description of a checkpoint's damage, or None if it is intact and its state can be read."""
    if (damage := find_damage(checkpoint)) is not None:
        return damage
    try:
        state = read_state(checkpoint)
    except RunError as error:
        return str(error)
    if checkpoint_name(state.step) != checkpoint.name:
        return f"{STATE_FILE} is of step {state.step}"
    return None


def latest_checkpoint(folder: Path, at_most: int | None = None) -> Path:
    """Return the newest intact checkpoint up to the step `at_most`. Damaged ones are skipped with a warning. Raises
    RunError if there is none."""
    require_no_link(folder)
    damages: list[str] = []
    for step in reversed(checkpoint_steps(folder)):
        path = folder / checkpoint_name(step)
        if at_most is not None and step > at_most:
            continue
        if (damage := find_checkpoint_damage(path)) is None:
            return path
        damages.append(f"{path.name}: {damage}")
        log.warning("The checkpoint %s is damaged: %s. The one before it is used.", path, damage)
    details = f" ({'; '.join(damages)})" if damages else ""
    raise RunError(
        f"checkpoint: {folder} holds no whole checkpoint{details}; expected step-NNNNNN with a manifest.json. Restore "
        "one from a copy, or train anew in another folder."
    )


def restore_latest(folder: Path, team: Team) -> tuple[Path, TrainingState]:
    """Load the newest intact checkpoint; return its folder and its state. Raises RunError if there is none, and
    EngineError if it does not fit the team."""
    path = latest_checkpoint(folder)
    state = load_checkpoint(path, team)
    if (lost := max(checkpoint_steps(folder)) - state.step) > 0:
        log.warning("%s is used: %d steps after it are lost and made again.", path, lost)
    return path, state


def load_checkpoint(checkpoint: Path, team: Team) -> TrainingState:
    """Load every policy of the team, with its optimizer; return the loop's state."""
    for learner in team.learners:
        learner.load(checkpoint)
    return read_state(checkpoint)


async def load_weights(checkpoint: Path, team: Team, policies: Iterable[str]) -> None:
    """Load the weights of these policies into a team that only plays; no optimizer is made or read."""
    step = read_state(checkpoint).step
    await team.load(Weights(policy, step, checkpoint / policy) for policy in policies)


def read_state(checkpoint: Path) -> TrainingState:
    """Return the loop's state, without loading weights."""
    record = read_record(checkpoint / STATE_FILE, CheckpointState)
    return TrainingState(**dict(record), sampled_steps=read_sampled_steps(checkpoint))


# ---- A checkpoint that the user names


@dataclass(frozen=True)
class CheckpointChoice:
    """A checkpoint as the user names it: the `best`, the one after `at` updates, or else the latest intact one."""

    best: bool = False
    at: int | None = None

    def find(self, run: Path) -> Path:
        """Return its folder. Raises RunError if the run has no such checkpoint that is intact."""
        folder = run / "checkpoints"
        step = best_evaluated_step(run) if self.best else self.at
        if step is None:
            return latest_checkpoint(folder)
        path, steps = folder / checkpoint_name(step), checkpoint_steps(folder)
        damage = find_damage(path) if step in steps else "it is not there"
        if damage is not None:
            named = f"that of the best evaluation, after step {step}" if self.best else f"that of step {step}"
            raise RunError(
                f"checkpoint: got {named} of {run}, which cannot be used ({damage}); expected a whole one of "
                f"{', '.join(map(str, steps)) or 'some, and there is none'}. Name one with --at, or keep more with "
                "train.checkpoint_every=N."
            )
        return path


LATEST = CheckpointChoice()


def score_of_report(report: Mapping[str, Any]) -> tuple[float, float]:
    """Return what evaluations are ranked by: success, and among equal ones the reward. A team may earn more and more
    where it never, or always, succeeds."""
    return report["success"], report["reward"]


def best_report(reports: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the best evaluation, the first of equals; None if there is none."""
    return max(reports, key=lambda report: (*score_of_report(report), -report["step"]), default=None)


def best_evaluated_step(run: Path) -> int:
    """Return the step of the run's best evaluation. Raises RunError if it made none."""
    best = best_report(jsonl.records(run / "evaluations.jsonl", EvaluationLine))
    if best is None:
        raise RunError(
            f"--best: {run} has made no evaluation, so no checkpoint is its best; expected evaluations.jsonl of a run "
            "with evaluate.tasks above 0. Leave --best out for the latest checkpoint, or name one with --at STEP."
        )
    return int(best["step"])


# ---- The weights after a warm start (`cadre_tasks.warm_start`), which lie in its folder of the run

WARM_START, WARM_START_SETTINGS = "warm_start", "settings.json"


def find_start(experiment: Experiment, run: Run) -> dict[str, str] | None:
    """Return the folders of the policies' weights when reinforcement learning began, "" for those that their settings
    name; None if the reference is the base (`kl.reference`). Raises RunError where the warm start's weights are gone,
    and ConfigError where other machines would need them."""
    if experiment.config.kl.reference == "base":
        return None
    names = [name for name in experiment.learners if name in experiment.roles.values()]
    home, folder = run.folder / WARM_START, run.folder / WARM_START / "checkpoints"
    if not path_exists(home):
        return dict.fromkeys(names, "")
    if experiment.config.cluster is not None:
        raise ConfigError(
            "kl.reference: got start with a cluster, after a warm start whose weights are on this machine alone; "
            "expected base. Train without cluster, or take the warmed model as the base: cadre export it and name it "
            "in team.policies."
        )
    if not checkpoint_steps(folder):
        raise RunError(
            f"kl.reference: got start, and {folder} holds no weights of the warm start; expected its last checkpoint. "
            "Restore it from a copy, or set kl.reference=base in a new run."
        )
    warmed = latest_checkpoint(folder)
    return {name: str(warmed / name) for name in names}
