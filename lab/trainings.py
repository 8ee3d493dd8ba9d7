"""Trainings that benchmarks read their figures off: done through the command line once, and kept."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.common import CADRE, ROOT, commit, validate_commit

DONE = "measured.json"
SWAP = "tool=planner,planner=tool"


console = Console(soft_wrap=True)


def stop_at(tokens: float) -> tuple[str, str]:
    """Overrides that end a training by sampled tokens, not by steps."""
    return "train.steps=100000", f"train.max_tokens={int(tokens)}"


def commits(runs: Sequence[Run]) -> str:
    """The commits that the runs were trained at."""
    return ", ".join(sorted({run.done()["commit"] for run in runs}))


def run(command: Sequence[str], **options: Any) -> float:
    """Seconds of processor time of a command and of what it has started. Raises CalledProcessError where it fails."""
    process = subprocess.Popen(command, **options)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Run:
    """One training by the command line: a recipe, a seed, what is changed in it, and where it lies.

    Judged on `tasks` of the test split from `first` on.
    """

    folder: Path
    recipe: str
    seed: int
    overrides: tuple[str, ...] = ()
    first: int = 0
    tasks: int = 200

    @property
    def complete(self) -> bool:
        return (self.folder / DONE).exists()

    def train(self, threads: int | None = None) -> None:
        """Train it now, on all cores or on so many threads. What an earlier try left is moved aside."""
        if self.folder.exists():
            self.folder.rename(self.folder.with_name(f"{self.folder.name}-stopped-{int(time.time())}"))
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        evaluate = [f"evaluate.first={self.first}", f"evaluate.tasks={self.tasks}"]
        arguments = [*evaluate, f"train.seed={self.seed}", *self.overrides, "--run", str(self.folder)]
        began, measured = time.monotonic(), commit()
        validate_commit(measured)  # before hours are spent on a figure that cannot be recorded
        with self.folder.with_suffix(".log").open("w") as log:
            train = [*CADRE, "train", self.recipe, *arguments]
            environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
            used = run(train, cwd=ROOT, stdout=log, stderr=log, env=environment)
        minutes = (time.monotonic() - began) / 60
        record = {"minutes": minutes, "processor_minutes": used / 60, "commit": measured}
        (self.folder / DONE).write_text(json.dumps(record))

    def done(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.folder / DONE).read_text())
        return record

    def minutes(self) -> float:
        """Minutes of the whole command, evaluations included."""
        return float(self.done()["minutes"])

    def processor_minutes(self) -> float:
        """Processor minutes of the command and its programs: its cost, whatever else the machine does."""
        return float(self.done()["processor_minutes"])

    def before(self, figure: str = "success") -> float:
        """A figure of the held-out evaluation before training."""
        return self._evaluation(0, figure)

    def after(self, figure: str = "success") -> float:
        """The same after it."""
        return self._evaluation(-1, figure)

    def _evaluation(self, index: int, figure: str) -> float:
        reports = (self.folder / "evaluations.jsonl").read_text().splitlines()
        return float(json.loads(reports[index])[figure])

    def total(self, metric: str) -> float:
        """The sum of a metric over the steps of training."""
        return float(sum(step[metric] for step in self.steps()))

    def steps(self) -> list[dict[str, Any]]:
        """The metrics of every step of training."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def model(self, policy: str) -> Path:
        """The folder of a trained policy."""
        return max((self.folder / "checkpoints").iterdir()) / policy

    def swapped(self) -> float:
        """Held-out success with the two policies in each other's role; measured once."""
        cache = self.folder / "swapped.json"
        if not cache.exists():
            chosen = ["--assign", SWAP, "--tasks", str(self.tasks), "--first", str(self.first), "--json"]
            evaluate = [*CADRE, "eval", str(self.folder), *chosen]
            completed = subprocess.run(evaluate, cwd=ROOT, check=True, capture_output=True, text=True)
            cache.write_text(completed.stdout.splitlines()[-1])
        return float(json.loads(cache.read_text())["success"])
