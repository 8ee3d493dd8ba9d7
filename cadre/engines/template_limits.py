"""Rendering chat templates that end: a template comes with a model, and may loop, grow or nest as it likes.

A thread watches what is being rendered, by the processor time of the thread that renders, so that a machine that is
busy or asleep counts for nothing. What this leaves out: a single operation that takes all memory, which Python refuses
where the system does.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cadre.errors import EngineError
from cadre.file_limits import MIB, size_of

# Seconds of one thread; a prompt of 100,000 tokens takes some milliseconds.
SECONDS = 3.0
# Bytes that the process may grow by meanwhile, and characters of a prompt.
GROWTH = 1024 * MIB
MOST_CHARACTERS = 64 * MIB
OFTEN_S = 0.05
# How often a thread is stopped again that went on, as a finaliser which was running then does.
AGAIN_S = 1.0


class _TooMuch(BaseException):
    """Raised by the watch within the template. Not an Exception, so that nothing on the way catches it."""


@dataclass
class _Rendering:
    thread: int
    clock: int
    began: float
    memory: int
    stopped: str = ""
    again: float = 0.0


class _Watch:
    """The renderings of this process, and the thread that stops those that do not end; it is made when it is needed,
    and anew in a forked process."""

    def __init__(self) -> None:
        self.process, self.lock = os.getpid(), threading.Lock()
        self.renderings: list[_Rendering] = []
        self.something = threading.Event()
        threading.Thread(target=self._run, name="cadre-templates", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.something.wait()
            time.sleep(OFTEN_S)
            with self.lock:
                for rendering in self.renderings:
                    self._check(rendering)
                if not self.renderings:
                    self.something.clear()

    def _check(self, rendering: _Rendering) -> None:
        if time.clock_gettime(rendering.clock) - rendering.began > SECONDS:
            rendering.stopped = f"it does not end within {SECONDS:g} s"
        elif _resident() - rendering.memory > GROWTH:
            rendering.stopped = f"it takes more than {size_of(GROWTH)} of memory"
        if rendering.stopped and time.monotonic() > rendering.again:
            rendering.again = time.monotonic() + AGAIN_S
            _raise_in(rendering.thread, _TooMuch)


_watch: _Watch | None = None


@contextmanager
def _watched() -> Iterator[_Rendering]:
    global _watch
    if _watch is None or _watch.process != os.getpid():
        _watch = _Watch()
    watch, thread = _watch, threading.get_ident()
    clock = time.pthread_getcpuclockid(thread)
    rendering = _Rendering(thread, clock, time.clock_gettime(clock), _resident())
    with watch.lock:
        watch.renderings.append(rendering)
    watch.something.set()
    try:
        yield rendering
    finally:
        _forget(watch, rendering)


def _forget(watch: _Watch, rendering: _Rendering) -> None:
    """Take a rendering off the watch, though that may stop it at any line of this."""
    while True:
        try:
            with watch.lock:
                if rendering in watch.renderings:
                    watch.renderings.remove(rendering)
                if rendering.stopped:
                    _raise_in(rendering.thread, None)  # what has not arrived yet would interrupt what comes next
            return
        except _TooMuch:
            continue


def render(tokenizer: Any, messages: Any, **options: Any) -> str:
    """Return what the tokenizer's template writes. Raises EngineError where it does not end, or writes without measure,
    and whatever else the template raises."""
    text, stopped = "", ""
    try:
        with _watched() as rendering:
            try:
                text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
            finally:
                stopped = rendering.stopped
    except _TooMuch:
        stopped = stopped or "it does not end"
    if len(text) > MOST_CHARACTERS:
        stopped = f"it writes {len(text):,} characters"
    if stopped:
        raise EngineError(
            f"The chat template of {tokenizer.name_or_path or 'this model'} is not rendered: {stopped}; expected one "
            "that writes a prompt at once. Look for its loops and macros, or choose another model."
        )
    return text


def _resident() -> int:
    """Bytes of memory that the process has; 0 where Linux does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Let a thread raise this at its next line of Python; None takes back what has not been raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind) if kind else None)
