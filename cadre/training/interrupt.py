"""Ctrl-C, SIGTERM and SIGHUP as a request that the training loop grants where it can stop without harm."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from cadre.rollout.deadlines import allow_calls, interrupt_call

T = TypeVar("T")
# Terminals and impatient users send the same signal twice; a second one within these seconds means no more.
REPEAT_SECONDS = 1.0
STOP_NOTE = b"Stopping: what was begun is saved first. Ctrl-C again, after a second, ends at once and loses it.\n"


class Interrupt:
    """A request to end a training. Lives as long as the training.

    Once requested, it cancels work that is `stoppable`, in the middle of an environment that blocks too if it
    `breaks_calls`, and lets everything else finish. A Ctrl-C more than a second later is `forced`: it raises
    KeyboardInterrupt, and nothing more is saved.
    """

    def __init__(self, breaks_calls: bool = True) -> None:
        self.requested, self.forced, self._breaks_calls = False, False, breaks_calls
        self._requested_at = 0.0
        self._work: asyncio.Future[Any] | None = None

    def __call__(self, number: int | None = None, frame: FrameType | None = None) -> None:
        """Request the end. A signal handler; may be called from another thread, where a second call forces."""
        if self.requested:
            is_second = number is None or (
                number == signal.SIGINT and time.monotonic() - self._requested_at > REPEAT_SECONDS
            )
            if is_second:
                self.forced = True
                raise KeyboardInterrupt
            return
        self.requested, self._requested_at = True, time.monotonic()
        if number is not None:
            _announce_stop(number)
        if self._work is not None:
            # A signal handler runs between two bytecodes, so it must not touch the loop directly.
            self._work.get_loop().call_soon_threadsafe(self._work.cancel)
            if self._breaks_calls:
                interrupt_call(frame)  # raised here, it is raised in the line of an environment that blocks

    async def stoppable(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what the work returns, or None if it was cancelled before that."""
        if self.requested:
            work.close()
            return None
        self._work = asyncio.ensure_future(work)
        try:
            result: T = await self._work
            return result
        except asyncio.CancelledError:
            if not self.requested:
                raise
            return None
        finally:
            self._work = None
            allow_calls()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM request the end, and SIGHUP unless it is ignored, as under nohup. Only the main thread
        receives signals; elsewhere this changes nothing. Raises KeyboardInterrupt if the command's own handler has had
        a signal that did not end it: the import of torch may have ignored the exception."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        if any(getattr(signal.getsignal(number), "number", 0) for number in numbers):
            raise KeyboardInterrupt
        handlers = {number: signal.signal(number, self) for number in numbers}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


class LossyStream:
    """A stream that drops what is printed to it once its reader is gone: the signal may have ended the terminal too, or
    the `tee` behind a pipe, and the save must not fail for that."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            _redirect_to_null(self._stream.fileno())


def _redirect_to_null(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _announce_stop(number: int) -> None:
    """Write to stderr that the end was requested. A handler may not use a stream that is just being written to."""
    sys.stdout, sys.stderr = LossyStream(sys.stdout), LossyStream(sys.stderr)
    for descriptor in (1, 2):
        try:
            if descriptor == 2 or number == signal.SIGHUP:
                os.write(descriptor, STOP_NOTE if descriptor == 2 else b"\n")
        except OSError:
            _redirect_to_null(descriptor)
