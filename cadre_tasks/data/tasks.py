"""The tasks of an environment that takes them from data: the sets, their division into splits, and leaks."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from cadre import random_keys
from cadre.env import GeneratedTasks, Split
from cadre.errors import ConfigError, DataError
from cadre.rows import FileState, file_state
from cadre_tasks.data import read
from cadre_tasks.data.leaks import find_leaks
from cadre_tasks.data.public_sets import SPECS
from cadre_tasks.data.records import EXAMPLE, EXAMPLES, CodingProblem, Kind, Record, prompt_text
from cadre_tasks.data.user_file import ENDING, is_user_file, load_user_file

log = logging.getLogger("cadre_tasks.data")
LeakRule = Literal["drop", "refuse"]


@dataclass(frozen=True)
class DataSelection:
    """The problems that are trained on and those that are held out.

    kind              the records that the environment takes
    train, test       a data set by name or the user's own file each; the same one twice is divided
    source            a folder, "hub", "example", or "" for that of $CADRE_DATA
    fields            (a record's field, the file's field) of the user's files
    held_out          of a set that is divided: its first so many items, or, below 1, a fraction of them by the hash of
                      their text; None for `default_held_out`
    leaks             whether training items that are test items are dropped or an error
    functions_only    leave out programs that ask for a script
    same_set          one set was named for both splits: without splits of its own it is divided although another is
                      tested
    """

    kind: Kind
    train: str
    test: str
    source: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    held_out: float | None = None
    leaks: LeakRule = "drop"
    default_held_out: float = 0.1
    functions_only: bool = False
    same_set: bool = False

    @property
    def is_divided(self) -> bool:
        """True if the training items are a part of one set without splits of its own."""
        if self.train != self.test and not self.same_set:
            return False
        return is_user_file(self.train) or not {"train", "test"} <= set(read.find_spec(self.train).splits)


def load_data_tasks(selection: DataSelection, split: Split) -> GeneratedTasks:
    """Return the tasks of a split, each a record as a dictionary. Raises ConfigError for settings that do not fit
    together, DataError for data that cannot be used."""
    # Records are cached by the source that is configured now and the state of its files.
    selection = replace(selection, source=read.configured_source(selection.source))
    records = _load_records(selection, split, _state(selection))
    set_name = selection.test if split == "test" else selection.train
    name = Path(set_name).stem if is_user_file(set_name) else set_name

    def make(index: int) -> dict[str, Any]:
        return dict(vars(records[index]))

    return GeneratedTasks(len(records), make, f"{split}-{name}", read=True)


def _state(selection: DataSelection) -> FileState:
    """Return the state of all files that the selection may read."""
    sets = [name for name in (selection.train, selection.test) if not is_user_file(name)]
    user_files = [Path(name).expanduser() for name in (selection.train, selection.test) if is_user_file(name)]
    public = [read.split_state(name, split, selection.source) for name in sets for split in read.find_spec(name).splits]
    return sum(public, file_state(user_files))


@lru_cache(maxsize=16)
def _load_records(selection: DataSelection, split: Split, state: FileState) -> tuple[Record, ...]:
    if selection.source == EXAMPLE:
        return (EXAMPLES[selection.kind][split == "test"],)
    _validate(selection)
    if split == "test":
        is_part = selection.is_divided and selection.test == selection.train
        return _divide(selection)[1] if is_part else _load_set(selection, selection.test, "test")
    test = _load_records(selection, "test", state)
    train = _divide(selection)[0] if selection.is_divided else _load_set(selection, selection.train, "train")
    train = _remove_leaks(selection, train, test)
    if not train:
        raise DataError(f"data: nothing of {selection.train} is left to train on, as all of it is in {selection.test}.")
    return train


def _validate(selection: DataSelection) -> None:
    for setting, name in (("train", selection.train), ("test", selection.test)):
        if not is_user_file(name) and read.find_spec(name).kind != selection.kind:
            fitting = ", ".join(set_name for set_name, spec in SPECS.items() if spec.kind == selection.kind)
            raise ConfigError(
                f"settings.{setting}: got {name}, a set of {SPECS[name].kind}s; expected one of {selection.kind}s: "
                f"{fitting}, or a file that ends in {ENDING}. Name another set."
            )
    if selection.fields and not any(map(is_user_file, (selection.train, selection.test))):
        raise ConfigError(
            f"settings.fields: got {dict(selection.fields)} without a file of your own that ends in {ENDING}."
        )
    if selection.held_out is not None and not selection.is_divided:
        raise ConfigError(
            f"settings.held_out: got {selection.held_out:g}, but {selection.train} and {selection.test} are split "
            "already."
        )


def _load_set(selection: DataSelection, name: str, split: Split) -> tuple[Record, ...]:
    """Return the usable records of a user's file, or of one split of a public set."""
    if is_user_file(name):
        records = load_user_file(name, selection.kind, dict(selection.fields))
    else:
        records = read.load(name, split, selection.source)
    if not selection.functions_only:
        return records
    functions = tuple(record for record in records if isinstance(record, CodingProblem) and record.entry)
    if not functions:
        raise DataError(
            f"data: none of the {len(records)} items of {name} names the function that is asked for, they are scripts; "
            "expected `entry` in some. Name another set, or play them with env=code."
        )
    if len(functions) < len(records):
        scripts = len(records) - len(functions)
        log.warning("data: %d of %d items of %s are scripts; left out.", scripts, len(records), name)
    return functions


def _divide(selection: DataSelection) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """Return (training, held-out) items of one set."""
    name = selection.train
    only_split: Split = "test" if is_user_file(name) or "test" in read.find_spec(name).splits else "train"
    records = _load_set(selection, name, only_split)
    held_out = selection.default_held_out if selection.held_out is None else selection.held_out
    if held_out >= 1:
        is_test = [index < held_out for index in range(len(records))]
    else:
        is_test = [random_keys.key("held-out", prompt_text(record)) % 10_000 < 10_000 * held_out for record in records]
    test = tuple(record for record, in_test in zip(records, is_test, strict=True) if in_test)
    train = tuple(record for record, in_test in zip(records, is_test, strict=True) if not in_test)
    if not train or not test:
        raise DataError(
            f"settings.held_out: got {held_out:g} for {name}, which has {len(records)} items and no splits: that "
            f"leaves {len(train)} for training and {len(test)} held out; expected some of both. Take a number from "
            f"1 to {max(1, len(records) - 1)}, a larger share, or name another set with settings.test."
        )
    return train, test


def _remove_leaks(selection: DataSelection, train: tuple[Record, ...], test: tuple[Record, ...]) -> tuple[Record, ...]:
    """Return the training items that are not test items. Raises DataError if some are and leaks are an error."""
    leaks = find_leaks(train, test)
    if not leaks:
        return train
    first = leaks[0]
    message = (
        f"data: {len(leaks)} of {len(train)} training items of {selection.train} are test items of {selection.test}, "
        f"the first being {train[first.train].id} ({first.share:.0%} of {test[first.test].id})"
    )
    if selection.leaks == "refuse":
        raise DataError(f"{message}; expected none. Train on another set, or take them out with settings.leaks=drop.")
    log.warning("%s; they are left out.", message)
    leaking = {leak.train for leak in leaks}
    return tuple(record for index, record in enumerate(train) if index not in leaking)
