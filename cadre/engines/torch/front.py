"""The asyncio side of sampling: what all running episodes and roles ask for becomes one batch in a worker thread.

Meanwhile the event loop goes on, so programs in the sandbox run beside the model. A request resolves as soon as its
own siblings have stopped. Works with a new event loop each time, as several calls of `asyncio.run` make.

Learning runs in the same thread. Each thread that asks for parallel products has threads of its own for them, and once
there are more of these than cores, OpenMP puts them to sleep between any two products: on two cores a step took 1.35
times as long with a second one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch

from cadre.engines.torch.decode import Completion, Job
from cadre.types import Sampling

# A batch leaves once nothing new was asked for in this time; episodes that answer at once then share a batch.
QUIET_SECONDS = 0.002

P = ParamSpec("P")
T = TypeVar("T")
Decode = Callable[[Sequence[Job], Callable[[], bool]], None]


class Front:
    """Gathers jobs and hands them to `decode`, one batch at a time. Owned by one engine, closed with it."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        # Said aloud, as a new thread may else take over what decoding allows itself in another one just then.
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, "torch", torch.set_num_threads, (threads,))
        self._waiting: dict[Job, asyncio.Future[list[Completion]]] = {}
        self._dispatcher: asyncio.Task[None] | None = None

    async def submit(
        self, policy: str, prompt_ids: tuple[int, ...], count: int, limit: int, sampling: Sampling, key: int
    ) -> list[Completion]:
        """The siblings' completions, in order. Raises what the decode loop raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Completion]] = loop.create_future()

        def done(completions: list[Completion]) -> None:
            loop.call_soon_threadsafe(_resolve, future, completions)

        job = Job(policy, prompt_ids, count, limit, sampling, key, done)
        self._waiting[job] = future
        if self._dispatcher is None or self._dispatcher.done():
            self._dispatcher = loop.create_task(self._dispatch())
        try:
            return await future
        finally:
            self._waiting.pop(job, None)

    def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the worker, after the batch that it has, and wait for what it returns or raises."""
        return self._pool.submit(function, *args, **kwargs).result()

    def close(self) -> None:
        """Wait for the batch in the worker, then end the worker."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _dispatch(self) -> None:
        while self._waiting:
            await self._quiet()
            batch, self._waiting = self._waiting, {}
            if batch:
                await self._run(batch)

    async def _quiet(self) -> None:
        """Return once a while has passed without a new request."""
        seen = 0
        while seen != len(self._waiting):
            seen = len(self._waiting)
            await asyncio.sleep(QUIET_SECONDS)

    async def _run(self, batch: dict[Job, asyncio.Future[list[Completion]]]) -> None:
        stop = threading.Event()
        loop = asyncio.get_running_loop()
        worker = loop.run_in_executor(self._pool, self._decode, list(batch), stop.is_set)
        try:
            await asyncio.wait([worker])
        finally:
            # Cancelled: the worker must be gone before the loop that it reports to is closed.
            stop.set()
            await asyncio.wait([worker])
        error = worker.exception()
        if error is not None:
            for future in batch.values():
                if not future.done():
                    future.set_exception(error)


def _resolve(future: asyncio.Future[list[Completion]], completions: list[Completion]) -> None:
    if not future.done():
        future.set_result(completions)
