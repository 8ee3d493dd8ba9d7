"""Several trainings in one folder: its record or plan, a training, which goes on where it stands, and its test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from rich.console import Console

from cadre.api import Player, Section, train_on
from cadre.concurrency import run_coroutine
from cadre.errors import RunError
from cadre.evaluation.evaluate import evaluate
from cadre.evaluation.loaded_team import LoadedTeam
from cadre.file_limits import read_json
from cadre.files import OpenRecord, publish_atomically, read_record, to_json
from cadre.rollout.grow import Rollout
from cadre.runs.tree_format import encode
from cadre.settings.yaml_file import Raw
from cadre.types import Task, Tree

PLAN_FILE = "plan.json"
P = TypeVar("P", bound=OpenRecord)


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


def claim(folder: Path, plan: P) -> P:
    """Write the plan into a new folder and return it, or the same one that other code may have written there. Raises
    RunError if the folder has another plan, or holds anything else."""
    if begin_folder(folder, PLAN_FILE, plan):
        return plan
    recorded = read_record(folder / PLAN_FILE, type(plan))
    old, new = (planned.model_dump(exclude={"code"}) for planned in (recorded, plan))
    for key in new:
        if old.get(key) != new[key]:
            raise RunError(
                f"--run: the plan of {folder} has {key}: {to_json(old.get(key)):.200}, and this one "
                f"{to_json(new[key]):.200}; expected the same, as a plan is not changed once it runs. Name another "
                "folder."
            )
    return recorded


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


def play_tasks(rollout: Rollout, tasks: Sequence[Task], file: Path, **fields: Any) -> Raw:
    """Return the report of tasks that are played once at temperature 0, from its file if that is done, with all prompts
    and completions beside it."""
    if not file.exists():
        report, trees = run_coroutine(evaluate(rollout, tasks))
        publish_outcome(file, report.as_dict() | fields, trees)
    return read_json(file)


def publish_outcome(file: Path, report: Raw, trees: Sequence[Tree]) -> None:
    """Write a report, and the episodes beside it."""
    episodes = file.with_name(f"{file.stem}.episodes.jsonl")
    with publish_atomically(file, episodes) as (built, built_episodes):
        built_episodes.write_text("".join(f"{to_json(encode(tree))}\n" for tree in trees), encoding="utf-8")
        built.write_text(to_json(report) + "\n", encoding="utf-8")
