"""An event loop in a thread of its own, for engines that belong to one while their callers come and go with theirs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of any thread in one event loop. `close` ends it; may be called more than once."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the work; its future may be waited for in any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work and return what it does, keeping this thread waiting."""
        return self.submit(work).result()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The same without keeping the caller's event loop waiting."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()
