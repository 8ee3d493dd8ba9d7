"""Everything needed to go on as if nothing had happened.

All randomness is keyed by the step, so the step is the random state and the data position. What else there is, the
engines save: every policy's weights, optimiser moments and counters, in safetensors and JSON.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from cadre.errors import RunError
from cadre.team import Team


def save(folder: Path, step: int, team: Team) -> Path:
    """Write the state after `step` updates to `folder/step-NNNNNN`, whole or not at all."""
    final = folder / f"step-{step:06d}"
    if final.exists():
        return final
    partial = folder / f".partial-{step:06d}"
    shutil.rmtree(partial, ignore_errors=True)
    for learner in team.learners:
        learner.save(partial)
    (partial / "state.json").write_text(json.dumps({"step": step}))
    partial.rename(final)
    return final


def latest(folder: Path) -> Path:
    """The newest complete checkpoint."""
    found = sorted(folder.glob("step-*/state.json"))
    if not found:
        raise RunError(f"checkpoint: {folder} holds none; expected step-NNNNNN with a state.json. Train first.")
    return found[-1].parent


def load(checkpoint: Path, team: Team) -> int:
    """Restore every policy of the team and return how many updates were made."""
    for learner in team.learners:
        learner.load(checkpoint)
    return int(json.loads((checkpoint / "state.json").read_text())["step"])


def prune(folder: Path, keep: Path) -> None:
    """Remove all checkpoints but `keep`."""
    for other in folder.glob("step-*"):
        if other != keep:
            shutil.rmtree(other)
