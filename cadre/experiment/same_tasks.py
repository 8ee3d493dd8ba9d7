"""Whether the tasks of a run that goes on are those that it was begun with: files of data can change meanwhile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from cadre.env import GeneratedTasks, Split
from cadre.errors import RunError
from cadre.experiment.experiment import Experiment
from cadre.experiment.resume import judged_alike
from cadre.experiment.run_directory import Run
from cadre.types import Task

SPLITS: dict[Split, str] = {"train": "training", "test": "held-out"}


def digests(experiment: Experiment) -> dict[str, str]:
    """By split, a digest of what its tasks hold, in their order; only of splits that are used, and that are read in
    place of made by rule."""
    used = {"train": experiment.env_spec.tasks("train")}
    if experiment.config.evaluate.tasks:
        used["test"] = experiment.held_out.tasks("test")
    return {split: _digest(tasks) for split, tasks in used.items() if _read(tasks)}


def refuse_others(experiment: Experiment, run: Run) -> None:
    """Raises RunError where a split of `run` now holds other tasks than those that it was trained or judged on."""
    begun, now = run.environment().get("tasks", {}), digests(experiment)
    alike = judged_alike(Run.open(run.folder).config, experiment.config)
    for split, said in SPLITS.items():
        both = split in begun and split in now and (alike or split == "train")
        if both and begun[split] != now[split]:
            raise RunError(
                f"--resume: the {said} tasks are not those that {run.folder} was begun with: what its settings name "
                "holds something else now. Expected the same data, so that the run goes on as if nothing had happened. "
                "Put it back, start a new run, or add --force to go on with it."
            )


def _read(tasks: Sequence[Task]) -> bool:
    return tasks.read if isinstance(tasks, GeneratedTasks) else isinstance(tasks, list | tuple)


def _digest(tasks: Sequence[Task]) -> str:
    taken = hashlib.sha256()
    for task in tasks:
        taken.update(json.dumps([task.id, _plain(task.data)]).encode() + b"\n")
    return taken.hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON can say it; of objects, whose words may name where they lie, only what they are."""
    if isinstance(value, Mapping):
        return {"of": sorted(([repr(key), _plain(held)] for key, held in value.items()), key=itemgetter(0))}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if isinstance(value, set | frozenset):
        return {"of": sorted(map(repr, value))}
    if value is None or isinstance(value, str | int | float):
        return value
    return repr(value) if isinstance(value, bytes | complex) else type(value).__qualname__
