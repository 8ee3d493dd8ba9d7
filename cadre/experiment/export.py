"""A trained policy as a folder that others read: what `cadre export` writes."""

from __future__ import annotations

from pathlib import Path

from cadre.errors import ConfigError, nearest
from cadre.experiment import checkpoint
from cadre.experiment.build import build_team
from cadre.experiment.resolve import resolve
from cadre.experiment.run_directory import Run


def export_policy(run: Run, policy: str, out: Path, merge: bool) -> None:
    """Write the policy of the run's latest checkpoint to `out`: a Hugging Face folder, or a PEFT one for an adapter
    that is not to be merged into its base. Raises ConfigError where the run has not trained it."""
    trained = [name for name, settings in run.config.team.policies.items() if not settings.frozen]
    if policy not in trained:
        raise ConfigError(
            f"export: got policy {policy!r}; expected one that {run.folder} trained: {', '.join(trained)}. "
            f"Name one of them.{nearest(policy, trained)}"
        )
    saved = checkpoint.latest(run.folder / "checkpoints")
    team = build_team(resolve(run.config), train=True)
    checkpoint.load(saved, team)
    for learner in team.learners:
        if policy in learner.policies:
            learner.export(policy, out, merge)
