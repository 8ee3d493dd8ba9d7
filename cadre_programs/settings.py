"""The settings of a program that belong together: how to start it, its limits, and its task files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cadre import random_keys
from cadre.env import Split
from cadre.errors import ConfigError, DataError
from cadre.rows import read_json_lines
from cadre.settings.trust import check_code
from cadre.types import Task
from cadre_programs.calls import canonical_json
from cadre_programs.containers import ContainerConfig
from cadre_programs.inside.cadre_steady import parse_start

Isolation = Literal["fork", "container"]
GIB = 1 << 30
# Where the clock of an instance stands unless a recipe says otherwise.
CLOCK = "2026-01-01T12:00:00"


class InstanceLimits(BaseModel):
    """Limits of one instance, for each run of it.

    seconds    without a request or an end, model time left out
    cpu        seconds of processor time
    memory     GiB
    processes  at once
    calls      of models in an episode
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float = Field(60.0, gt=0.0)
    cpu: int = Field(600, ge=1)
    memory: float = Field(4.0, gt=0.0)
    processes: int = Field(64, ge=1)
    calls: int = Field(100, ge=1)

    @property
    def kernel(self) -> dict[str, int]:
        """The limits that the kernel enforces, by name."""
        return {"RLIMIT_CPU": self.cpu, "RLIMIT_DATA": int(self.memory * GIB)}


class ErrorRule(BaseModel):
    """The reward of a program that fails: an exception, a limit, an answer that it cannot read.

    reward  team reward; without it the branch is worth the lowest of its siblings less `margin`
    margin  makes a failure worth less than the worst sibling, so that it is a signal where all others are equal
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: float | None = Field(None, allow_inf_nan=False)
    margin: float = Field(0.1, ge=0.0, allow_inf_nan=False)


@dataclass(frozen=True)
class LaunchSpec:
    """The way to start instances, the same for all of them. Hashable: launches that are equal share a fork server.

    words        the command, or the one word FILE.py:FUNCTION
    python       the interpreter of a function; "" for this one
    environment  variables of the program, beside those that it inherits
    clock        where the clock of every instance stands, in UTC; "" for an interpreter as it is
    secrets      whether what the system draws at random is steady too
    container    the settings of its container, None without one; `mounts` are the folders that it can read
    """

    words: tuple[str, ...]
    isolation: Isolation
    limits: InstanceLimits = field(default_factory=InstanceLimits)
    python: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    clock: str = ""
    secrets: bool = False
    container: ContainerConfig | None = None
    mounts: tuple[str, ...] = ()

    @property
    def is_function(self) -> bool:
        """True for a function of a Python file, False for a command."""
        return len(self.words) == 1 and ".py:" in self.words[0]


def make_launch(
    run: str | list[str],
    isolation: Isolation,
    limits: InstanceLimits,
    python: str,
    environment: dict[str, str],
    clock: str = "",
    secrets: bool = False,
    container: ContainerConfig | None = None,
) -> LaunchSpec:
    """Return the launch that the settings describe. Raises ConfigError for what cannot be started."""
    if clock:
        try:
            parse_start(clock)
        except ValueError:
            raise ConfigError(
                f"settings.clock: got {clock!r}; expected a time in UTC such as {CLOCK}. Write it so."
            ) from None
    if container is not None and isolation != "container":
        raise ConfigError(f"settings.container: got it beside isolation: {isolation}; expected isolation: container.")
    for name in ("memory", "processes", "seconds"):
        if container is not None and name in container.model_fields_set:
            raise ConfigError(
                f"settings.container.{name}: got {getattr(container, name):g}; expected it in settings.limits."
            )
    mounts: list[str] = []
    if isinstance(run, str):
        words = [run]
        file, _, name = run.rpartition(":")
        if not file.endswith(".py") or not name.isidentifier():
            raise ConfigError(
                f"settings.run: got {run!r}; expected FILE.py:FUNCTION, or a command as a list of words such as "
                "[bash, agents.sh]. Name the function."
            )
        check_code("settings.run", Path(file))
        if not Path(file).is_file():
            raise ConfigError(f"settings.run: there is no file {file}; expected FILE.py:FUNCTION. Fix the path.")
        if isolation == "container":
            words, mounts = [f"{Path(file).absolute()}:{name}"], [str(Path(file).absolute().parent)]
    elif not run:
        raise ConfigError("settings.run: got no words; expected a command such as [bash, agents.sh]. Name it.")
    else:
        # Instances run in folders of their own, so a word that names a file from here needs its whole path.
        words = [str(Path(word).absolute()) if Path(word).is_file() else word for word in run]
        # An absolute path is one in the image; what is named from here is mounted.
        mounts = [str(Path(word).absolute().parent) for word in run if Path(word).is_file() and word[0] != "/"]
    variables = tuple(environment.items())
    if isolation != "container":
        return LaunchSpec(tuple(words), isolation, limits, python, variables, clock, secrets)
    mounted = tuple(dict.fromkeys(mounts))
    container = container or ContainerConfig()
    return LaunchSpec(tuple(words), isolation, limits, python, variables, clock, secrets, container, mounted)


def load_tasks(train: str, test: str, held_out: float, split: Split) -> Sequence[Task]:
    """Return the tasks of a split. A task file has one JSON object a line, with whatever the program reads in it.

    Without a file `test`, the fraction `held_out` of the file `train` is the test split, by the hash of each row's
    content. A row that is in both files is for testing alone. Raises ConfigError or DataError for files that cannot be
    used, and for a split without tasks.
    """
    rows = _read_rows(train)
    if test:
        test_rows = [*_read_rows(test)]
        test_contents = {canonical_json(row) for row in test_rows}
        train_rows = [row for row in rows if canonical_json(row) not in test_contents]
        selected = test_rows if split == "test" else train_rows
    else:
        # 10,000 buckets: the same rows are held out however the file is ordered or extended.
        buckets = [random_keys.key("held-out", canonical_json(row)) % 10_000 for row in rows]
        is_test = [bucket < 10_000 * held_out for bucket in buckets]
        selected = [row for row, in_test in zip(rows, is_test, strict=True) if in_test == (split == "test")]
    if not selected:
        raise DataError(
            f"settings.tasks: {train} leaves no task to {split} with. Add rows, or change settings.held_out."
        )
    names = (row.get("id") for row in selected)
    return [
        Task(f"{split}-{number}" if name in (None, "") else str(name), row)
        for number, (name, row) in enumerate(zip(names, selected, strict=True))
    ]


def _read_rows(file: str) -> Sequence[Mapping[str, Any]]:
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"settings.tasks: there is no file {file}; expected one JSON object a line.")
    return _read_unique_rows(path, path.stat().st_mtime_ns)


@lru_cache
def _read_unique_rows(path: Path, _modified_ns: int) -> Sequence[Mapping[str, Any]]:
    unique = {canonical_json(row): row for _, row in read_json_lines(path)}
    return list(unique.values())
