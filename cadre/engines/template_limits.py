"""Render chat templates within limits: a template comes with a model, and may loop, grow or nest without end.

A watchdog thread measures the CPU time of the thread that renders, so that a busy or suspended machine does not count.
macOS has no clock of another thread: there it is the time that passes, and no more than the CPU time of the process.
Left out: a single operation that takes all memory, which raises MemoryError if the system refuses it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from cadre.errors import EngineError
from cadre.file_limits import MIB, size_of

# CPU seconds of one rendering; a prompt of 100,000 tokens takes some milliseconds.
MAX_SECONDS = 3.0
# Bytes that the process may grow by meanwhile, and characters of a prompt.
MAX_GROWTH = 1024 * MIB
MAX_CHARACTERS = 64 * MIB
CHECK_INTERVAL_S = 0.05
# A thread may swallow the exception that stops it, as in a finaliser; it is stopped again after this time.
RETRY_S = 1.0


class _LimitExceeded(BaseException):
    """Raised by the watchdog within the template. Not an Exception, so that nothing on the way catches it."""


@dataclass
class _Rendering:
    """One rendering in progress: its thread, clocks, and values at its start; `stopped` is the exceeded limit."""

    thread: int
    clocks: tuple[Callable[[], float], ...]
    start_times: tuple[float, ...]
    start_memory: int
    stopped: str = ""
    next_stop: float = 0.0


class _Watchdog:
    """The renderings of one process and the thread that stops them; a forked process makes its own."""

    def __init__(self) -> None:
        self.process, self.lock = os.getpid(), threading.Lock()
        self.renderings: list[_Rendering] = []
        self.pending = threading.Event()
        threading.Thread(target=self._run, name="cadre-templates", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.pending.wait()
            time.sleep(CHECK_INTERVAL_S)
            with self.lock:
                for rendering in self.renderings:
                    self._check(rendering)
                if not self.renderings:
                    self.pending.clear()

    def _check(self, rendering: _Rendering) -> None:
        times = zip(rendering.clocks, rendering.start_times, strict=True)
        if min(clock() - start for clock, start in times) > MAX_SECONDS:
            rendering.stopped = f"it does not end within {MAX_SECONDS:g} s"
        elif _resident() - rendering.start_memory > MAX_GROWTH:
            rendering.stopped = f"it takes more than {size_of(MAX_GROWTH)} of memory"
        if rendering.stopped and time.monotonic() > rendering.next_stop:
            rendering.next_stop = time.monotonic() + RETRY_S
            _raise_in(rendering.thread, _LimitExceeded)


_watchdog: _Watchdog | None = None


@contextmanager
def _watched() -> Iterator[_Rendering]:
    global _watchdog
    if _watchdog is None or _watchdog.process != os.getpid():
        _watchdog = _Watchdog()
    watchdog, thread = _watchdog, threading.get_ident()
    clocks = _clocks(thread)
    rendering = _Rendering(thread, clocks, tuple(clock() for clock in clocks), _resident())
    with watchdog.lock:
        watchdog.renderings.append(rendering)
    watchdog.pending.set()
    try:
        yield rendering
    finally:
        _forget(watchdog, rendering)


def _forget(watchdog: _Watchdog, rendering: _Rendering) -> None:
    """Remove a rendering from the watchdog, which may stop this thread at any line meanwhile."""
    while True:
        try:
            with watchdog.lock:
                if rendering in watchdog.renderings:
                    watchdog.renderings.remove(rendering)
                if rendering.stopped:
                    _raise_in(rendering.thread, None)  # what has not arrived yet would interrupt what comes next
            return
        except _LimitExceeded:
            continue


def render(tokenizer: Any, messages: Any, **options: Any) -> str:
    """Return what the tokenizer's template writes.

    Raises EngineError if it exceeds a limit, and whatever the template itself raises.
    """
    text, stopped = "", ""
    try:
        with _watched() as rendering:
            try:
                text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
            finally:
                stopped = rendering.stopped
    except _LimitExceeded:
        stopped = stopped or "it does not end"
    if len(text) > MAX_CHARACTERS:
        stopped = f"it writes {len(text):,} characters"
    if stopped:
        raise EngineError(
            f"The chat template of {tokenizer.name_or_path or 'this model'} is not rendered: {stopped}; expected one "
            "that writes a prompt at once. Look for its loops and macros, or choose another model."
        )
    return text


def _clocks(thread: int) -> tuple[Callable[[], float], ...]:
    """Return the clocks of a thread's time, of which the one that has advanced least counts."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time, time.monotonic
    return (partial(time.clock_gettime, time.pthread_getcpuclockid(thread)),)


def _resident() -> int:
    """Return the bytes of resident memory of the process; 0 on other systems than Linux."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Make a thread raise this at its next bytecode; None cancels what has not been raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind) if kind else None)
