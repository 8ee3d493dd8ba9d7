"""Which level this machine gives, found by trying: start a warm parent at the level and let it attack."""

import functools
import logging
from dataclasses import dataclass

from cadre.errors import SandboxError
from cadre.sandbox.inside.layers import LAYERS as LAYERS
from cadre.sandbox.records import Level, LevelName
from cadre.sandbox.worker import Setup, Worker, WorkerDied

log = logging.getLogger("cadre.sandbox")


@dataclass(frozen=True)
class Trial:
    """What one level gave when it was tried; `reason` says why it does not hold."""

    level: str
    holds: bool
    reason: str = ""


@functools.cache
def attempt(level: str) -> Trial:
    """Start one warm parent at the level and see which layers its child armed."""
    worker = Worker(Setup(level, "cold"))
    try:
        worker.hello_blocking()
    except WorkerDied as error:
        return Trial(level, False, str(error))
    finally:
        worker.close()
    return Trial(level, True)


def choose(asked: LevelName) -> Level:
    """The level to use. Raises SandboxError when it does not hold, or when `auto` finds none from `confined` up."""
    candidates: tuple[Level, ...] = ("isolated", "confined") if asked == "auto" else (asked,)
    for level in candidates:
        trial = attempt(level)
        if trial.holds:
            log.info("sandbox level %s", level)
            return level
    raise SandboxError(f"level {asked!r} does not hold: {trial.reason}")
