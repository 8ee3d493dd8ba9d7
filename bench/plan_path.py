"""Plan-Path on the embedded model: the team, the single agents on its token budget, and the roles swapped.

    python bench/plan_path.py [--seeds 0 1 2] [--runs runs/results]

Trains through the command line, one run a row and seed, and leaves out runs that are already complete. Appends
`plan-path.*` to results/plan-path.jsonl.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from common import ROOT, record

COMMAND = "make results"
CADRE = [sys.executable, "-m", "cadre.cli"]
console = Console()


def trained(recipe: str, seed: int, runs: Path, *overrides: str) -> Path:
    """The complete run of a recipe and a seed, trained now unless it is there already."""
    folder = runs / f"{recipe}-{seed}"
    if not (folder / "minutes.json").exists():
        console.print(f"training {recipe}, seed {seed}")
        if folder.exists():
            folder.rename(folder.with_name(f"{folder.name}-stopped-{int(time.time())}"))
        began = time.monotonic()
        train = [*CADRE, "train", recipe, f"train.seed={seed}", *overrides, "--run", str(folder)]
        subprocess.run(train, cwd=ROOT, check=True)
        (folder / "minutes.json").write_text(json.dumps((time.monotonic() - began) / 60))
    return folder


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]


def tokens(folder: Path) -> int:
    """Tokens sampled in training."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return sum(json.loads(line)["rollout/tokens"] for line in lines)


def swapped(folder: Path) -> float:
    """Success with the two policies in each other's role."""
    assign = ["--assign", "tool=planner,planner=tool", "--tasks", "200", "--json"]
    done = subprocess.run([*CADRE, "eval", str(folder), *assign], cwd=ROOT, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["success"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "results")
    chosen = parser.parse_args()
    seeds = chosen.seeds
    team = [trained("plan-path", seed, chosen.runs) for seed in seeds]

    def keep(name: str, values: list[float], unit: str = "share") -> None:
        line = record("plan-path", name, values, unit, COMMAND, 200, seeds)
        console.print(f"{name}: {line['value']:.3f} [{line['low']:.3f}, {line['high']:.3f}] {unit}")

    keep("plan-path.base.success", [reports(run)[0]["success"] for run in team])
    keep("plan-path.team.success", [reports(run)[-1]["success"] for run in team])
    keep("plan-path.team.minutes", [json.loads((run / "minutes.json").read_text()) for run in team], "min")
    keep("plan-path.team.tokens", [tokens(run) for run in team], "tokens")
    budgets = [f"train.max_tokens={tokens(run)}" for run in team]
    for recipe, name in (("plan-path-alone", "single"), ("plan-path-solo", "single-with-tool")):
        runs = [
            trained(recipe, seed, chosen.runs, "train.steps=100000", budget)
            for seed, budget in zip(seeds, budgets, strict=True)
        ]
        keep(f"plan-path.{name}.base.success", [reports(run)[0]["success"] for run in runs])
        keep(f"plan-path.{name}.success", [reports(run)[-1]["success"] for run in runs])
    roles = [trained("plan-path-roles", seed, chosen.runs) for seed in seeds]
    keep("plan-path.roles.success", [reports(run)[-1]["success"] for run in roles])
    keep("plan-path.swapped.success", [swapped(run) for run in roles])


if __name__ == "__main__":
    main()
