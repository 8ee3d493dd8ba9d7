"""The sandbox that all tasks of a process share: `cadre_sandbox` with Cadre's errors and deadlines.

`await run(program, stdin, limits)` uses one sandbox for the whole process, made on first use; `configure` chooses its
level before that. The time that a program waits for a free slot does not count towards an environment's deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cadre_sandbox
from cadre.errors import SandboxError, SandboxUnavailable
from cadre.rollout.deadlines import in_line
from cadre_sandbox import (
    DEFAULT_LIMITS,
    Called,
    FunctionProgram,
    GroupMode,
    LevelName,
    Limits,
    Mode,
    Result,
    Row,
    Status,
)
from cadre_sandbox.worker import Ending

__all__ = [
    "Called", "FunctionProgram", "GroupMode", "LevelName", "Limits", "Mode", "Result", "Row", "Sandbox", "Status",
    "call", "configure", "default", "record", "run", "table",
]  # fmt: skip

_default: Sandbox | None = None


@contextmanager
def _cadre_errors() -> Iterator[None]:
    """Raise the sandbox's errors as those of Cadre, which stop a run with one paragraph."""
    try:
        yield
    except cadre_sandbox.SandboxUnavailable as error:
        raise SandboxUnavailable(str(error)) from error
    except cadre_sandbox.SandboxError as error:
        raise SandboxError(str(error)) from error


class Sandbox(cadre_sandbox.Sandbox):
    """A sandbox for environments: raises errors of `cadre.errors`, and lets deadlines rest while a program waits."""

    def __init__(self, level: LevelName = "auto", mode: Mode = "pool", workers: int | None = None, **rest: Any) -> None:
        with _cadre_errors():
            super().__init__(level, mode, workers, queued=in_line, **rest)

    async def submit(self, jobs: list[dict[str, Any]], stdin: str, limits: Limits) -> list[Ending]:
        with _cadre_errors():
            return await super().submit(jobs, stdin, limits)


def configure(
    level: LevelName = "auto", mode: Mode = "pool", workers: int | None = None, cgroup: GroupMode = "auto"
) -> None:
    """Choose the sandbox of this process, before its first use. Raises SandboxError when the machine cannot give the
    level or the control group, or when another is in use already."""
    global _default
    if _default is not None:
        if level in ("auto", _default.level) and mode == _default.mode and cgroup in ("auto", _default.cgroup):
            return
        raise SandboxError(
            f"the sandbox of this process is in use at level {_default.level!r}, mode {_default.mode!r}, cgroup "
            f"{_default.cgroup!r}; asked for {level!r}, {mode!r}, {cgroup!r}. Call configure() before the first run, "
            f"or make a Sandbox of your own."
        )
    _default = Sandbox(level, mode, workers, cgroup=cgroup)


def default() -> Sandbox:
    """Return the sandbox of this process, at level `auto` unless `configure` chose otherwise."""
    configure()
    assert _default is not None
    return _default


def record() -> dict[str, str | list[str]]:
    """Return how programs of this process are confined, for the run's record of its environment."""
    sandbox = default()
    return {
        "level": sandbox.level,
        "mode": sandbox.mode,
        "layers": list(sandbox.layers),
        "cgroup": sandbox.groups.described,
    }


def table() -> list[Row]:
    """Return the support of this machine for confinement: first the kernel's features, then each level as probed."""
    return cadre_sandbox.table()


async def run(program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS, prelude: str = "") -> Result:
    """Run Python source text as a script in the sandbox of this process; see `Result`."""
    return await default().run(program, stdin, limits, prelude)


async def call(function: FunctionProgram, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Called:
    """Call a function of a program in the sandbox of this process; see `Called`."""
    return await default().call(function, stdin, limits)
