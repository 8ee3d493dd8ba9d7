"""Plan-Path on the embedded model: the team by shared model, adapters and models, single agents, and swapped roles.

    python bench/plan_path.py [--seeds 0 1 2] [--runs runs/results]

Trains through the command line, one run a row and seed, and leaves out runs that are already complete. Appends
`plan-path.*` to results/plan-path.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from common import ROOT, record
from trainings import Run, commits, stop_at

COMMAND = "make results"
console = Console()


def complete(runs: Sequence[Run]) -> Sequence[Run]:
    """The runs, trained now unless they are there already."""
    for run in runs:
        if not run.complete:
            console.print(f"training {run.folder.name}")
            run.train()
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "results")
    chosen = parser.parse_args()

    def runs(recipe: str, first: int = 0) -> Sequence[Run]:
        return complete([Run(chosen.runs / f"{recipe}-{n}", recipe, n, first=first) for n in chosen.seeds])

    def keep(name: str, runs: Sequence[Run], value: Callable[[Run], float], unit: str = "share") -> None:
        values = [value(run) for run in runs]
        line = record("plan-path", name, values, unit, COMMAND, runs[0].tasks, chosen.seeds, commits(runs))
        console.print(f"{name}: {line['value']:.3f} [{line['low']:.3f}, {line['high']:.3f}] {unit}")

    team = runs("plan-path")
    keep("plan-path.base.success", team, Run.before)
    keep("plan-path.team.success", team, Run.after)
    keep("plan-path.L0.success", team, Run.after)
    keep("plan-path.team.minutes", team, Run.minutes, "min")
    keep("plan-path.team.tokens", team, partial(Run.total, what="rollout/tokens"), "tokens")
    # The adapters' settings were chosen on other held-out tasks (docs/LOG.md), so they are judged on these.
    for level, trained in (("L1", runs("plan-path-lora", 400)), ("L2", runs("plan-path-roles"))):
        keep(f"plan-path.{level}.success", trained, Run.after)
        keep(f"plan-path.{level}.swapped.success", trained, Run.swapped)
    keep("plan-path.swapped.success", trained, Run.swapped)
    for recipe, name in (("plan-path-alone", "single"), ("plan-path-solo", "single-with-tool")):
        stops = [stop_at(run.total("rollout/tokens")) for run in team]
        single = [Run(chosen.runs / f"{recipe}-{n}", recipe, n, s) for n, s in zip(chosen.seeds, stops, strict=True)]
        keep(f"plan-path.{name}.base.success", complete(single), Run.before)
        keep(f"plan-path.{name}.success", single, Run.after)


if __name__ == "__main__":
    main()
