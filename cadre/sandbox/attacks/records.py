"""What an attack is, and how one went."""

from dataclasses import dataclass
from typing import Protocol

from cadre.sandbox.records import Limits, Result, Status

QUICK = Limits(cpu_s=0.15)
ROOM = Limits(cpu_s=2.0)
FOLDER = Limits(cpu_s=2.0, folder_mb=2)


class Runner(Protocol):
    """What an attack is tried on: a `Sandbox`, or something as small as it needs."""

    level: str

    async def run(self, program: str, stdin: str = "", limits: Limits = ...) -> Result: ...


@dataclass(frozen=True)
class Attack:
    """A hostile program, in Python source text with @NAME@ where the world's names go.

    It calls `attack(function)`, which prints BREACH when the function succeeds and STOPPED with the reason when it
    raises. What it does besides that is seen from outside; see `world.py`.

    layer   what stops it, where its end does not tell
    ends    the only statuses, besides `timeout` and `wall`, that count as held; any when empty
    limits  of its run
    """

    name: str
    kind: str
    program: str
    ends: tuple[Status, ...] = ()
    limits: Limits = ROOM
    layer: str = ""


def tried(
    name: str, kind: str, expression: str, ends: tuple[Status, ...] = (), limits: Limits = ROOM, layer: str = ""
) -> Attack:
    """An attack that is one expression, and that has got through when the expression has a value."""
    return Attack(name, kind, f"attack(lambda: {expression})", ends, limits, layer)


@dataclass(frozen=True)
class Outcome:
    """How an attack went: `breach` says what got through and is empty when it held; `layer` is what stopped it. `slow`
    where the breach is no more than a run that took too long, which a busy machine does by itself."""

    name: str
    kind: str
    status: Status
    breach: str
    layer: str
    wall_s: float
    slow: bool = False
