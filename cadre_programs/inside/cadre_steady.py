"""A steady clock, `random` and `uuid` for instances, so that prompts with the time or an id are equal in every replay.

Standard library only. `make_steady` changes this process for good: the clock stands at a moment and moves on with
`sleep` alone; `random`, `uuid` and NumPy's generators start from a seed. Monotonic clocks, and so all timeouts, run on.
Threads, asyncio tasks and the work of thread pools have a stream and a clock each, as those that run side by side draw
in another order every time. A generator of the program's own that they share is drawn in that order still.
"""

from __future__ import annotations

import asyncio
import calendar
import concurrent.futures
import contextlib
import contextvars
import ctypes
import datetime
import functools
import hashlib
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
_start = 0.0  # the time at which all clocks begin


class Stream:
    """The clock and the generators of one thread, task or piece of work: what it slept, and what it drew."""

    def __init__(self, seed: str, slept: float = 0.0) -> None:
        self.seed, self.slept, self.readings = seed, slept, 0
        self._children: dict[str, int] = {}
        self._generators: dict[str, Any] = {}

    def now(self) -> float:
        self.readings += 1
        return _start + self.slept + READING_S * max(0, self.readings - FREE_READINGS)

    def now_ns(self) -> int:
        return round(self.now() * 1e6) * 1000

    def pass_time(self, since: float, seconds: float) -> None:
        """Move on to so many seconds after `since`, where `slept` was when a wait began."""
        self.slept = max(self.slept, since + max(0.0, seconds))

    def generator(self, kind: str) -> Any:
        """Return the generator of `random`, of `uuid`, of seeds, or NumPy's."""
        if kind not in self._generators:
            generator: Any = random.Random(f"{kind} {self.seed}")
            if kind == "numpy":
                generator = sys.modules["numpy.random"].RandomState(generator.getrandbits(32))
            self._generators[kind] = generator
        return self._generators[kind]

    def child(self, function: Any, name: str = "") -> Stream:
        """Return the stream of what runs the function beside this one, which begins at this one's time. Children are
        numbered by what they run: how many a client library makes may depend on its open connections."""
        key = name or getattr(function, "__qualname__", type(function).__qualname__)
        number = self._children[key] = self._children.get(key, 0) + 1
        seed = hashlib.sha256(f"{self.seed} {number} {key}".encode()).hexdigest()
        return Stream(seed, self.slept)


class Draws:
    """Draws of one kind, from the stream of the caller."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def getrandbits(self, bits: int) -> int:
        drawn: int = current().generator(self.kind).getrandbits(bits)
        return drawn


_root, _seeds = Stream(""), Draws("seeds")
# The stream of the running task with a mark of its thread: a context that is copied to another thread has the old one.
_of_task: contextvars.ContextVar[tuple[Stream, object]] = contextvars.ContextVar("cadre_stream")


class _Thread(threading.local):
    """What this module knows of each thread: the stream of its present work."""

    def __init__(self) -> None:
        self.mark, self.is_submitting = object(), False
        self.stream: Stream | None = None


_thread = _Thread()


def current() -> Stream:
    """Return the stream of the caller's task, thread or piece of work."""
    stream, mark = _of_task.get((None, None))
    if stream is None or mark is _thread.mark:
        return stream or _thread.stream or _root
    if _thread.stream is None:  # a pool that is not known below, called by a task
        _of_task.set((stream.child(stream, "thread"), _thread.mark))
        return current()
    return _thread.stream


def join(stream: Stream | None) -> None:
    """Move the caller's clock on to that of what it has waited for."""
    if stream is not None:
        current().pass_time(stream.slept, 0.0)


class Work:
    """A function that runs with a stream of its own, whichever thread calls it."""

    def __init__(self, function: Callable[..., Any], stream: Stream | None = None) -> None:
        self.function, self.stream = function, stream or current().child(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before, _thread.stream = _thread.stream, self.stream
        try:
            return self.function(*args, **kwargs)
        finally:
            _thread.stream = before


_original_seed = random.Random.seed
_changed: set[str] = set()


def make_steady(seed: str, start: str, secrets: bool = False) -> None:
    """Make clock, `random` and `uuid` of this process the same in every process with this seed.

    `start` is the time at which the clock stands, such as 2026-01-01T12:00:00 (UTC). With `secrets`, what the system
    draws at random is steady too. May be called again with another seed.
    """
    global _start
    _start = parse_start(start)
    vars(_root).update(vars(Stream(seed)))
    if "steady" not in _changed:
        _changed.add("steady")
        for change in (_steady_random, _steady_uuid, _steady_clock, _separate_threads, _separate_tasks):
            with contextlib.suppress(Exception):  # an interpreter that is not CPython keeps its clock
                change()
        _after_import("numpy.random", _steady_numpy)
        _after_import("multiprocessing.pool", _separate_pools)
        _after_import("concurrent.futures.process", _separate_processes)
    if secrets and "secrets" not in _changed:
        _changed.add("secrets")
        with contextlib.suppress(Exception):
            _replace_builtin(os.urandom, lambda _, size: _seeds.getrandbits(8 * size).to_bytes(size, "big"))


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
        _original_seed(self, _seeds.getrandbits(64) if a is None else a, version)

    random.Random.seed = seed  # type: ignore[method-assign, assignment]
    _draw_by_stream(random, random.Random, "random")


def _draw_by_stream(module: Any, type_: type, kind: str) -> None:
    """Let the functions of a module that are methods of its one generator be those of the caller's stream."""

    def draws(name: str, method: Any) -> Any:
        @functools.wraps(method)
        def draw(*args: Any, **kwargs: Any) -> Any:
            return getattr(current().generator(kind), name)(*args, **kwargs)

        return draw

    for name in module.__all__:
        if hasattr(type_, name):
            setattr(module, name, draws(name, getattr(module, name)))


def _steady_uuid() -> None:
    def uuid1(node: Any = None, clock_seq: Any = None) -> Any:
        return UUID(int=_cadre_numbers.getrandbits(128), version=1)  # type: ignore[name-defined]  # noqa: F821

    def uuid4() -> Any:
        return UUID(int=_cadre_numbers.getrandbits(128), version=4)  # type: ignore[name-defined]  # noqa: F821

    # The code is replaced, not the function, which others may have imported by its name.
    uuid._cadre_numbers = Draws("uuid")  # type: ignore[attr-defined]
    for function in (uuid1, uuid4):
        original = getattr(uuid, function.__name__)
        original.__code__, original.__defaults__ = function.__code__, function.__defaults__
    for name in ("uuid6", "uuid7", "uuid8"):
        if hasattr(uuid, name):
            original = getattr(uuid, name)
            original.__code__, original.__defaults__ = uuid1.__code__, uuid1.__defaults__


def _steady_numpy() -> None:
    numpy_random = sys.modules["numpy.random"]
    _draw_by_stream(numpy_random, numpy_random.RandomState, "numpy")
    # Generators without a seed take one from `secrets`, by a name of this module.
    generator = sys.modules.get("numpy.random.bit_generator")
    if hasattr(generator, "randbits"):
        generator.randbits = _seeds.getrandbits  # type: ignore[union-attr]


def _after_import(name: str, change: Callable[[], None]) -> None:
    """Call the function now if the module is imported, or once it has been."""
    if name in sys.modules:
        change()
        return

    class Finder:
        def find_spec(self, wanted: str, path: Any = None, target: Any = None) -> Any:
            if wanted != name:
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
                    change()

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
            ctypes.py_object, ctypes.py_object, ctypes.POINTER(ctypes.py_object), ctypes.c_ssize_t, ctypes.c_void_p
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
    real_sleep, real_asynchronous_sleep, real_wait = time.sleep, asyncio.sleep, threading.Condition.wait
    originals = {name: getattr(time, name) for name in ("localtime", "gmtime", "strftime", "ctime", "asctime")}

    _replace_builtin(time.time, lambda bound: current().now())
    _replace_builtin(time.time_ns, lambda bound: current().now_ns())
    _replace_builtin(time.perf_counter, lambda bound: current().now() - _start)
    _replace_builtin(time.perf_counter_ns, lambda bound: current().now_ns() - round(_start * 1e9))

    def now(bound: Any, tz: Any = None) -> Any:
        return bound.fromtimestamp(current().now(), tz)

    _replace_builtin(datetime.datetime.now, now)
    _replace_builtin(
        datetime.datetime.utcnow, lambda bound: bound.fromtimestamp(current().now(), datetime.UTC).replace(tzinfo=None)
    )

    # These read the clock where they get no time. A name that was imported before keeps the function in C.
    def sleep(seconds: float) -> None:
        stream = current()
        since = stream.slept
        real_sleep(seconds)
        stream.pass_time(since, seconds)

    async def sleep_asynchronously(delay: float, result: Any = None) -> Any:
        stream = current()
        since = stream.slept
        value = await real_asynchronous_sleep(delay, result)
        stream.pass_time(since, delay)
        return value

    def wait(self: Any, timeout: float | None = None) -> bool:
        stream = current()
        since = stream.slept
        is_notified = real_wait(self, timeout)
        if not is_notified and timeout is not None:
            stream.pass_time(since, timeout)
        return is_notified

    time.sleep, asyncio.sleep = sleep, sleep_asynchronously  # type: ignore[assignment]
    threading.Condition.wait = wait  # type: ignore[method-assign]
    time.localtime = lambda secs=None: originals["localtime"](current().now() if secs is None else secs)  # type: ignore[assignment]
    time.gmtime = lambda secs=None: originals["gmtime"](current().now() if secs is None else secs)  # type: ignore[assignment]
    time.ctime = lambda secs=None: originals["ctime"](current().now() if secs is None else secs)
    time.asctime = lambda t=None: originals["asctime"](time.localtime() if t is None else t)
    time.strftime = lambda format, t=None: originals["strftime"](format, time.localtime() if t is None else t)


# Streams of threads, tasks and submitted work


def _separate_threads() -> None:
    future_type = concurrent.futures.Future
    real_start, real_join, real_result = threading.Thread.start, threading.Thread.join, future_type.result

    def start(self: Any) -> None:
        if _thread.is_submitting:  # how many threads a pool starts is a matter of time
            self.run = Work(self.run, Stream(current().seed))
        elif not type(self).__module__.startswith("anyio."):  # the same; its work comes with the context of its task
            self.run = Work(self.run, current().child(getattr(self, "_target", None) or self.run))
        real_start(self)

    def join_thread(self: Any, timeout: float | None = None) -> None:
        real_join(self, timeout)
        if isinstance(self.run, Work) and not self.is_alive():
            join(self.run.stream)

    def result(self: Any, timeout: float | None = None) -> Any:
        try:
            return real_result(self, timeout)
        finally:
            # A loop copies the results of its futures where nobody waits for them yet.
            if self.done() and asyncio._get_running_loop() is None:
                join(getattr(self, "stream", None))

    threading.Thread.start, threading.Thread.join = start, join_thread  # type: ignore[method-assign]
    future_type.result = result  # type: ignore[method-assign]
    _separate_work(concurrent.futures.ThreadPoolExecutor)


def _separate_work(executor_type: Any) -> None:
    real_submit = executor_type.submit

    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        work = fn if isinstance(fn, Work) else Work(fn)
        _thread.is_submitting = True
        try:
            future = real_submit(self, work, *args, **kwargs)
        finally:
            _thread.is_submitting = False
        future.stream = work.stream
        return future

    executor_type.submit = submit


def _separate_processes() -> None:
    _separate_work(concurrent.futures.ProcessPoolExecutor)


def _call(work_and_argument: Any) -> Any:
    work, argument = work_and_argument
    return work(argument)


def _call_with_all(work: Work, arguments: Any) -> Any:
    return work(*arguments)


def _separate_pools() -> None:
    """Do the same for the pools of threads and processes of multiprocessing."""
    pool = sys.modules["multiprocessing.pool"].Pool
    real = {name: getattr(pool, name) for name in ("apply_async", "_map_async", "imap", "imap_unordered")}

    def with_work(func: Any, iterable: Any) -> Any:
        parent = current()  # not that of the thread that passes the items on
        return ((Work(func, parent.child(func)), item) for item in iterable)

    def apply_async(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        return real["apply_async"](self, Work(func), *args, **kwargs)

    def map_async(self: Any, func: Any, iterable: Any, mapper: Any, *args: Any, **kwargs: Any) -> Any:
        call = _call if mapper.__name__ == "mapstar" else _call_with_all
        return real["_map_async"](self, call, with_work(func, iterable), mapper, *args, **kwargs)

    def lazily(name: str) -> Any:
        def imap(self: Any, func: Any, iterable: Any, chunksize: int = 1) -> Any:
            return real[name](self, _call, with_work(func, iterable), chunksize)

        return imap

    changed = {"apply_async": apply_async, "_map_async": map_async}
    for name, method in {**changed, "imap": lazily("imap"), "imap_unordered": lazily("imap_unordered")}.items():
        setattr(pool, name, method)


class _Joins:
    """A future whose waiter moves on to its time."""

    stream: Stream

    def __await__(self) -> Any:
        try:
            return (yield from super().__await__())  # type: ignore[misc]
        finally:
            if self.done():  # type: ignore[attr-defined]
                join(self.stream)

    def result(self) -> Any:
        if self.done():  # type: ignore[attr-defined]
            join(self.stream)
        return super().result()  # type: ignore[misc]


class SteadyTask(_Joins, asyncio.Task):  # type: ignore[type-arg]
    """A task with a stream of its own."""

    def __init__(self, coro: Any, **options: Any) -> None:
        self.stream = current().child(coro, options.get("name") or "")
        of_task = self.stream, _thread.mark
        if options.get("context") is not None:
            options["context"].run(_of_task.set, of_task)
        token = _of_task.set(of_task)
        try:
            super().__init__(coro, **options)
        finally:
            _of_task.reset(token)


class SteadyFuture(_Joins, asyncio.Future):  # type: ignore[type-arg]
    """The future of work in a thread pool."""


def _separate_tasks() -> None:
    real_run, real_threadsafe = asyncio.BaseEventLoop.run_in_executor, asyncio.run_coroutine_threadsafe

    def run_in_executor(self: Any, executor: Any, func: Any, *args: Any) -> Any:
        work, future = Work(func), SteadyFuture(loop=self)
        future.stream = work.stream
        asyncio.futures._chain_future(real_run(self, executor, work, *args), future)  # type: ignore[attr-defined]
        return future

    def run_coroutine_threadsafe(coro: Any, loop: Any) -> Any:
        stream = current().child(coro)

        async def run() -> Any:
            _of_task.set((stream, _thread.mark))
            return await coro

        future: Any = real_threadsafe(run(), loop)
        future.stream = stream
        return future

    asyncio.BaseEventLoop.run_in_executor = run_in_executor  # type: ignore[method-assign, assignment]
    asyncio.run_coroutine_threadsafe = asyncio.tasks.run_coroutine_threadsafe = run_coroutine_threadsafe
    asyncio.Task = asyncio.tasks.Task = SteadyTask  # type: ignore[misc]
