"""An audit from its experiment to its report: what `cadre audit` calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cadre.experiment.audit import Wanted, executed, sampled
from cadre.experiment.audit_report import Agreement, report
from cadre.experiment.event_loop import run_to_end
from cadre.experiment.experiment import Experiment
from cadre.experiment.loaded_team import load_team


def audited(
    experiment: Experiment, run: Path | None, wanted: Wanted, base: bool, tell: Callable[[str], object]
) -> dict[str, Agreement]:
    """Sample, say what playing out will cost, play out, and compare. `run` is the folder of the weights, if any; with
    `base` they are those from before training."""
    loaded = load_team(experiment, run, base)
    try:
        found = run_to_end(sampled(experiment, loaded.team, wanted))
        siblings = sum(len(spot.node.branches) for spot in found.spots)
        tell(
            f"{len(found.spots)} decisions of {found.trees} trees ({found.sampled_tokens:,} tokens); playing out "
            f"{siblings:,} branches {wanted.plays} times each samples about {found.tokens_ahead:,} tokens more\n"
        )
        return report(run_to_end(executed(experiment, loaded.team, found, wanted)), wanted.seed)
    finally:
        loaded.close()
