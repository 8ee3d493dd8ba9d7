"""Several trainings in one folder: its record, and one training, which goes on where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from cadre.api import Player, Section, train_on
from cadre.errors import RunError
from cadre.evaluation.loaded_team import LoadedTeam
from cadre.files import publish_atomically


def begin_folder(folder: Path, file: str, record: BaseModel) -> bool:
    """Write a record into a new folder; return False if it has one. Raises RunError if it holds anything else."""
    path = folder / file
    if path.exists():
        return False
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"--run: {folder} exists and has no {file}; expected a new folder. Name one.")
    with publish_atomically(path) as (built,):
        built.write_text(record.model_dump_json(indent=1))
    return True


def train_to_end(
    console: Console, recipe: str | Path | Section | Player | None, sections: Mapping[str, Any], folder: Path
) -> LoadedTeam:
    """Train in a folder, from where it stands, and return the team. Raises KeyboardInterrupt if the user ends it, which
    is saved."""
    begun = (folder / "config.yaml").is_file()
    # A run that goes on has its recipe, but needs the objects of Python again.
    new_recipe = None if begun and isinstance(recipe, str | Path | Mapping) else recipe
    trained = train_on(console, new_recipe, sections, folder, resume=begun)
    evaluations, steps = trained.evaluations(), len(trained.metrics())
    is_evaluated = not trained.experiment.config.evaluate.tasks or (evaluations and evaluations[-1]["step"] >= steps)
    if trained.run is None or not trained.run.ended or not is_evaluated:
        trained.close()
        raise KeyboardInterrupt(f"The training in {folder} is stopped and saved; the same call goes on.")
    return trained
