"""Which thread of this process computes with PyTorch, and with how many threads.

On a CPU one thread computes for all engines, with as many threads as the one that opened the latest engine (all cores,
OMP_NUM_THREADS or torch.set_num_threads); the event loop and threads of tools compute with one. An engine on a GPU has
a thread of its own.

Each thread that computes parallel products opens a team of OpenMP threads. Once all teams have more threads than there
are cores, libgomp makes them sleep between any two products: on two cores sampling took 1.5 times as long.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import torch

from cadre.concurrency import count_threads
from cadre.errors import EngineError

P = ParamSpec("P")
T = TypeVar("T")

# The CPU's thread, while somebody has it open. An executor that nobody holds ends its thread.
_shared: WeakValueDictionary[str, ThreadPoolExecutor] = WeakValueDictionary()
_opening = threading.Lock()


class ComputeThread:
    """The thread that computes for one owner on `device`, after what others gave it before. Closed with its owner."""

    def __init__(self, device: torch.device) -> None:
        number = count_threads()
        with _opening:
            pool = _shared.get(device.type)
            is_new = pool is None
            if pool is None:
                pool = ThreadPoolExecutor(1, "torch")
            if device.type == "cpu":
                _shared[device.type] = pool
        self._pool: ThreadPoolExecutor | None = pool
        self._futures: set[Future[Any]] = set()
        # One may be the number of a new thread, which begins with what another one has set last, and nobody's choice.
        if is_new or number > 1:
            self.work(torch.set_num_threads, number)

    def check_open(self) -> ThreadPoolExecutor:
        """Return the executor. Raises EngineError once closed."""
        if self._pool is None:
            raise EngineError("The engine was closed, and is asked for more; expected an open one. Load it again.")
        return self._pool

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return the future of a call of the function in the thread. Raises EngineError once closed."""
        future = self.check_open().submit(function, *args, **kwargs)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the thread, wait for it, and return or raise what it does."""
        return self.submit(function, *args, **kwargs).result()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the same without blocking the event loop."""
        return await asyncio.wrap_future(self.submit(function, *args, **kwargs))

    def close(self) -> None:
        """Cancel this owner's calls that have not begun, and wait for the one that has."""
        self._pool = None
        wait([call for call in list(self._futures) if not call.cancel()])


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Make PyTorch compute on `count` threads for this thread."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
