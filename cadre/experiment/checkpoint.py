"""Everything needed to go on as if nothing had happened.

All randomness is keyed by the step, so the step is the random state and the data position. Beside it stand the running
baselines, the best score so far, the steps that are sampled and not learned from yet, and what the engines save: every
policy's and critic's weights, optimiser moments, schedule and counters, in safetensors and JSON. Each checkpoint is a
sealed folder (`cadre.experiment.sealed`).
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cadre.errors import CadreError, EngineError, RunError
from cadre.experiment import in_flight, sealed
from cadre.experiment.in_flight import StepSample
from cadre.experiment.records import CheckpointState, read_record, refuse_link
from cadre.team import Team, Weights

log = logging.getLogger(__name__)
STATE = "state.json"


@dataclass(frozen=True)
class State:
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
    in_flight: tuple[StepSample, ...] = ()


def name_of(step: int) -> str:
    return f"step-{step:06d}"


def save(folder: Path, state: State, team: Team, config: str = "", weights: Mapping[str, Path] | None = None) -> Path:
    """Write the state, and the configuration that made it, to `folder/step-NNNNNN`: whole, or not at all.

    One that is there already and whole is kept. `weights` are folders of policies in other checkpoints whose weights
    take the place of the team's, beside the optimisers that this one has.
    """
    final = folder / name_of(state.step)
    if final.exists():
        if damage(final) is None:
            return final
        final.unlink() if final.is_symlink() or final.is_file() else shutil.rmtree(final)

    def fill(partial: Path) -> None:
        for learner in team.learners:
            learner.save(partial)
        for policy, other in (weights or {}).items():
            _take_weights(other, partial / policy)
        in_flight.write(partial, state.in_flight)
        (partial / STATE).write_text(json.dumps(_without_trees(state)))
        (partial / "config.yaml").write_text(config)

    return sealed.write(final, fill)


def _take_weights(saved: Path, policy: Path) -> None:
    """Let a policy's folder have the files of another one, but for optimisers and value heads."""
    for path in policy.iterdir():
        if path.is_file():
            path.unlink()
    for path in saved.iterdir():
        if path.is_file():
            shutil.copyfile(path, policy / path.name)


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, whole or damaged, in order."""
    named = (re.fullmatch(r"step-(\d+)", path.name) for path in folder.glob("step-*"))
    return sorted(int(name[1]) for name in named if name)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in words, or None where it is whole and its state can be read."""
    if (wrong := sealed.damage(checkpoint)) is not None:
        return wrong
    try:
        state = read_state(checkpoint)
    except RunError as error:
        return str(error)
    if name_of(state.step) != checkpoint.name:
        return f"{STATE} is of step {state.step}"
    return None


def latest(folder: Path, at_most: int | None = None) -> Path:
    """The newest whole checkpoint, of a step of `at_most` where that is given.

    A damaged one is passed over with a warning. Raises RunError where no whole one is left.
    """
    return next(whole_ones(folder, at_most))


def whole_ones(folder: Path, at_most: int | None = None) -> Iterator[Path]:
    """The whole checkpoints, newest first. Damaged ones are passed over with a warning. Raises RunError at the end."""
    refuse_link(folder)
    damaged: list[str] = []
    for path in _newest_first(folder, at_most):
        if (wrong := damage(path)) is not None:
            damaged.append(f"{path.name}: {wrong}")
            log.warning("The checkpoint %s is damaged: %s. The one before it is used.", path, wrong)
            continue
        yield path
    told = f" ({'; '.join(damaged)})" if damaged else ""
    raise RunError(
        f"checkpoint: {folder} holds no whole checkpoint{told}; expected step-NNNNNN with a manifest.json. Restore one "
        "from a copy, or train anew in another folder."
    )


def restore(folder: Path, team: Team) -> tuple[Path, State]:
    """Restore a team from the newest checkpoint that is whole and fits it; returns that and its state.

    Those that are passed over are named in warnings, with the steps that are lost. Raises RunError where none is whole,
    and what the newest raised where none fits.
    """
    newest = max(steps(folder), default=0)
    first: CadreError | None = None
    candidates = whole_ones(folder)
    while True:
        try:
            path = next(candidates)
        except RunError:
            if first is not None:
                raise first from None
            raise
        try:
            state = load(path, team)
        except (EngineError, RunError) as error:
            first = first or error
            log.warning("The checkpoint %s cannot be used: %s The one before it is tried.", path, error)
            continue
        if state.step < newest:
            log.warning("%s is used: %d steps after it are lost and made again.", path, newest - state.step)
        return path, state


def _newest_first(folder: Path, at_most: int | None) -> Iterator[Path]:
    for step in reversed(steps(folder)):
        if at_most is None or step <= at_most:
            yield folder / name_of(step)


def read_state(checkpoint: Path) -> State:
    """The loop's own state, without the weights."""
    record = read_record(checkpoint / STATE, CheckpointState)
    return State(**record.model_dump(), in_flight=in_flight.read(checkpoint))


def _without_trees(state: State) -> dict[str, Any]:
    fields = asdict(replace(state, in_flight=()))
    del fields["in_flight"]
    return fields


def load(checkpoint: Path, team: Team) -> State:
    """Restore every policy of the team and return the loop's own state."""
    for learner in team.learners:
        learner.load(checkpoint)
    return read_state(checkpoint)


async def load_weights(checkpoint: Path, team: Team, policies: Iterable[str]) -> None:
    """Let a team that only plays have the weights of these policies; no optimiser is made or read."""
    step = read_state(checkpoint).step
    await team.load(Weights(policy, step, checkpoint / policy) for policy in policies)


def prune(folder: Path, present: int, keep: int, best: int | None, every: int = 0) -> None:
    """Remove all checkpoints but the last `keep` up to the `present` step, the one of step `best`, and those of every
    `every`-th step. Those beyond the present were damaged, or the run would have gone on with them."""
    found = steps(folder)
    past = [step for step in found if step <= present]
    kept = {*past[max(0, len(past) - keep) :], best, *(step for step in past if every and step % every == 0)}
    for step in found:
        if step not in kept:
            damaged = folder / name_of(step)
            damaged.unlink() if damaged.is_symlink() or damaged.is_file() else shutil.rmtree(damaged)
