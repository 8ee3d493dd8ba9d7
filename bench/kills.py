"""Kills training runs (SIGKILL) at random moments and resumes them: is what they leave bit-equal to an unbroken run?

Three teams: a LoRA a role, a model a role, and critics. A moment is drawn from the whole of a process's life, or is one
that is watched for: a checkpoint being written, an evaluation just logged, a step just logged. `--kills` are divided
among the teams. Appends `resume.kills` and `resume.mismatches` to results/resume.jsonl.

`--outputs` kills so many calls that write something under a name of the user's (a fork, an export, a page, a warm
start, a training) at random moments and calls each again: `kills.tried` counts them, `kills.lost` those after which
what stands under the name was half, or the second call did not give the whole. Both are appended to
results/correctness.jsonl.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import ROOT, record

CADRE = [sys.executable, "-m", "cadre"]
TEAMS = {"lora": "plan-path-lora", "models": "plan-path-roles", "critics": "plan-path-mappo"}
SMALL = (
    "train.steps=8 train.tasks_per_step=4 train.trees_kept=4 train.checkpoint_every=1 evaluate.tasks=8 evaluate.every=2"
).split()
# A life that is not killed by then ends by itself or is stuck.
LONGEST_SECONDS = 900.0
# Calls that are killed beside each other.
AT_ONCE = 2
# Files that say how long something took, or how often it was gone on with.
TIMED = {"metrics.jsonl", "environment.json", "status.json", "manifest.json", ".lock", "resumed.jsonl", "command.json"}


def start(recipe: str, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """A training in `folder`: begun where the folder is not there yet, gone on with where it is."""
    # Killed before its configuration was whole, a run is no run: its folder holds nothing to go on with.
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
    """Whether the file is longer than when this was made."""
    before = path.stat().st_size if path.exists() else 0
    return lambda: path.exists() and path.stat().st_size > before


def killed(process: subprocess.Popen[bytes], due: Callable[[], bool]) -> bool:
    """Kill the process once it is due; False where it ended before that. Raises where it failed or is stuck."""
    began = time.monotonic()
    while process.poll() is None:
        if due():
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
    """What a run left, times aside: metrics, trees, evaluations, and a checksum of every file of its checkpoints."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [
        {name: value for name, value in step.items() if "time/" not in name and "_per_s" not in name}
        for step in metrics
    ]
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
    made = ended = 0
    for name, due in moments(folder, seconds, draw):
        if killed(start(recipe, folder, folder.with_suffix(".log")), due):
            made += 1
            print(f"kill {made} of {kills}: {name}", flush=True)
        else:
            ended += 1
            if made >= kills:
                break
            shutil.move(folder, folder.with_name(f"{folder.name}-{ended}"))
        if made >= kills:
            killed(start(recipe, folder, folder.with_suffix(".log")), lambda: False)
            ended += 1
            break
    return made, ended


def content(path: Path) -> dict[str, str]:
    """A checksum of every file of an output that is the same each time; what it took is left out."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    kept = [one for one in files if one.name not in TIMED and "tensorboard" not in one.parts]
    return {str(one.relative_to(path)): hashlib.sha256(one.read_bytes()).hexdigest() for one in kept}


def calls(scratch: Path) -> dict[str, list[str]]:
    """The calls that are killed, each with OUT for what it writes; a training for them is made in `scratch`."""
    source, recipe = scratch / "source", TEAMS["lora"]
    short = ["train.steps=2", "train.tasks_per_step=2", "train.checkpoint_every=1", "evaluate.tasks=0"]
    made = called(["train", recipe, *short, "train.trees_kept=2", "--run", "OUT"], source, scratch / "source.log")
    killed(made, lambda: False)
    answers = scratch / "answers.jsonl"
    answers.write_text(json.dumps({"role": "tool", "prompt": "1", "answer": "2"}) + "\n")
    return {
        "fork": ["fork", str(source), "--at", "1", "--run", "OUT"],
        "export": ["export", str(source), "mover", "OUT", "--merge"],
        "view": ["view", str(source), "--export", "OUT"],
        "warm-start": ["warm-start", recipe, "--on", str(answers), "--steps", "2", "--run", "OUT"],
        "train": ["train", recipe, *short, "--run", "OUT"],
    }


def called(words: list[str], out: Path, log: Path) -> subprocess.Popen[bytes]:
    """The call for `out`; one that makes a run which is there already goes on with it."""
    if (out / "config.yaml").exists() and words[0] in ("warm-start", "train"):
        warm = words[0] == "warm-start" and not any((out / "checkpoints").glob("step-*"))
        words = ["warm-start" if warm else "train", "--run", "OUT", "--resume"]
    with log.open("ab") as file:
        return subprocess.Popen(
            [*CADRE, *(str(out) if word == "OUT" else word for word in words)],
            cwd=ROOT,
            stdout=file,
            stderr=file,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def is_lost(name: str, words: list[str], out: Path, expected: dict[str, str], log: Path) -> bool:
    """Whether what a killed call left is half, or the call made again does not give the whole."""
    makes_run = name in ("warm-start", "train")
    if out.exists() and not makes_run:
        return content(out) != expected
    if name == "warm-start" and any((out / "checkpoints").glob("step-*")):
        return content(out) != expected
    if called(words, out, log).wait() != 0:
        return True
    return content(out) != expected


def outputs(count: int, scratch: Path, draw: random.Random) -> tuple[int, int]:
    """Kill so many calls; (killed, lost)."""
    words = calls(scratch)
    whole: dict[str, tuple[dict[str, str], float]] = {}
    for name in words:
        began = time.monotonic()
        if called(words[name], scratch / f"{name}-whole", scratch / f"{name}.log").wait() != 0:
            raise RuntimeError(f"{name} failed; see {scratch / name}.log")
        whole[name] = content(scratch / f"{name}-whole"), time.monotonic() - began
    names = [list(words)[number % len(words)] for number in range(count)]
    drawn = [draw.uniform(0.0, whole[name][1]) for name in names]

    def kill_one(number: int) -> bool | None:
        """Whether the call is lost; None where it ended before it was killed."""
        name, out = names[number], scratch / f"{names[number]}-{number}"
        log, expected = out.with_suffix(".log"), whole[name][0]
        at = time.monotonic() + drawn[number]
        if not killed(called(words[name], out, log), lambda: time.monotonic() >= at):
            return None
        wrong = is_lost(name, words[name], out, expected, log)
        after = f"{name} killed after {drawn[number]:.1f} of {whole[name][1]:.1f} s"
        print(f"{after}{f': LOST, {log.read_text()[-500:]}' if wrong else ''}", flush=True)
        return wrong

    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = [wrong for wrong in pool.map(kill_one, range(count)) if wrong is not None]
    return len(made), sum(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=51)
    parser.add_argument("--outputs", type=int, default=0, help="calls that write an output, to kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--teams", nargs="+", default=list(TEAMS), choices=list(TEAMS))
    parser.add_argument("--write", action="store_true", help="append to results/")
    options = parser.parse_args()
    total = mismatches = 0
    with tempfile.TemporaryDirectory() as scratch:
        if options.outputs:
            tried, lost = outputs(options.outputs, Path(scratch), random.Random(f"{options.seed} outputs"))
            print(f"outputs: {tried} killed, {lost} lost", flush=True)
            if options.write:
                command = f"python bench/kills.py --kills 0 --outputs {options.outputs} --seed {options.seed} --write"
                record("correctness", "kills.tried", [tried], "calls", command, tried)
                record("correctness", "kills.lost", [lost], "calls", command, tried)
        for team in options.teams if options.kills else ():
            draw = random.Random(f"{options.seed} {team}")
            whole, broken = Path(scratch) / f"{team}-whole", Path(scratch) / team
            began = time.monotonic()
            killed(start(TEAMS[team], whole, whole.with_suffix(".log")), lambda: False)
            expected, seconds = state(whole), time.monotonic() - began
            made, ended = attacked(TEAMS[team], broken, -(-options.kills // len(options.teams)), seconds, draw)
            folders = [broken, *(broken.with_name(f"{broken.name}-{number}") for number in range(1, ended))]
            wrong = [folder for folder in folders if folder.exists() and state(folder) != expected]
            print(f"{team}: {made} kills, {ended} runs ended, {len(wrong)} differ", flush=True)
            total, mismatches = total + made, mismatches + len(wrong)
    if options.write and options.kills:
        command = f"python bench/kills.py --kills {options.kills} --seed {options.seed} --write"
        record("resume", "resume.kills", [total], "kills", command, total)
        record("resume", "resume.mismatches", [mismatches], "runs", command, total)


if __name__ == "__main__":
    main()
