"""Make a run a function of its program and its input: all random numbers and clocks depend on the job's seed.

`prepare` replaces functions once, in the warm parent; `seed` resets them in each child. Replaced are the functions of
`random` (and what builds on it: numpy, tempfile), `os.urandom` (secrets, uuid), and the clocks that programs use as
seeds. Not replaced are the monotonic clock, by which threads and asyncio wait, CPU time, by which programs stop,
process ids, and the order in which threads run.
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

# The time at which every program starts: the beginning of 2026, UTC.
START_NS = 1_767_225_600 * 10**9
# The clock moves in steps, so that a program that reads it early gets the same time in every run.
STEP_NS = 10**8
# It also moves a little at each reading, so that no two readings are equal.
READ_NS = 1_000
# A busy machine may delay a program for so long before the clock shows it.
SLACK_NS = 10**9

_entropy = _random.Random()
_pending: list[int] = []


class Clock:
    """The clock of a program: its CPU time plus the time that it slept; other waiting counts beyond SLACK_NS.

    Reset by `seed` for each run.
    """

    def __init__(self) -> None:
        self.started, self.used, self.slept, self.reads = 0, 0, 0, 0
        self.restart()

    def restart(self) -> None:
        self.started, self.used, self.slept, self.reads = monotonic_ns(), process_time_ns(), 0, 0

    def perf_counter_ns(self) -> int:
        """Return nanoseconds since the start of the program."""
        self.reads += 1
        worked = process_time_ns() - self.used + self.slept
        waited = monotonic_ns() - self.started - SLACK_NS
        return max(worked, waited) // STEP_NS * STEP_NS + READ_NS * self.reads

    def perf_counter(self) -> float:
        return self.perf_counter_ns() / 1e9

    def time_ns(self) -> int:
        return START_NS + self.perf_counter_ns()

    def time(self) -> float:
        return self.time_ns() / 1e9

    def clock_gettime_ns(self, clock: int, /) -> int:
        """Replace `time.clock_gettime_ns` for the times of day; other clocks are read as they are."""
        return self.time_ns() if clock in TIMES_OF_DAY else clock_gettime_ns(clock)

    def clock_gettime(self, clock: int, /) -> float:
        return self.clock_gettime_ns(clock) / 1e9

    def times(self) -> Any:
        """Replace `os.times`: the elapsed time is this clock's."""
        real_times = times()
        return type(real_times)((*real_times[:4], self.perf_counter()))

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
        """Sleep like `time.sleep`, and count the time as slept."""
        sleep(seconds)
        self.slept += int(seconds * 1e9)


monotonic_ns, process_time_ns, clock_gettime_ns = time.monotonic_ns, time.process_time_ns, time.clock_gettime_ns
sleep, times = time.sleep, os.times
# 5 is CLOCK_REALTIME_COARSE on Linux, which has no name in Python.
TIMES_OF_DAY = {time.CLOCK_REALTIME, *((time.CLOCK_TAI, 5) if sys.platform == "linux" else ())}
localtime, gmtime, ctime, asctime, strftime = time.localtime, time.gmtime, time.ctime, time.asctime, time.strftime
REPLACED_CLOCKS = (
    "time time_ns perf_counter perf_counter_ns clock_gettime clock_gettime_ns sleep "
    "localtime gmtime ctime asctime strftime"
).split()
_clock = Clock()


def prepare() -> None:
    """Replace the functions whose results differ from run to run."""
    replace_function(random.Random, "seed", make_seed_method(random.Random.seed))
    replace_function(random, "seed", random._inst.seed)  # type: ignore[attr-defined]
    replace_function(random, "_urandom", staticmethod(urandom))
    replace_function(os, "urandom", staticmethod(urandom))
    replace_function(os, "getrandom", staticmethod(getrandom))
    sys.modules["_uuid"] = None  # type: ignore[assignment]  # uuid then asks `random` and the clock
    prepare_clocks()


def prepare_clocks() -> None:
    for name in REPLACED_CLOCKS:
        replace_function(time, name, getattr(_clock, name))
    replace_function(os, "times", _clock.times)
    # `datetime.datetime` is immutable, and must stay the same type, as the codec knows it. So write to the dictionary
    # behind its read-only mapping, then have the interpreter drop its cache of the type's methods.
    names = gc.get_referents(datetime.datetime.__dict__)[0]
    names["now"] = classmethod(now)
    names["utcnow"] = classmethod(lambda kind: now(kind, datetime.UTC).replace(tzinfo=None))
    pythonapi.PyType_Modified(py_object(datetime.datetime))


def now(kind: Any, tz: Any = None) -> Any:
    """Replace `datetime.now`."""
    return kind.fromtimestamp(time.time(), tz)


def replace_function(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace an attribute by a function.

    If programs may store it in a class of theirs, it must be no plain function, which would become a method there.
    """
    setattr(owner, name, function)


def seed(number: int) -> None:
    """Reset all random numbers and the clock: equal seeds give equal draws."""
    random.seed(number)
    _pending.append(number)
    _clock.restart()


def entropy(bits: int) -> int:
    """Return random bits in place of the system's randomness."""
    # Seeded at the first draw, because most programs draw none and seeding takes time.
    while _pending:
        _entropy.seed(~_pending.pop())
    return _entropy.getrandbits(bits)


def urandom(size: int, /) -> bytes:
    """Replace `os.urandom`."""
    count = operator.index(size)
    if count < 0:
        raise ValueError("negative argument not allowed")
    return entropy(8 * count).to_bytes(count, "little")


def getrandom(size: int, flags: int = 0) -> bytes:
    """Replace `os.getrandom`."""
    return urandom(size)


def make_seed_method(original: Callable[..., None]) -> Callable[..., None]:
    """Return a replacement of `Random.seed` that takes its default seed from `entropy`."""

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        original(self, entropy(256) if a is None else a, version)

    return seed
