"""A run directory: everything that one training run leaves behind, and the only place that writes it.

config.yaml         the whole configuration, defaults written out
environment.json    versions, machine, how programs are confined
metrics.jsonl       one object a step
evaluations.jsonl   one object an evaluation
trees.jsonl         the first trees of every step, whole
tensorboard/        the same figures for TensorBoard
checkpoints/        step-000030/: what `cadre.checkpoint` saves
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cadre import __version__
from cadre.config import Config, dump, load
from cadre.errors import RunError
from cadre.types import Tree

PACKAGES = ("torch", "transformers", "tokenizers", "peft", "numpy")


class Run:
    """Owns one run directory for as long as the process trains in it."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder, self.config = folder, config
        self._board: Any = None

    @classmethod
    def create(cls, folder: Path, config: Config) -> Run:
        """A new run; a folder that holds anything is refused."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(
                f"--run: {folder} exists and is not empty; expected a new folder, as nothing is ever overwritten. "
                f"Name another, or go on with it: cadre train --run {folder} --resume."
            )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(dump(config))
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path, overrides: Sequence[str] = ()) -> Run:
        """An existing run, with its own configuration."""
        if not (folder / "config.yaml").is_file():
            raise RunError(f"run: {folder} holds no config.yaml; expected the folder of a run. See the folder runs/.")
        return cls(folder, load(str(folder / "config.yaml"), overrides))

    def record_environment(self, sandbox: Mapping[str, Any]) -> None:
        """What this run ran on."""
        versions = {name: _version(name) for name in PACKAGES}
        record = {
            "cadre": __version__,
            "python": sys.version.split()[0],
            "packages": versions,
            "machine": machine(),
            "sandbox": dict(sandbox),
        }
        (self.folder / "environment.json").write_text(json.dumps(record, indent=1) + "\n")

    def log(self, step: int, figures: Mapping[str, float], trees: Iterable[Tree] = ()) -> None:
        """One step's figures to every tracker, and the trees that are kept."""
        self._append("metrics.jsonl", {"step": step, **figures})
        for tree in trees:
            self._append("trees.jsonl", {"step": step, **asdict(tree)})
        for name, value in figures.items():
            self.board.add_scalar(name, value, step)

    def log_evaluation(self, step: int, report: Mapping[str, Any]) -> None:
        """One evaluation, made after `step` updates."""
        self._append("evaluations.jsonl", {"step": step, **report})
        for name in ("success", "reward"):
            self.board.add_scalar(f"evaluate/{name}", report[name], step)

    def evaluations(self) -> list[dict[str, Any]]:
        return _lines(self.folder / "evaluations.jsonl")

    def total(self, name: str) -> float:
        """The sum of a figure over the steps so far."""
        return sum(line[name] for line in _lines(self.folder / "metrics.jsonl"))

    def rewind(self, step: int) -> None:
        """Forget what was logged at or after `step`: a resumed run makes it again."""
        self._keep("metrics.jsonl", lambda line: line["step"] < step)
        self._keep("trees.jsonl", lambda line: line["step"] < step)
        self._keep("evaluations.jsonl", lambda line: line["step"] <= step)

    def _keep(self, name: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        path = self.folder / name
        kept = [line for line in _lines(path) if wanted(line)]
        fresh = path.with_suffix(".new")
        fresh.write_text("".join(json.dumps(line) + "\n" for line in kept))
        fresh.replace(path)

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(line) + "\n")

    @property
    def board(self) -> Any:
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.folder / "tensorboard"))
        return self._board

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def new_folder(recipe: str, parent: Path = Path("runs")) -> Path:
    """`runs/RECIPE-001` or the next number that is free."""
    stem = Path(recipe).stem
    number = 1
    while (parent / f"{stem}-{number:03d}").exists():
        number += 1
    return parent / f"{stem}-{number:03d}"


def machine() -> str:
    """The machine in general words; never its name."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; a last line that was cut off in the middle is left out."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
