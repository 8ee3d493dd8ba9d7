"""A first-come first-served queue of slots that tasks of any event loop, in any thread, may wait for.

asyncio's own locks belong to one event loop; a trainer that calls `asyncio.run` several times has several.
"""

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field

from cadre_sandbox.worker import Worker

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Slot]"]


@dataclass
class Slot:
    """The right to use one core, and the warm parent that runs on it, if it has been started."""

    worker: Worker | None = None


@dataclass
class Slots:
    """The slots of a sandbox, the `idle` ones among them, and the tasks that wait for one."""

    all_slots: list[Slot]
    idle: deque[Slot] = field(default_factory=deque)
    waiters: deque[Waiter] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)

    async def acquire(self) -> Slot:
        """Wait in line for a slot."""
        with self.lock:
            if self.idle:
                return self.idle.pop()
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Slot] = loop.create_future()
            self.waiters.append((loop, future))
        try:
            return await future
        except asyncio.CancelledError:
            # Cancelled after `_deliver` had given it a slot: pass the slot on, or it would be lost.
            if future.done() and not future.cancelled():
                self.release(future.result())
            raise

    def release(self, slot: Slot) -> None:
        """Give the slot to the task that has waited longest."""
        with self.lock:
            while self.waiters:
                loop, future = self.waiters.popleft()
                if loop.is_closed():
                    continue
                # The waiter may belong to another thread's event loop, and a future may only be set from its own.
                loop.call_soon_threadsafe(self._deliver, future, slot)
                return
            self.idle.append(slot)

    def _deliver(self, future: "asyncio.Future[Slot]", slot: Slot) -> None:
        if future.cancelled():
            self.release(slot)
        else:
            future.set_result(slot)
