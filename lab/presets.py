"""Every preset under one budget of sampled tokens on Plan-Path with the embedded model.

    python -m lab.presets [train] [--seeds 0 1 2] [--only at_grpo ippo] [--runs DIR] [--jobs 2]
    python -m lab.presets curves

Trains through the command line, one run a preset and seed, and leaves out runs that are already complete. Appends
`preset.NAME.plan-path.success` to results/presets.jsonl, and the mean with the interval over seeds and tasks of
`cadre compare` as `preset.NAME.plan-path.mean`. Beside the algorithms the names are `gdpo` (GRPO on parts of the
reward), `teacher` (on-policy distillation from the team that `at_grpo` has trained with the same seed), `hint`
(self-distillation with the environment's privileged text) and `as_published` (AT-GRPO as the recipes `*-as-published`
have it, but with the rate of the others).

`curves` writes the success of each training step of the complete runs on Plan-Path to results/presets-curves.json.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from bench import common
from cadre.algorithms import ALGORITHMS
from cadre.config.recipes import recipes
from cadre.statistics import Interval
from cadre_analysis.compare import read_run, table_interval
from lab.trainings import Run, commits, console, stop_at

COMMAND = "python -m lab.presets"
CURVES = "presets-curves.json"
# Points of the choices that are no algorithms of their own.
TAUGHT = {"teacher": "at_grpo", "hint": "at_grpo"}
NAMES = [*(name for name in ALGORITHMS if name != "custom"), "gdpo", "as_published", *TAUGHT]
# What the plan-path recipe samples in thirty steps (table.team-shared.plan-path.tokens).
PLAN_PATH_TOKENS = 143_000

# How a preset plays Plan-Path where it has no recipe of its own: a recipe, and the settings of its algorithm.
EPISODES: tuple[str, dict[str, Any]] = ("plan-path", {"k": 8})
BRANCHES: tuple[str, dict[str, Any]] = ("plan-path", {"k": 4, "decisions": 1})
ROLLED_OUT: tuple[str, dict[str, Any]] = ("plan-path-magrpo", {"k": 3})
PLAN_PATH: dict[str, tuple[str, dict[str, Any]]] = {
    "at_grpo": EPISODES,
    **dict.fromkeys(("tree_grpo", "tree_rl", "arpo"), BRANCHES),
    "bpo": ("plan-path", {"k": 2, "decisions": 1}),
    **dict.fromkeys(("c3", "hierarchical_grpo", "ma_reinforce", "ma_rloo", "ma_remax", "ma_dpo"), ROLLED_OUT),
    "teamtr": ("plan-path-roles", {"k": 8}),
    "gdpo": ("plan-path", {"name": "grpo", "k": 8, "parts": {"goal": 1.0, "format": 0.2}}),
    "as_published": ("plan-path", {"name": "at_grpo", "k": 4, "lookahead": 0}),
    **dict.fromkeys(TAUGHT, ("plan-path", {"name": "at_grpo", "k": 8})),
}
# What a preset needs beside that. The bound of TeamTR is checked between the steps of an update.
OTHER: dict[str, tuple[str, ...]] = {
    "teamtr": ("learner.epochs=2",),
    "as_published": ("learner.minibatch_size=64", "learner.weight_decay=0.01", "loss.dual_clip=3.0"),
    "hint": ('teacher={"hint": true, "alone": true}', "learner.learning_rate=3.0e-4"),
}


def plan_path(name: str, seed: int, runs: Path) -> Run:
    """Return a preset's run on Plan-Path, stopped by tokens and judged on tasks that no setting was chosen on."""
    recipe_name = f"plan-path-{name.replace('_', '-')}"
    recipe, overrides = recipe_name, OTHER.get(name, ())
    if recipe_name not in recipes():
        recipe, settings = PLAN_PATH.get(name, EPISODES)
        overrides = (f"algorithm={json.dumps({'name': name, **settings})}", *overrides)
    folder = runs / "presets" / f"{recipe_name}-{seed}"
    return Run(folder, recipe, seed, (*overrides, *stop_at(PLAN_PATH_TOKENS)), first=600)


def with_teacher(name: str, run: Run, runs: Path) -> Run:
    """Return the run of `teacher` with the policy that the preset before it has trained with the same seed."""
    if name != "teacher":
        return run
    model = plan_path(TAUGHT[name], run.seed, runs).model("shared")
    taught = f"teacher={json.dumps({'model': str(model), 'alone': True})}"
    return replace(run, overrides=(*run.overrides, taught))


def main() -> None:
    cores = len(os.sched_getaffinity(0))  # those that this process may run on
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["train", "curves"], default="train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--runs", type=Path, default=common.ROOT / "runs" / "results")
    parser.add_argument("--jobs", type=int, default=cores, help="trainings at once")
    chosen = parser.parse_args()
    runs = chosen.runs.absolute()
    threads = max(1, cores // chosen.jobs)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        if chosen.part == "curves":
            for name in chosen.only:
                keep_curves(name, [plan_path(name, seed, runs) for seed in chosen.seeds])
            return
        if "teacher" in chosen.only:
            teachers = [plan_path(TAUGHT["teacher"], seed, runs) for seed in chosen.seeds]
            for training in [pool.submit(trained, run, threads) for run in teachers]:
                training.result()
        rows = {
            name: [with_teacher(name, plan_path(name, seed, runs), runs) for seed in chosen.seeds]
            for name in chosen.only
        }
        going = {name: [pool.submit(trained, run, threads) for run in row] for name, row in rows.items()}
        for name, row in rows.items():
            for training in going[name]:
                training.result()
            keep(name, row, chosen.seeds)


def trained(run: Run, threads: int) -> None:
    if not run.complete:
        console.print(f"training {run.folder.name}")
        run.train(threads)


def keep(name: str, runs: Sequence[Run], seeds: Sequence[int]) -> None:
    """Append a preset's success, and of several seeds the mean with its interval over seeds and tasks."""
    values, label = [run.after("success") for run in runs], f"preset.{name}.plan-path.success"
    line = common.record("presets", label, values, "share", COMMAND, runs[0].tasks, seeds, commits(runs))
    spent = ", ".join(f"{run.total('rollout/tokens'):,.0f}" for run in runs)
    console.print(f"{label}: {line['value']:.3f} [{line['low']:.3f}, {line['high']:.3f}], tokens {spent}")
    if len(runs) > 1:
        mean = f"preset.{name}.plan-path.mean"
        interval = mean_over_tasks(runs)
        common.record("presets", mean, interval, "share", COMMAND, runs[0].tasks, seeds, commits(runs))
        console.print("{}: {:.3f} [{:.3f}, {:.3f}] over seeds and tasks".format(mean, *interval))


def keep_curves(name: str, runs: Sequence[Run]) -> None:
    """Write a preset's curves in place of those that were there, if its runs are complete: for each seed (tokens so
    far, success on the step's training tasks) of every step."""
    if not all(run.complete for run in runs):
        return
    curves = []
    for run in runs:
        tokens = accumulate(step["rollout/tokens"] for step in run.steps())
        curves.append([[spent, step["rollout/success"]] for spent, step in zip(tokens, run.steps(), strict=True)])
    file = common.RESULTS / CURVES
    curves_by_preset = json.loads(file.read_text()) if file.exists() else {}
    lines = [
        f"{json.dumps(preset)}: {json.dumps(seeds)}"
        for preset, seeds in sorted((curves_by_preset | {name: curves}).items())
    ]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def mean_over_tasks(runs: Sequence[Run]) -> Interval:
    """Return the mean held-out success with the interval of `cadre compare` over seeds and tasks."""
    last = [read_run(run.folder, "success").evaluations[-1].values for run in runs]
    table = np.array([[outcomes[task] for task in sorted(last[0])] for outcomes in last])
    return table_interval(table, np.random.default_rng(0))


if __name__ == "__main__":
    main()
