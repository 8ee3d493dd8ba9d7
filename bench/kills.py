"""Kill training runs (SIGKILL) at random moments, resume them, and compare the results with an unbroken run's bits.

Three teams: a LoRA a role, a model a role, and critics. A moment is drawn from the whole of a process's life, or is one
that is watched for: a checkpoint being written, an evaluation just logged, a step just logged. `--kills` are divided
among the teams. Appends `resume.kills` and `resume.mismatches` to results/resume.jsonl.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import ROOT, record, timeless

CADRE = [sys.executable, "-m", "cadre"]
TEAMS = {"lora": "plan-path-lora", "models": "plan-path-roles", "critics": "plan-path-mappo"}
SMALL = (
    "train.steps=8 train.tasks_per_step=4 train.trees_kept=4 train.checkpoint_every=1 evaluate.tasks=8 evaluate.every=2"
).split()
# A life that is not killed by then ends by itself or is stuck.
LONGEST_SECONDS = 900.0


def start(recipe: str, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a training in `folder`, or resume it where the folder is there."""
    # A run that was killed before its configuration was complete cannot be resumed.
    resume = ["--resume"] if (folder / "config.yaml").exists() else []
    with log.open("ab") as out:
        return subprocess.Popen(
            [*CADRE, "train", recipe, *SMALL, "--run", str(folder), *resume],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def moments(folder: Path, seconds: float, draw: random.Random) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Conditions to kill at, without end: (name, whether it holds now)."""
    while True:
        at = time.monotonic() + draw.uniform(0.0, seconds)
        yield "any time", lambda at=at: time.monotonic() >= at
        yield "saving", lambda: any(folder.glob("checkpoints/.partial-*"))
        yield "evaluated", grows(folder / "evaluations.jsonl")
        yield "logged", grows(folder / "metrics.jsonl")


def grows(path: Path) -> Callable[[], bool]:
    """Return a condition: the file is longer than it is now."""
    size = path.stat().st_size if path.exists() else 0
    return lambda: path.exists() and path.stat().st_size > size


def killed(process: subprocess.Popen[bytes], is_due: Callable[[], bool]) -> bool:
    """Kill the process once it is due; False where it ended before that. Raises where it failed or is stuck."""
    began = time.monotonic()
    while process.poll() is None:
        if is_due():
            process.kill()
            process.wait()
            return True
        if time.monotonic() - began > LONGEST_SECONDS:
            process.kill()
            raise RuntimeError("a training did not end")
        time.sleep(0.001)
    if process.returncode != 0:
        raise RuntimeError(f"a training ended with exit code {process.returncode}")
    return False


def state(folder: Path) -> dict[str, Any]:
    """Return a run's results without times: metrics, trees, evaluations, checksums of its last checkpoint's files."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [timeless(step) for step in metrics]
    newest = max((folder / "checkpoints").glob("step-*"))
    files = {
        str(path.relative_to(newest)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(newest.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }
    return {
        "metrics": lines,
        "trees": hashlib.sha256((folder / "trees.jsonl").read_bytes()).hexdigest(),
        "evaluations": (folder / "evaluations.jsonl").read_text(),
        "files": {newest.name: files},
    }


def attacked(recipe: str, folder: Path, kills: int, seconds: float, draw: random.Random) -> tuple[int, int]:
    """Train with interruptions, again from the start until so many were made; (kills, runs that came to an end)."""
    kill_count = ended = 0
    for name, is_due in moments(folder, seconds, draw):
        if killed(start(recipe, folder, folder.with_suffix(".log")), is_due):
            kill_count += 1
            print(f"kill {kill_count} of {kills}: {name}", flush=True)
        else:
            ended += 1
            if kill_count >= kills:
                break
            shutil.move(folder, folder.with_name(f"{folder.name}-{ended}"))
        if kill_count >= kills:
            killed(start(recipe, folder, folder.with_suffix(".log")), lambda: False)
            ended += 1
            break
    return kill_count, ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=51)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--teams", nargs="+", default=list(TEAMS), choices=list(TEAMS))
    parser.add_argument("--write", action="store_true", help="append to results/")
    options = parser.parse_args()
    total = mismatches = 0
    with tempfile.TemporaryDirectory() as scratch:
        for team in options.teams:
            draw = random.Random(f"{options.seed} {team}")
            uninterrupted, broken = Path(scratch) / f"{team}-whole", Path(scratch) / team
            began = time.monotonic()
            killed(start(TEAMS[team], uninterrupted, uninterrupted.with_suffix(".log")), lambda: False)
            expected, seconds = state(uninterrupted), time.monotonic() - began
            kill_count, ended = attacked(TEAMS[team], broken, -(-options.kills // len(options.teams)), seconds, draw)
            folders = [broken, *(broken.with_name(f"{broken.name}-{number}") for number in range(1, ended))]
            wrong = [folder for folder in folders if folder.exists() and state(folder) != expected]
            print(f"{team}: {kill_count} kills, {ended} runs ended, {len(wrong)} differ", flush=True)
            total, mismatches = total + kill_count, mismatches + len(wrong)
    if options.write:
        command = f"python bench/kills.py --kills {options.kills} --seed {options.seed} --write"
        record("resume", "resume.kills", [total], "kills", command, total)
        record("resume", "resume.mismatches", [mismatches], "runs", command, total)


if __name__ == "__main__":
    main()
