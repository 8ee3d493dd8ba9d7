"""Every preset under one budget of sampled tokens: on Plan-Path with the embedded model, and on a coordination game.

    python bench/presets.py [plan-path coordination] [--seeds 0 1 2] [--only at_grpo ippo] [--runs DIR] [--jobs 2]

Trains through the command line, one run a preset and seed, and leaves out runs that are already complete. Appends
`preset.NAME.plan-path.success` and `preset.NAME.coordination.return` to results/presets.jsonl.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

import common
from cadre.algorithms import ALGORITHMS
from tests.helpers.coordination import experiment
from trainings import Run, commits, console, stop_at

COMMAND = "python bench/presets.py"
NAMES = [name for name in ALGORITHMS if name != "custom"]
# What the plan-path recipe samples in thirty steps (table.team-shared.plan-path.tokens), and what the game is given.
PLAN_PATH_TOKENS, COORDINATION_TOKENS = 143_000, 40_000


def plan_path(name: str, seed: int, runs: Path) -> Run:
    """A preset's own recipe, stopped by tokens and judged on tasks that no setting was chosen on."""
    recipe = "plan-path" if name == "at_grpo" else f"plan-path-{name.replace('_', '-')}"
    stop = stop_at(PLAN_PATH_TOKENS)
    return Run(runs / "presets" / f"{recipe}-{seed}", recipe, seed, stop, first=600)


def coordination(name: str, seed: int, runs: Path) -> Run:
    """The game and the settings of tests/helpers/coordination.py, played by an untrained model of a dozen tokens."""
    folder = runs / "coordination"
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / f"{name}.yaml"
    recipe.write_text(yaml.safe_dump(experiment(name, folder / "models")))
    stop = stop_at(COORDINATION_TOKENS)
    return Run(folder / f"{name}-{seed}", str(recipe), seed, stop, tasks=8)


ROWS: dict[str, tuple[Callable[[str, int, Path], Run], str, str, str]] = {
    "plan-path": (plan_path, "success", "success", "share"),
    "coordination": (coordination, "reward", "return", "reward"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("games", nargs="*", default=[], help=f"of {', '.join(ROWS)}; all of them unless named")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--runs", type=Path, default=common.ROOT / "runs" / "results")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trainings at once")
    chosen = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // chosen.jobs)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for game in chosen.games or ROWS:
            rows = {name: [ROWS[game][0](name, seed, chosen.runs) for seed in chosen.seeds] for name in chosen.only}
            going = {name: [pool.submit(trained, run, threads) for run in runs] for name, runs in rows.items()}
            for name, runs in rows.items():
                for training in going[name]:
                    training.result()
                keep(game, name, runs, chosen.seeds)


def trained(run: Run, threads: int) -> None:
    if not run.complete:
        console.print(f"training {run.folder.name}")
        run.train(threads)


def keep(game: str, name: str, runs: Sequence[Run], seeds: Sequence[int]) -> None:
    """Append a preset's figure on a game."""
    _, value, figure, unit = ROWS[game]
    values, label = [run.after(value) for run in runs], f"preset.{name}.{game}.{figure}"
    line = common.record("presets", label, values, unit, COMMAND, runs[0].tasks, seeds, commits(runs))
    spent = ", ".join(f"{run.total('rollout/tokens'):,.0f}" for run in runs)
    console.print(f"{label}: {line['value']:.3f} [{line['low']:.3f}, {line['high']:.3f}], tokens {spent}")


if __name__ == "__main__":
    main()
