"""Does a long run grow? Trains 2,000 steps of a game of two turns on the tiniest model and watches what it holds.

`memory.growth_pct` is by how much the resident memory of the last hundred steps (the median of what was read) is above
that of the hundred after the warm-up. Writes to results/memory.jsonl with --write.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from common import ROOT, record
from tests.helpers.coordination import write_speaker

WARM_UP, WINDOW = 200, 100


def recipe(folder: Path) -> Path:
    """Two roles that play two turns each, one model for both."""
    path = folder / "relay.yaml"
    path.write_text(
        json.dumps(
            {
                "env": f"{ROOT}/tests/helpers/games.py:Relay",
                "team": str(write_speaker(folder / "model")),
                "algorithm": {"name": "at_grpo", "k": 2},
                "sampling": {"max_tokens": 2},
                "train": {"tasks_per_step": 2, "checkpoint_every": 500},
                "evaluate": {"tasks": 4, "every": 500},
            }
        )
    )
    return path


def resident(pid: int) -> int:
    """KiB that a process holds in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def watched(folder: Path, steps: int) -> list[tuple[int, int]]:
    """(steps done, KiB) of a training, read every fifth of a second until it ends."""
    command = [sys.executable, "-m", "cadre", "train", str(recipe(folder)), f"train.steps={steps}"]
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [*command, "--run", str(folder / "run")],
        cwd=ROOT,
        stdout=log,
        stderr=log,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    readings, metrics = [], folder / "run" / "metrics.jsonl"
    while process.poll() is None:
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        readings.append((done, resident(process.pid)))
        time.sleep(0.2)
    if process.returncode != 0:
        raise RuntimeError(f"the training ended with exit code {process.returncode}: {(folder / 'log').read_text()}")
    return readings


def between(readings: list[tuple[int, int]], first: int, last: int) -> float:
    """The median of what was held from one step to another."""
    return median(held for done, held in readings if first <= done < last and held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--write", action="store_true", help="append to results/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        readings = watched(Path(scratch), options.steps)
    for first in range(0, options.steps, options.steps // 10):
        print(f"from step {first}: {between(readings, first, first + WINDOW) / 1024:.1f} MiB")
    begin = between(readings, WARM_UP, WARM_UP + WINDOW)
    end = between(readings, options.steps - WINDOW, options.steps + 1)
    growth = 100 * (end / begin - 1)
    print(f"{begin / 1024:.1f} MiB after {WARM_UP} steps, {end / 1024:.1f} MiB at the end: {growth:+.2f}%")
    if options.write:
        command = f"python bench/memory.py --steps {options.steps} --write"
        record("memory", "memory.growth_pct", [growth], "%", command, options.steps)


if __name__ == "__main__":
    main()
