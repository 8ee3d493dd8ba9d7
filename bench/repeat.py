"""Equal seeds, equal runs: the same training twice, compared to the last bit.

    python bench/repeat.py [pairs] [--recipes NAME ...] [--pairs N] [--write]

Two runs each of Plan-Path with one model, a LoRA per role, a critic, and a model per role; the last pair of each recipe
while other processes keep every core busy. `bench/speed.py e2e --before` compares times with those of a commit.

`--write` appends the figures to results/repeat.jsonl; else they are printed only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console

from common import ROOT, record, timeless

RECIPES = ("plan-path", "plan-path-lora", "plan-path-mappo", "plan-path-roles")
JSONL = ("metrics.jsonl", "evaluations.jsonl", "trees.jsonl")

console = Console(soft_wrap=True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [timeless(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def differences(first: Path, second: Path) -> list[str]:
    """Return the differences of two runs: lines of metrics, evaluations and trees, and files of the last checkpoint.

    Which checkpoints were written before it is the clock's business (`train.checkpoint_minutes`), and so is whether the
    last one was written before the evaluation of its step, which its best score then lacks; evaluations are compared.
    """
    different = []
    for name in JSONL:
        both = zip_longest(lines(first / name), lines(second / name))
        different += [
            f"{name}:{number}" for number, (left_line, right_line) in enumerate(both, 1) if left_line != right_line
        ]
    last = [max((folder / "checkpoints").glob("step-*"), default=folder) for folder in (first, second)]
    files = {
        path.relative_to(folder) for folder, end in zip((first, second), last, strict=True) for path in end.rglob("*.*")
    }
    if not any(file.suffix == ".safetensors" for file in files):
        different.append("checkpoints without weights")
    return different + [str(file) for file in sorted(files) if content(first / file) != content(second / file)]


def content(path: Path) -> bytes | None:
    """Return the bytes of a file, None without it; of the manifest and the state those that no clock decides."""
    if not path.is_file():
        return None
    if path.name == "manifest.json":
        return b""  # hashes of files that are compared themselves
    if path.name == "state.json":
        state = json.loads(path.read_text())
        return json.dumps({name: value for name, value in state.items() if not name.startswith("best")}).encode()
    return path.read_bytes()


def train(recipe: str, folder: Path, changes: Sequence[str], threads: int) -> None:
    """Train in a process of its own."""
    arguments = [sys.executable, "-m", "cadre", "train", recipe, *changes, "--run", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "log").open("a") as log:
        subprocess.run(arguments, check=True, cwd=ROOT, env=environment, stdout=log, stderr=log)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run so many processes that compute without end."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def compare(recipe: str, folder: Path, options: argparse.Namespace) -> bool:
    """Train twice alike; whether the runs differ, with what differs printed."""
    for side in ("first", "second"):
        train(recipe, folder / side, [f"train.steps={options.steps}"], options.threads)
    different = differences(folder / "first", folder / "second")
    console.print(f"{recipe}, {folder.name}: {', '.join(different[:6]) if different else 'equal'}", highlight=False)
    return bool(different)


def pairs(options: argparse.Namespace) -> None:
    """Pairs of every recipe. One value a pair: 1 where it differs."""
    mismatches = []
    for recipe in options.recipes:
        for number in range(options.pairs):
            last = number == options.pairs - 1
            folder = options.work / f"{recipe}-{int(time.time())}{'-busy' if last else ''}"
            with busy(2 * options.threads if last else 0):
                mismatches.append(compare(recipe, folder, options))
    keep(options, "repeat.pairs", [float(len(mismatches))], "pairs")
    keep(options, "repeat.mismatches", [float(sum(mismatches))], "pairs")


def keep(options: argparse.Namespace, name: str, values: Sequence[float], unit: str) -> None:
    console.print(f"{name}: {', '.join(f'{value:.4g}' for value in values)} {unit}", highlight=False)
    if options.write:
        record("repeat", name, values, unit, options.command, len(values), [0])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/repeat.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["pairs"], default="pairs")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--pairs", type=int, default=5, help="pairs a recipe")
    parser.add_argument("--steps", type=int, default=10, help="updates of each run of a pair")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "repeat", help="where the runs go")
    parser.add_argument("--write", action="store_true", help="append to results/repeat.jsonl")
    options = parser.parse_args(arguments)
    recipes = " ".join(options.recipes)
    sizes = f"--pairs {options.pairs} --steps {options.steps} --threads {options.threads}"
    options.command = f"python bench/repeat.py {options.part} --recipes {recipes} {sizes} --write"
    options.work = options.work.absolute()
    return options


def main() -> None:
    pairs(parse(sys.argv[1:]))


if __name__ == "__main__":
    main()
