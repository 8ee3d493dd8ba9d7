"""The benchmark's half of the talk with its workers: sides that are loaded together and take turns."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WORKERS = Path(__file__).parent / "rivals"
# The optimiser's moments come with the first update, so a side has all of its memory in the second turn only.
WARMING = 2

Turn = dict[str, Any]  # what turns.py says of one turn


@dataclass(frozen=True)
class Worker:
    """A side's start: its name, an interpreter, a script of bench/rivals, its job, and additions to its environment."""

    name: str
    python: Path
    script: str
    job: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)


class Side:
    """A worker that runs: its process lives from `with` to the end of it. `folder` takes its job and its log."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self.name = worker.name
        folder.mkdir(parents=True, exist_ok=True)
        job = folder / f"{worker.name}.json"
        job.write_text(json.dumps(dict(worker.job)))
        self._log = folder / f"{worker.name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(worker.python), str(WORKERS / worker.script), str(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | common_environment(int(worker.job["threads"])) | dict(worker.environment),
            )
        self._read()

    def __enter__(self) -> Side:
        return self

    def turn(self) -> Turn:
        """One turn of work. Raises RuntimeError with the end of the worker's log where it broke."""
        self._ask("go")
        return self._read()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._process.poll() is None and kind is None:
            self._ask("stop")
            self._process.wait()
        self._process.kill()
        self._process.wait()

    def _ask(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def _read(self) -> Turn:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            end = "\n".join(self._log.read_text().splitlines()[-20:])
            raise RuntimeError(f"{self.name} ended with {self._process.wait()}; the whole log is {self._log}:\n{end}")
        return json.loads(line)


def common_environment(threads: int) -> dict[str, str]:
    """The same for every side: so many threads, and no network."""
    return {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
    }


def rounds(workers: Sequence[Worker], repeats: int, folder: Path) -> dict[str, list[Turn]]:
    """`repeats` turns of every side, all sides in turn, each round begun by another; `WARMING` turns are left out."""
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(worker, folder)) for worker in workers]
        for _ in range(WARMING):
            for side in sides:
                side.turn()
        turns: dict[str, list[Turn]] = {side.name: [] for side in sides}
        for number in range(repeats):
            first = number % len(sides)
            for side in sides[first:] + sides[:first]:
                turns[side.name].append(side.turn())
    if len(sides) > 1:  # Alone, a side's later prompts hold what it said itself, and differ from round to round.
        same_work(turns)
    return turns


def same_work(turns_by_side: Mapping[str, Sequence[Turn]]) -> None:
    """Raise ValueError unless all sides read the same prompts, drew as many tokens and trained on them.

    A side may leave out the last token of every completion in its loss, as CoMLRL does.
    """
    turns = [(name, turn) for name, side_turns in turns_by_side.items() for turn in side_turns]
    for figure in ("prompts", "prompt_tokens", "sampled"):
        if len({turn[figure] for _, turn in turns}) != 1:
            raise ValueError(f"The sides differ in {figure}: {sorted({(name, turn[figure]) for name, turn in turns})}.")
    for name, turn in turns:
        if turn["trained"] and not 0.9 * turn["sampled"] <= turn["trained"] <= turn["sampled"]:
            raise ValueError(f"{name} drew {turn['sampled']} tokens but trained on {turn['trained']}.")


def ratios(turns_by_side: Mapping[str, Sequence[Turn]], side: str, rival: str, figure: str = "seconds") -> list[float]:
    """Return the speedup of `side` over `rival`, one value per round."""
    return [their[figure] / our[figure] for our, their in zip(turns_by_side[side], turns_by_side[rival], strict=True)]
