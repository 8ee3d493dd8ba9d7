"""Runs programs that a model wrote: quickly, confined, and so that they cannot cheat.

    async with Sandbox() as sandbox:
        result = await sandbox.run("print(6 * 7)")

The checkers, which compare a program with what is expected of it, are in `cadre_sandbox.checkers`. Levels and layers
are described in docs/sandbox.md. This package stands alone: it imports neither `cadre` nor `cadre_tasks`.
"""

from cadre_sandbox.errors import SandboxError, SandboxUnavailable
from cadre_sandbox.levels import Row, table
from cadre_sandbox.pool import Sandbox
from cadre_sandbox.records import (
    DEFAULT_LIMITS,
    Called,
    FunctionProgram,
    GroupMode,
    LevelName,
    Limits,
    Mode,
    Result,
    Status,
)

__all__ = [
    "DEFAULT_LIMITS",
    "Called",
    "FunctionProgram",
    "GroupMode",
    "LevelName",
    "Limits",
    "Mode",
    "Result",
    "Row",
    "Sandbox",
    "SandboxError",
    "SandboxUnavailable",
    "Status",
    "table",
]
