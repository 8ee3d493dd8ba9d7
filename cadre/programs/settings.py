"""The settings of a program as an environment that belong together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from cadre.errors import ConfigError
from cadre.settings.trust import check_code

Isolation = Literal["fork", "thread"]
GIB = 1 << 30


class Limits(BaseModel):
    """What one instance may take, for each run of it.

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
        """Those that the kernel holds, by name."""
        return {"RLIMIT_CPU": self.cpu, "RLIMIT_DATA": int(self.memory * GIB)}


@dataclass(frozen=True)
class Launch:
    """Everything about starting instances that is the same for all: what runs, how, and within which limits.

    words        the command, or the one word FILE.py:FUNCTION
    environment  variables for the program, beside those that it inherits
    """

    words: tuple[str, ...]
    isolation: Isolation
    limits: Limits = field(default_factory=Limits)
    python: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def is_function(self) -> bool:
        """Whether it is a function of a Python file, and no command."""
        return len(self.words) == 1 and ".py:" in self.words[0]


def launch_of(
    run: str | list[str], isolation: Isolation, limits: Limits, python: str, environment: dict[str, str]
) -> Launch:
    """The launch that settings come to. Raises ConfigError for what cannot be started."""
    launch = Launch(
        (run,) if isinstance(run, str) else tuple(map(_absolute, run)),
        isolation,
        limits,
        python,
        tuple(environment.items()),
    )
    if isinstance(run, str):
        file, _, name = run.rpartition(":")
        if not file.endswith(".py") or not name.isidentifier():
            raise ConfigError(
                f"settings.run: got {run!r}; expected FILE.py:FUNCTION, or a command as a list of words such as "
                "[bash, agents.sh]. Name the function."
            )
        check_code("settings.run", Path(file))
        if not Path(file).is_file():
            raise ConfigError(f"settings.run: there is no file {file}; expected FILE.py:FUNCTION. Fix the path.")
    elif not run:
        raise ConfigError("settings.run: got no words; expected a command such as [bash, agents.sh]. Name it.")
    elif isolation == "thread":
        raise ConfigError("settings.isolation: got thread beside a command; expected a function. Remove it.")
    return launch


def _absolute(word: str) -> str:
    """A word that names a file here, as the file: instances run in folders of their own."""
    return str(Path(word).absolute()) if Path(word).is_file() else word
