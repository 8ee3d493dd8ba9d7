"""Ctrl-C and SIGTERM as a wish that the loop grants where it can stop without harm."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from cadre.rollout import deadlines

T = TypeVar("T")


class Interrupt:
    """Asked once, it ends what is `stoppable` at once, or soon where an environment blocks, and lets everything else
    finish. Asked again, it raises KeyboardInterrupt. One object lives as long as a training."""

    def __init__(self) -> None:
        self.asked = False
        self._work: asyncio.Future[Any] | None = None

    def __call__(self, *_: object) -> None:
        """Ask; a signal handler, and safe to call from another thread."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        deadlines.hurry()
        if self._work is not None:
            self._work.get_loop().call_soon_threadsafe(self._work.cancel)

    async def stoppable(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What the work returns, or None where it was ended before that."""
        if self.asked:
            work.close()
            return None
        self._work = asyncio.ensure_future(work)
        try:
            result: T = await self._work
            return result
        except asyncio.CancelledError:
            if not self.asked:
                raise
            return None
        finally:
            self._work = None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask. Only the main thread hears signals; elsewhere this changes nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
