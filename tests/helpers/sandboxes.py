"""Sandboxes that the tests of a process share: a warm parent takes half a second to start."""

from __future__ import annotations

from functools import cache

from cadre_sandbox import LevelName, Sandbox


@cache
def shared_sandbox(level: LevelName = "confined", workers: int = 1, executables: tuple[str, ...] = ()) -> Sandbox:
    """Return the sandbox of this process at the level. It is closed at the process's end; no test closes it."""
    return Sandbox(level, workers=workers, executables=executables)
