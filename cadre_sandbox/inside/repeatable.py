"""Makes a run a function of its program and its input: all that a program may draw from hangs on the job's seed.

`prepare` puts stand-ins in place once, in the warm parent; `seed` starts them anew in each child. They cover `random`
(and what builds on it: numpy, tempfile), `os.urandom` (secrets, uuid) and the clocks that programs seed themselves by.
Leaves out the monotonic clock, by which threads and asyncio wait, processor time, by which programs stop, process ids,
and the order in which threads run.
"""

import _random
import datetime
import gc
import operator
import os
import random
import sys
import time
from collections.abc import Callable
from ctypes import py_object, pythonapi
from time import struct_time
from typing import Any

START_NS = 1_767_225_600 * 10**9  # the beginning of 2026: the moment at which every program starts
STEP_NS = 10**8  # the clock moves in steps, so that a program which looks early sees the same time each time
LOOK_NS = 1_000  # and a little at each look, so that no two looks are alike
SLACK_NS = 10**9  # how long a busy machine may keep a program waiting before the clock shows it

_entropy = _random.Random()
_pending: list[int] = []


class Clock:
    """Time as a program sees it: its processor time and what it slept. Other waiting shows after a while. Lives for one
    run; `started` is renewed by `seed`.
    """

    def __init__(self) -> None:
        self.started, self.used, self.slept, self.looks = 0, 0, 0, 0
        self.restart()

    def restart(self) -> None:
        self.started, self.used, self.slept, self.looks = monotonic_ns(), process_time_ns(), 0, 0

    def perf_counter_ns(self) -> int:
        """Nanoseconds since the start of the program."""
        self.looks += 1
        worked = process_time_ns() - self.used + self.slept
        waited = monotonic_ns() - self.started - SLACK_NS
        return max(worked, waited) // STEP_NS * STEP_NS + LOOK_NS * self.looks

    def perf_counter(self) -> float:
        return self.perf_counter_ns() / 1e9

    def time_ns(self) -> int:
        return START_NS + self.perf_counter_ns()

    def time(self) -> float:
        return self.time_ns() / 1e9

    def clock_gettime_ns(self, clock: int, /) -> int:
        """As `time.clock_gettime_ns`; all but the times of day stay as they are."""
        return self.time_ns() if clock in TIMES_OF_DAY else clock_gettime_ns(clock)

    def clock_gettime(self, clock: int, /) -> float:
        return self.clock_gettime_ns(clock) / 1e9

    def times(self) -> Any:
        """As `os.times`."""
        told = times()
        return type(told)((*told[:4], self.perf_counter()))

    def localtime(self, seconds: float | None = None, /) -> struct_time:
        return localtime(self.time() if seconds is None else seconds)

    def gmtime(self, seconds: float | None = None, /) -> struct_time:
        return gmtime(self.time() if seconds is None else seconds)

    def ctime(self, seconds: float | None = None, /) -> str:
        return ctime(self.time() if seconds is None else seconds)

    def asctime(self, *when: Any) -> str:
        return asctime(*(when or (self.localtime(),)))

    def strftime(self, form: str, *when: Any) -> str:
        return strftime(form, *(when or (self.localtime(),)))

    def sleep(self, seconds: float, /) -> None:
        """As `time.sleep`."""
        sleep(seconds)
        self.slept += int(seconds * 1e9)


monotonic_ns, process_time_ns, clock_gettime_ns = time.monotonic_ns, time.process_time_ns, time.clock_gettime_ns
sleep, times = time.sleep, os.times
TIMES_OF_DAY = {time.CLOCK_REALTIME, time.CLOCK_TAI, 5}  # and CLOCK_REALTIME_COARSE, which has no name in Python
localtime, gmtime, ctime, asctime, strftime = time.localtime, time.gmtime, time.ctime, time.asctime, time.strftime
STOOD_IN = (
    "time time_ns perf_counter perf_counter_ns clock_gettime clock_gettime_ns sleep "
    "localtime gmtime ctime asctime strftime"
).split()
_clock = Clock()


def prepare() -> None:
    """Put the stand-ins in place of what differs from run to run."""
    stand_in(random.Random, "seed", seeding(random.Random.seed))
    stand_in(random, "seed", random._inst.seed)  # type: ignore[attr-defined]
    stand_in(random, "_urandom", staticmethod(urandom))
    stand_in(os, "urandom", staticmethod(urandom))
    stand_in(os, "getrandom", staticmethod(getrandom))
    sys.modules["_uuid"] = None  # type: ignore[assignment]  # uuid then asks `random` and the clock
    prepare_clocks()


def prepare_clocks() -> None:
    for name in STOOD_IN:
        stand_in(time, name, getattr(_clock, name))
    stand_in(os, "times", _clock.times)
    names = gc.get_referents(datetime.datetime.__dict__)[0]  # the type itself must stay: it is what crosses the codec
    names["now"] = classmethod(now)
    names["utcnow"] = classmethod(lambda kind: now(kind, datetime.UTC).replace(tzinfo=None))
    pythonapi.PyType_Modified(py_object(datetime.datetime))


def now(kind: Any, tz: Any = None) -> Any:
    """As `datetime.now`."""
    return kind.fromtimestamp(time.time(), tz)


def stand_in(place: Any, name: str, function: Callable[..., Any]) -> None:
    """A function in the place of another. Where programs may keep it in a class of theirs it must be no plain function,
    which would become a method there.
    """
    setattr(place, name, function)


def seed(number: int) -> None:
    """Start everything that a program may draw from anew: equal numbers give equal draws."""
    random.seed(number)
    _pending.append(number)
    _clock.restart()


def entropy(bits: int) -> int:
    """What stands for the system's randomness. Its generator is seeded when it is first asked."""
    while _pending:
        _entropy.seed(~_pending.pop())
    return _entropy.getrandbits(bits)


def urandom(size: int, /) -> bytes:
    """As `os.urandom`."""
    count = operator.index(size)
    if count < 0:
        raise ValueError("negative argument not allowed")
    return entropy(8 * count).to_bytes(count, "little")


def getrandom(size: int, flags: int = 0) -> bytes:
    """As `os.getrandom`."""
    return urandom(size)


def seeding(original: Callable[..., None]) -> Callable[..., None]:
    """`Random.seed`, that asks nobody but us where it is given nothing."""

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        original(self, entropy(256) if a is None else a, version)

    return seed
