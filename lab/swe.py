"""mini-swe-agent with a tiny model that learns to use it, on a CPU: `python -m lab.swe make|train|report FOLDER`.

make    what examples/harnesses/small_model.py makes with --python (and --planner): tasks, a model that was taught, and
        a recipe
train   each of --seeds that has no result in FOLDER yet, one after the other; one that was stopped begins anew
report  success on held-out repositories and on those with new bugs, before and after, over all seeds with a result;
        `--write` appends `swe.*`, of a team with a planner `swe.planned.*`, to results/swe.jsonl
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

import cadre
from bench.common import ROOT, commit, record
from cadre_analysis.compare import difference_interval, table_interval

FOLDER = ROOT / "runs" / "swe"
NEW_BUGS = 16
console = Console(soft_wrap=True, highlight=False)


def make(folder: Path, python: str, more: list[str]) -> None:
    command = [sys.executable, str(ROOT / "examples" / "harnesses" / "small_model.py"), str(folder)]
    subprocess.run([*command, "--python", python, *more], check=True)


def train(folder: Path, seed: int, sections: dict[str, Any]) -> dict[str, Any]:
    """Return success by task on both sets, before and after, the success in training by step, and the minutes."""
    run, began = folder / f"seed-{seed}", time.monotonic()
    shutil.rmtree(run, ignore_errors=True)
    trained = cadre.train(folder / "small_model.yaml", run=run, train={"seed": seed}, **sections)
    reports = [trained.evaluations()[place]["outcomes"] for place in (0, -1)]
    steps = [step["rollout/success"] for step in trained.metrics()]
    trained.close()
    if len(steps) < trained.experiment.config.train.steps:
        raise SystemExit(f"seed {seed} was stopped after {len(steps)} steps: train it again")
    minutes = (time.monotonic() - began) / 60
    new = {"settings": {"test": str(folder / "new_bugs.jsonl")}, "tasks": NEW_BUGS}
    reports += [cadre.evaluate(run, untrained=untrained, **new).outcomes for untrained in (True, False)]
    names = ("before", "after", "new_bugs.before", "new_bugs.after")
    successes = [[success for success, _ in report.values()] for report in reports]
    return dict(zip(names, successes, strict=True)) | {"training": steps, "minutes": minutes, "commit": commit()}


def report(folder: Path, write: bool) -> None:
    paths = sorted(folder.glob("seed-*.json"))
    results, seeds = [json.loads(path.read_text()) for path in paths], [int(path.stem[5:]) for path in paths]
    tables = {name: np.array([result[name] for result in results]) for name in list(results[0])[:4]}
    figures = {name: table_interval(table, np.random.default_rng(0)) for name, table in tables.items()}
    for name in ("", "new_bugs."):
        pair = (tables[f"{name}after"], tables[f"{name}before"])
        figures[f"{name}gain"] = difference_interval(*pair, np.random.default_rng(0), True, True)
    for name, (value, low, high) in figures.items():
        by_seed = [f"{table.mean():.1%}" for table in tables.get(name, ())]
        console.print(f"{name}: {value:.1%} ({low:.1%} to {high:.1%}) {' '.join(by_seed)}")
    minutes = [result["minutes"] for result in results]
    console.print("minutes:", *(f"{value:.1f}" for value in minutes))
    if write:
        command, commits = "python -m lab.swe train FOLDER", {result["commit"] for result in results}
        measured = (seeds, ", ".join(sorted(commits)))
        recipe = yaml.safe_load((folder / "small_model.yaml").read_text())
        prefix = "swe.planned" if "planner" in recipe["team"]["roles"] else "swe"
        for name, interval in figures.items():
            tasks = tables[name.replace("gain", "after")].shape[1]
            record("swe", f"{prefix}.{name}", interval, "share", command, tasks, *measured)
        record("swe", f"{prefix}.minutes", minutes, "minutes", command, len(seeds), *measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["make", "train", "report"])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--python", default="", help="of an environment with mini-swe-agent, for make")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", action="store_true")
    options, more = parser.parse_known_args()
    if options.part == "make":
        make(options.folder, options.python, more)
    elif options.part == "train":
        for seed in options.seeds:
            result = options.folder / f"seed-{seed}.json"
            if not result.exists():
                result.write_text(json.dumps(train(options.folder, seed, {})))
    else:
        report(options.folder, options.write)


if __name__ == "__main__":
    main()
