"""Long work in slices: trainings that are stopped and gone on with, and evaluations that are made once.

Everything is done by the command line and kept in a folder, so that a command that was ended at any minute goes on from
there. `Clock` says how long this call may still work.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import CADRE, ROOT, commit

STOPPED = 130
OF_TRAINING = (
    "sampling.temperature=",
    "evaluate.tasks=",
    "evaluate=",
    "train.seed=",
)  # what an evaluation has options for
LAST_WORDS_S = 60.0  # for a checkpoint after Ctrl-C


class OutOfTimeError(Exception):
    """This call has worked as long as it may; the next one goes on."""


@dataclass(frozen=True)
class Clock:
    """When a call began, and for how many seconds it may work; 0 for ever."""

    began: float
    seconds: float = 0.0

    def left(self) -> float | None:
        """Seconds, None where there is no end. Raises OutOfTimeError at the end."""
        if not self.seconds:
            return None
        left = self.began + self.seconds - time.monotonic()
        if left <= 0:
            raise OutOfTimeError
        return left


def train(recipe: str, changes: Sequence[str], folder: Path, clock: Clock) -> None:
    """Train to the end, from where the folder stands. Raises OutOfTimeError where the end is not reached."""
    done = folder.with_suffix(".done")
    if done.exists():
        return
    begun = (folder / "config.yaml").is_file()
    arguments = [*(["--resume"] if begun else [recipe, *changes]), "--run", str(folder)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    made_by = commit()  # before it begins, as the tree may change while it trains
    with folder.with_suffix(".log").open("a") as log:
        code = _stopped_in_time([*CADRE, "train", *arguments], log.fileno(), clock)
    if code == STOPPED:
        raise OutOfTimeError
    if code:
        raise RuntimeError(f"cadre train ended with {code}; see {folder.with_suffix('.log')}")
    done.write_text(json.dumps({"commit": made_by}))


def _stopped_in_time(command: Sequence[str], log: int, clock: Clock) -> int:
    """The exit code of a command that is asked to stop, as by Ctrl-C, when the time is over."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        return process.wait(clock.left())
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        process.kill()  # the last checkpoint stands
        process.wait()
        return STOPPED


def _evaluated(arguments: Sequence[str]) -> dict[str, Any]:
    """The report of an evaluation; what it says besides goes where this process writes."""
    command = [*CADRE, "eval", *(one for one in arguments if not one.startswith(OF_TRAINING)), "--json"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def evaluate_sampled(
    target: str, changes: Sequence[str], note: Path, tasks: int, samples: int, seed: int, clock: Clock
) -> dict[str, Any]:
    """Return the report of held-out tasks that are played several times with the untrained team, at the temperature of
    `changes`."""
    temperature = next(one.partition("=")[2] for one in reversed(changes) if one.startswith("sampling.temperature="))
    chosen = ["--tasks", str(tasks), "--samples", str(samples), "--temperature", temperature, "--seed", str(seed)]
    return _report_once([target, *changes, *chosen], note, clock)


def _report_once(arguments: Sequence[str], note: Path, clock: Clock) -> dict[str, Any]:
    """Return the report of an evaluation, which is made once and kept in `note`."""
    if not note.exists():
        clock.left()
        note.write_text(json.dumps(_evaluated(arguments)))
    report: dict[str, Any] = json.loads(note.read_text())
    return report
