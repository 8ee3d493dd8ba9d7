"""Everything needed to go on as if nothing had happened.

All randomness is keyed by the step, so the step is the random state and the data position. Beside it stand the running
baselines, and what the engines save: every policy's weights, optimiser moments and counters, in safetensors and JSON.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cadre.credit import Memory
from cadre.errors import RunError
from cadre.team import Team


@dataclass(frozen=True)
class State:
    """What the loop itself carries from step to step: the updates made so far and the running baselines."""

    step: int = 0
    memory: Memory = field(default_factory=dict)


def save(folder: Path, state: State, team: Team) -> Path:
    """Write the state to `folder/step-NNNNNN`, whole or not at all."""
    final = folder / f"step-{state.step:06d}"
    if final.exists():
        return final
    partial = folder / f".partial-{state.step:06d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for learner in team.learners:
        learner.save(partial)
    (partial / "state.json").write_text(json.dumps(asdict(state)))
    partial.rename(final)
    return final


def latest(folder: Path) -> Path:
    """The newest complete checkpoint."""
    found = sorted(folder.glob("step-*/state.json"))
    if not found:
        raise RunError(f"checkpoint: {folder} holds none; expected step-NNNNNN with a state.json. Train first.")
    return found[-1].parent


def load(checkpoint: Path, team: Team) -> State:
    """Restore every policy of the team and return the loop's own state."""
    for learner in team.learners:
        learner.load(checkpoint)
    return State(**json.loads((checkpoint / "state.json").read_text()))


def prune(folder: Path, keep: Path) -> None:
    """Remove all checkpoints but `keep`."""
    for other in folder.glob("step-*"):
        if other != keep:
            shutil.rmtree(other)
