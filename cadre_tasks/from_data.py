"""The base of environments whose tasks come from data sets or from a file of your own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from cadre.env import Env, Split
from cadre.errors import CadreError, ConfigError
from cadre.types import Task
from cadre_tasks.data import hub, read
from cadre_tasks.data.leaks import find_leaks
from cadre_tasks.data.records import RECORDS, Kind, Record
from cadre_tasks.data.tasks import DataSelection, LeakRule, load_data_tasks
from cadre_tasks.data.user_file import is_user_file

HeldOut = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0.0, lt=1.0)]

# Settings that say which items are trained on and which are held out.
DATA_SETTINGS = ("data", "train", "test", "source", "fields", "held_out", "leaks")


class FromData(Env):
    """An environment on a data set. Settings, beside the subclass's own: see `tasks`. Subclasses replace their state at
    every step and never change it in place, so that a shallow copy is a fork."""

    kind: ClassVar[Kind]
    sets: ClassVar[tuple[str, str]]  # the data sets for training and for testing, where none is named
    held: ClassVar[float] = 0.1  # of a set that has to be divided, where `held_out` is not given
    splits_data = True
    functions: ClassVar[bool] = False  # whether a program has to name the function that is asked for
    plain_text = {**dict.fromkeys(("data", "train", "test"), r"[\w-]+"), "source": "example", "fields": ".*"}

    def __init__(self, task: Task, **data: Any) -> None:
        super().__init__(task)

    def fork(self) -> Self:
        return copy.copy(self)

    @classmethod
    def require(cls) -> None:
        """Raise if a package is missing without which no answer could be judged."""

    @classmethod
    def tasks(
        cls,
        split: Split,
        data: str | None = None,
        train: str | None = None,
        test: str | None = None,
        source: str = "",
        fields: dict[str, str] | None = None,
        held_out: HeldOut | None = None,
        leaks: LeakRule = "drop",
        **settings: Any,
    ) -> Sequence[Task]:
        """Return the tasks of a split, as the settings choose them.

        data          a data set by name, or your own file that ends in .jsonl, for both splits
        train, test   one for each split, in place of `data`; `test` beside it is what is tested in its stead
        source        where named sets are: a folder, "hub", "example" for two invented items; "" for $CADRE_DATA
        fields        what your own file calls a record's fields: {question: prompt, answer: gold}
        held_out      of one set without splits: how many of its first items, or, below 1, what share of them by the
                      hash of their text, is for testing
        leaks         training items that are test items are left out (drop), or make it an error (refuse)
        """
        if data is not None and train is not None:
            raise ConfigError(f"settings.data: got {data!r} beside settings.train; expected one of them.")
        cls.require()
        selection = DataSelection(
            kind=cls.kind,
            train=train or data or cls.sets[0],
            test=test or data or cls.sets[1],
            source=source,
            fields=tuple(sorted((fields or {}).items())),
            held_out=held_out,
            leaks=leaks,
            default_held_out=cls.held,
            functions_only=cls.functions,
            same_set=data is not None or (train is None and cls.sets[0] == cls.sets[1]),
        )
        return load_data_tasks(selection, split)

    @classmethod
    def count_trained_on(
        cls, settings: Mapping[str, Any], tasks: Sequence[Task], trained: type[Env], trained_settings: Mapping[str, Any]
    ) -> int | None:
        """Return how many of the tasks are training items too, by their words as leaks are found."""
        if not issubclass(trained, FromData) or trained.kind != cls.kind:
            return 0
        # The same choice of data: leaks were left out of training when the data were read.
        if all(trained_settings.get(name) == settings.get(name) for name in DATA_SETTINGS):
            return 0
        try:
            items = trained.tasks("train", **trained_settings) if trained._is_local(trained_settings) else None
        except CadreError:
            items = None
        if items is None:
            return None
        return len({leak.test for leak in find_leaks(cls._records(items), cls._records(tasks))})

    @classmethod
    def _is_local(cls, settings: Mapping[str, Any]) -> bool:
        """Return True if the training data can be read without asking the hub."""
        name, source = settings["train"] or settings["data"] or cls.sets[0], read.configured_source(settings["source"])
        if is_user_file(name) or not read.is_hub(source):
            return True
        spec = read.find_spec(name)
        return any(hub.cached_files(spec, split, source.partition("@")[2]) for split in spec.splits)

    @classmethod
    def _records(cls, tasks: Sequence[Task]) -> list[Record]:
        return [RECORDS[cls.kind](**task.data) for task in tasks]
