"""A steady clock, `random` and `uuid` for instances, so that prompts with the time or an id are equal in every replay.

Standard library only. `make_steady` changes this process for good: the clock stands at a moment and moves on with
`sleep` alone; `random`, `uuid` and NumPy's generators start from a seed. Monotonic clocks, and so all timeouts, run on.
Names that were imported before are changed too, as functions are replaced where they are defined.
"""

from __future__ import annotations

import asyncio
import calendar
import contextlib
import ctypes
import datetime
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

# Readings of the clock that are free. Every later one takes 10 microseconds, so that a loop until a time comes ends.
FREE_READINGS = 100_000
READING_S = 1e-5
METH_VARARGS, METH_KEYWORDS, METH_NOARGS, METH_O, METH_FASTCALL = 0x01, 0x02, 0x04, 0x08, 0x80

_kept: list[Any] = []  # callbacks that C code holds
_lock = threading.Lock()


class Clock:
    """The time of this process: a start, what it slept, and what reading the clock took."""

    def __init__(self) -> None:
        self.start, self.slept, self.readings = 0.0, 0.0, 0

    def now(self) -> float:
        self.readings += 1
        return self.start + self.slept + READING_S * max(0, self.readings - FREE_READINGS)

    def now_ns(self) -> int:
        return round(self.now() * 1e6) * 1000

    def pass_time(self, since: float, seconds: float) -> None:
        """Move on to so many seconds after `since`, where `slept` was when a wait began; waits side by side overlap."""
        with _lock:
            self.slept = max(self.slept, since + max(0.0, seconds))


_clock, _numbers, _ids = Clock(), random.Random(0), random.Random(0)
_original_seed = random.Random.seed
_changed: set[str] = set()


def make_steady(seed: str, start: str, secrets: bool = False) -> None:
    """Make clock, `random` and `uuid` of this process the same in every process with this seed.

    `start` is the time at which the clock stands, such as 2026-01-01T12:00:00 (UTC). With `secrets`, what the system
    draws at random is steady too. May be called again with another seed.
    """
    _original_seed(_numbers, seed)
    _original_seed(_ids, f"uuid {seed}")
    _clock.start, _clock.slept, _clock.readings = parse_start(start), 0.0, 0
    for name, change in (("random", _steady_random), ("uuid", _steady_uuid), ("clock", _steady_clock)):
        if name not in _changed:
            _changed.add(name)
            with contextlib.suppress(Exception):  # an interpreter that is not CPython keeps its clock
                change()
    if secrets and "secrets" not in _changed:
        _changed.add("secrets")
        with contextlib.suppress(Exception):
            _replace_builtin(os.urandom, lambda _, size: _numbers.getrandbits(8 * size).to_bytes(size, "big"))
    random.seed(_numbers.getrandbits(64))
    _steady_numpy()


def make_steady_by_variables(seed: str = "") -> None:
    """Do so if the variables of this process ask for it."""
    start = os.environ.get("CADRE_CLOCK")
    if start:
        secrets = os.environ.get("CADRE_STEADY_SECRETS") == "1"
        make_steady(seed or os.environ.get("CADRE_SEED", ""), start, secrets)


def parse_start(start: str) -> float:
    """Return the seconds since 1970 of a time in UTC."""
    return float(calendar.timegm(time.strptime(start, "%Y-%m-%dT%H:%M:%S")))


def _steady_random() -> None:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        _original_seed(self, _numbers.getrandbits(64) if a is None else a, version)

    random.Random.seed = seed  # type: ignore[method-assign, assignment]
    random.seed = random._inst.seed  # type: ignore[attr-defined]


def _steady_uuid() -> None:
    def uuid1(node: Any = None, clock_seq: Any = None) -> Any:
        return UUID(int=_cadre_numbers.getrandbits(128), version=1)  # type: ignore[name-defined]  # noqa: F821

    def uuid4() -> Any:
        return UUID(int=_cadre_numbers.getrandbits(128), version=4)  # type: ignore[name-defined]  # noqa: F821

    # The code is replaced, not the function, which others may have imported by its name.
    uuid._cadre_numbers = _ids  # type: ignore[attr-defined]
    for function in (uuid1, uuid4):
        original = getattr(uuid, function.__name__)
        original.__code__, original.__defaults__ = function.__code__, function.__defaults__
    for name in ("uuid6", "uuid7", "uuid8"):
        if hasattr(uuid, name):
            original = getattr(uuid, name)
            original.__code__, original.__defaults__ = uuid1.__code__, uuid1.__defaults__


def _steady_numpy() -> None:
    """Seed NumPy's generators, now or when it is imported."""
    seed = _numbers.getrandbits(32)

    def seed_numpy() -> None:
        numpy_random = sys.modules["numpy.random"]
        numpy_random.seed(seed)
        # Generators without a seed take one from `secrets`, by a name of this module.
        generator = sys.modules.get("numpy.random.bit_generator")
        if hasattr(generator, "randbits"):
            generator.randbits = _numbers.getrandbits  # type: ignore[union-attr]

    if "numpy.random" in sys.modules:
        with contextlib.suppress(Exception):
            seed_numpy()
        return
    if "numpy" in _changed:
        return
    _changed.add("numpy")

    class Finder:
        """Seeds NumPy once its package `random` has been imported."""

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name != "numpy.random":
                return None
            sys.meta_path.remove(self)  # type: ignore[arg-type]
            import importlib.util

            spec = importlib.util.find_spec(name)
            if spec is None or spec.loader is None:
                return spec
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                with contextlib.suppress(Exception):
                    seed_numpy()

            loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]


# The clock


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def _replace_builtin(function: Any, replacement: Callable[..., Any]) -> None:
    """Let a function that is written in C call a Python function, whoever holds a reference to it.

    `replacement` is called with what the function is bound to, then its positional and keyword arguments.
    """
    # A PyCFunctionObject is an object's head, then a pointer to its PyMethodDef.
    pointer = ctypes.cast(id(function) + object.__basicsize__, ctypes.POINTER(ctypes.POINTER(_MethodDef)))
    definition = pointer.contents.contents
    if definition.name != function.__name__.encode():
        raise RuntimeError("no PyCFunctionObject of this layout")
    kind = definition.flags & (METH_VARARGS | METH_KEYWORDS | METH_NOARGS | METH_O | METH_FASTCALL)
    if kind == METH_NOARGS:
        prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
        callback: Any = prototype(lambda bound, _: replacement(bound))
    elif kind == METH_O:
        prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)
        callback = prototype(replacement)
    elif kind == METH_FASTCALL | METH_KEYWORDS:
        prototype = ctypes.PYFUNCTYPE(
            ctypes.py_object,
            ctypes.py_object,
            ctypes.POINTER(ctypes.py_object),
            ctypes.c_ssize_t,
            ctypes.c_void_p,
        )

        def call(bound: Any, values: Any, count: int, names: int | None) -> Any:
            keywords = ctypes.cast(names, ctypes.py_object).value if names else ()
            arguments = [values[index] for index in range(count)]
            named = {name: values[count + index] for index, name in enumerate(keywords)}
            return replacement(bound, *arguments, **named)

        callback = prototype(call)
    else:
        raise RuntimeError("an unknown calling convention")
    _kept.append(callback)
    definition.method = ctypes.cast(callback, ctypes.c_void_p).value


def _steady_clock() -> None:
    clock, real_sleep, real_asynchronous_sleep, real_wait = _clock, time.sleep, asyncio.sleep, threading.Condition.wait
    originals = {name: getattr(time, name) for name in ("localtime", "gmtime", "strftime", "ctime", "asctime")}

    _replace_builtin(time.time, lambda bound: clock.now())
    _replace_builtin(time.time_ns, lambda bound: clock.now_ns())
    _replace_builtin(time.perf_counter, lambda bound: clock.now() - clock.start)
    _replace_builtin(time.perf_counter_ns, lambda bound: clock.now_ns() - round(clock.start * 1e9))

    def now(bound: Any, tz: Any = None) -> Any:
        return bound.fromtimestamp(clock.now(), tz)

    _replace_builtin(datetime.datetime.now, now)
    _replace_builtin(
        datetime.datetime.utcnow,
        lambda bound: bound.fromtimestamp(clock.now(), datetime.UTC).replace(tzinfo=None),
    )

    # These read the clock where they get no time. A name that was imported before keeps the function in C.
    def sleep(seconds: float) -> None:
        since = clock.slept
        real_sleep(seconds)
        clock.pass_time(since, seconds)

    async def sleep_asynchronously(delay: float, result: Any = None) -> Any:
        since = clock.slept
        value = await real_asynchronous_sleep(delay, result)
        clock.pass_time(since, delay)
        return value

    def wait(self: Any, timeout: float | None = None) -> bool:
        since = clock.slept
        is_notified = real_wait(self, timeout)
        if not is_notified and timeout is not None:
            clock.pass_time(since, timeout)
        return is_notified

    time.sleep, asyncio.sleep = sleep, sleep_asynchronously  # type: ignore[assignment]
    threading.Condition.wait = wait  # type: ignore[method-assign]
    time.localtime = lambda secs=None: originals["localtime"](clock.now() if secs is None else secs)  # type: ignore[assignment]
    time.gmtime = lambda secs=None: originals["gmtime"](clock.now() if secs is None else secs)  # type: ignore[assignment]
    time.ctime = lambda secs=None: originals["ctime"](clock.now() if secs is None else secs)
    time.asctime = lambda t=None: originals["asctime"](time.localtime() if t is None else t)
    time.strftime = lambda format, t=None: originals["strftime"](format, time.localtime() if t is None else t)
