"""The problems of an environment whose problems come from data: which sets, how they are divided, and what leaks."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from cadre import random_keys
from cadre.data import read
from cadre.data.examples import EXAMPLE, EXAMPLES
from cadre.data.jsonl import State, state_of
from cadre.data.leaks import leaks as leaks_of
from cadre.data.records import Kind, Program, Record, text_of
from cadre.data.specs import SPECS
from cadre.data.user_file import ENDING, is_user_file, load_user_file
from cadre.env import GeneratedTasks, Split
from cadre.errors import ConfigError, DataError

log = logging.getLogger("cadre.data")
Leaks = Literal["drop", "refuse"]


@dataclass(frozen=True)
class Choice:
    """Which problems are trained on and which are held out.

    kind          of record that the environment plays
    train, test   a data set by name or your own file each; the same one twice is divided
    source        a folder, "hub", "example", or "" for $CADRE_DATA
    fields        (a record's field, the file's field) of your own files
    held_out      of a set that is divided: its first so many items, or, below 1, a share of them by the hash of their
                  text; None for `usual`
    leaks         what happens to training items that are test items
    usual         `held_out` where it is None
    functions     only programs that ask for a function by name; scripts are left out
    halved        one set was named for both splits: without splits of its own it is divided although another is tested
    """

    kind: Kind
    train: str
    test: str
    source: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    held_out: float | None = None
    leaks: Leaks = "drop"
    usual: float = 0.1
    functions: bool = False
    halved: bool = False

    @property
    def divided(self) -> bool:
        """Whether what is trained on is a part of one set that has no splits of its own."""
        if self.train != self.test and not self.halved:
            return False
        return is_user_file(self.train) or not {"train", "test"} <= set(read.spec_of(self.train).splits)


def tasks_of(choice: Choice, split: Split) -> GeneratedTasks:
    """The tasks of a split, each a record as a dictionary.

    Raises ConfigError for settings that do not fit together, DataError for data that cannot be used.
    """
    # By the source that is meant now and its files as they are now, as what was read is kept by them.
    choice = replace(choice, source=read.named_source(choice.source))
    records = _records(choice, split, _state(choice))
    chosen = choice.test if split == "test" else choice.train
    name = Path(chosen).stem if is_user_file(chosen) else chosen

    def make(index: int) -> dict[str, Any]:
        return dict(vars(records[index]))

    return GeneratedTasks(len(records), make, f"{split}-{name}", read=True)


def _state(choice: Choice) -> State:
    """Of all files that the choice names."""
    sets = [name for name in (choice.train, choice.test) if not is_user_file(name)]
    own = [Path(name).expanduser() for name in (choice.train, choice.test) if is_user_file(name)]
    public = [read.state(name, split, choice.source) for name in sets for split in read.spec_of(name).splits]
    return sum(public, state_of(own))


@lru_cache(maxsize=16)
def _records(choice: Choice, split: Split, state: State) -> tuple[Record, ...]:
    if choice.source == EXAMPLE:
        return (EXAMPLES[choice.kind][split == "test"],)
    _check(choice)
    if split == "test":
        own = choice.divided and choice.test == choice.train
        return _halves(choice)[1] if own else _load(choice, choice.test, "test")
    tested = _records(choice, "test", state)
    trained = _halves(choice)[0] if choice.divided else _load(choice, choice.train, "train")
    kept = _without_leaks(choice, trained, tested)
    if not kept:
        raise DataError(
            f"data: nothing of {choice.train} is left to train on, as all of it is in {choice.test}; expected other "
            "items. Name another set."
        )
    return kept


def _check(choice: Choice) -> None:
    for setting, name in (("train", choice.train), ("test", choice.test)):
        if not is_user_file(name) and read.spec_of(name).kind != choice.kind:
            fitting = ", ".join(known for known, spec in SPECS.items() if spec.kind == choice.kind)
            raise ConfigError(
                f"settings.{setting}: got {name}, a set of {SPECS[name].kind}s; expected one of {choice.kind}s: "
                f"{fitting}, or a file that ends in {ENDING}. Name another set."
            )
    if choice.fields and not any(map(is_user_file, (choice.train, choice.test))):
        raise ConfigError(
            f"settings.fields: got {dict(choice.fields)} without a file of your own, which would ignore it; expected "
            f"it unset. Remove it, or name a file that ends in {ENDING}."
        )
    if choice.held_out is not None and not choice.divided:
        raise ConfigError(
            f"settings.held_out: got {choice.held_out:g}, but {choice.train} and {choice.test} are a training and a "
            "test split already; expected it unset. Remove it."
        )


def _load(choice: Choice, name: str, split: Split) -> tuple[Record, ...]:
    """All of a set that can be played: of a file whole, of a public set's split."""
    if is_user_file(name):
        records = load_user_file(name, choice.kind, dict(choice.fields))
    else:
        records = read.load(name, split, choice.source)
    return _functions(name, records) if choice.functions else records


def _functions(name: str, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Those that ask for a function. Raises DataError where none does."""
    kept = tuple(record for record in records if isinstance(record, Program) and record.entry)
    if not kept:
        raise DataError(
            f"data: none of the {len(records)} items of {name} names the function that is asked for, they are scripts; "
            "expected `entry` in some. Name another set, or play them with env=code."
        )
    if len(kept) < len(records):
        log.warning("data: %d of %d items of %s are scripts; left out.", len(records) - len(kept), len(records), name)
    return kept


def _halves(choice: Choice) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """(training, held-out) items of one set."""
    name = choice.train
    only: Split = "test" if is_user_file(name) or "test" in read.spec_of(name).splits else "train"
    records = _load(choice, name, only)
    held_out = choice.usual if choice.held_out is None else choice.held_out
    if held_out >= 1:
        held = [place < held_out for place in range(len(records))]
    else:
        held = [random_keys.key("held-out", text_of(record)) % 10_000 < 10_000 * held_out for record in records]
    tested = tuple(record for record, is_held in zip(records, held, strict=True) if is_held)
    trained = tuple(record for record, is_held in zip(records, held, strict=True) if not is_held)
    if not trained or not tested:
        raise DataError(
            f"settings.held_out: got {held_out:g} for {name}, which has {len(records)} items and no splits: that "
            f"leaves {len(trained)} for training and {len(tested)} held out; expected some of both. Take a number from "
            f"1 to {max(1, len(records) - 1)}, a larger share, or name another set with settings.test."
        )
    return trained, tested


def _without_leaks(choice: Choice, trained: tuple[Record, ...], tested: tuple[Record, ...]) -> tuple[Record, ...]:
    """The training items that are no test items. Raises DataError where some are and they are to be refused."""
    leaks = leaks_of(trained, tested)
    if not leaks:
        return trained
    first = leaks[0]
    told = (
        f"data: {len(leaks)} of {len(trained)} training items of {choice.train} are test items of {choice.test}, the "
        f"first being {trained[first.train].id} ({first.share:.0%} of {tested[first.test].id})"
    )
    if choice.leaks == "refuse":
        raise DataError(f"{told}; expected none. Train on another set, or take them out with settings.leaks=drop.")
    log.warning("%s; they are left out.", told)
    leaking = {leak.train for leak in leaks}
    return tuple(record for place, record in enumerate(trained) if place not in leaking)
