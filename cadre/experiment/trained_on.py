"""Whether held-out tasks, as an evaluation of a run chooses them, are tasks that the run was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cadre.data import hub, read
from cadre.data.leaks import leaks
from cadre.data.records import RECORDS, Record
from cadre.data.user_file import is_user_file
from cadre.envs.from_data import FromData
from cadre.envs.spec import EnvSpec
from cadre.errors import CadreError, ConfigError
from cadre.experiment.config import load
from cadre.experiment.resolve import environments
from cadre.settings.trust import only_reading
from cadre.types import Task

# Settings that say which items are trained on and which are held out.
CHOICE = ("data", "train", "test", "source", "fields", "held_out", "leaks")


def trained_on(run: Path | None, evaluated: EnvSpec, tasks: Sequence[Task]) -> dict[str, int | None]:
    """How many of the tasks the run was trained on, by words as leaks are found; None where its training data is not
    here. Nothing where no run was trained, and where the held-out tasks are those that the run itself kept apart.

    Nothing is fetched for it.
    """
    if run is None or not issubclass(evaluated.declared, FromData):
        return {}
    with only_reading():
        config = load(str(run / "config.yaml"))
    try:
        trained, own = environments(config, config.env)
    except ConfigError:  # its code is not here, or not trusted
        return {"trained_on": None}
    if not issubclass(trained.declared, FromData) or trained.declared.kind != evaluated.declared.kind:
        return {}
    if all(own.all_settings.get(name) == evaluated.all_settings.get(name) for name in CHOICE):
        return {}
    try:
        learned = _records(trained, trained.tasks("train")) if _here(trained) else None
    except CadreError:
        learned = None
    if learned is None:
        return {"trained_on": None}
    return {"trained_on": len({leak.test for leak in leaks(learned, _records(evaluated, tasks))})}


def _here(trained: EnvSpec) -> bool:
    """Whether the training data can be read without asking the hub."""
    settings, declared = trained.all_settings, trained.declared
    assert issubclass(declared, FromData)
    name, source = settings["train"] or settings["data"] or declared.sets[0], read.named_source(settings["source"])
    if is_user_file(name) or not read.is_hub(source):
        return True
    spec = read.spec_of(name)
    return any(hub.kept(spec, split, source.partition("@")[2]) for split in spec.splits)


def _records(spec: EnvSpec, tasks: Sequence[Task]) -> list[Record]:
    assert issubclass(spec.declared, FromData)
    return [RECORDS[spec.declared.kind](**task.data) for task in tasks]
