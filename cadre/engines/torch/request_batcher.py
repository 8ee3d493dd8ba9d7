"""Requests for completions, and the asyncio side of sampling: a round's requests become one batch in a worker thread.

Meanwhile the event loop continues, so programs in the sandbox run beside the model. A request resolves as soon as its
own completions have ended. Each batch may run in another event loop.

Learning runs in the same thread. Each thread that computes parallel products has its own threads for them, and once
there are more of these than cores, OpenMP puts them to sleep between any two products: on two cores a step took 1.35
times as long with a second one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

import torch

from cadre.engines.model_text import Completion
from cadre.errors import EngineError
from cadre.rollout import batching
from cadre.types import Media, Sampling

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """A request for `count` completions of one prompt, of at most `limit` tokens each; `key` seeds their noise.

    `ends` returns True if the text of a completion's ids so far ends it; None if no text does. `images` are those that
    the placeholders of the prompt stand for.
    """

    policy: str
    prompt_ids: tuple[int, ...]
    count: int
    limit: int
    sampling: Sampling
    key: int
    ends: Callable[[Sequence[int]], bool] | None = None
    images: tuple[Media, ...] = ()


class Listener(Protocol):
    """Receives the completions of a batch. Called by the thread that decodes."""

    def finished(self, request: GenerationRequest, completions: list[Completion]) -> None:
        """Receive all completions of a request; called once a request."""
        ...

    def gone(self) -> bool:
        """Return True if nobody waits for completions any more."""
        ...


# Decodes a batch of a scope (see `cadre.rollout.batching.current_barrier`) and calls the listener.
Decode = Callable[[Sequence[GenerationRequest], Listener, object], None]


@dataclass(frozen=True, eq=False)
class PendingRequest:
    """A request with the future of its completions and the scope that it belongs to."""

    request: GenerationRequest
    future: asyncio.Future[list[Completion]]
    scope: object


class FutureListener:
    """The `Listener` of one batch: resolves the requests' futures in their event loop."""

    def __init__(self, batch: Sequence[PendingRequest]) -> None:
        self._loop = asyncio.get_running_loop()
        self._futures = {pending.request: pending.future for pending in batch}
        self._gone = threading.Event()
        self._unresolved = len(self._futures)
        for future in self._futures.values():
            future.add_done_callback(self._count_resolved)

    def finished(self, request: GenerationRequest, completions: list[Completion]) -> None:
        """Resolve the request's future. Called by the worker."""
        self._loop.call_soon_threadsafe(_resolve, self._futures[request], completions)

    def gone(self) -> bool:
        """Return True if all futures are resolved or cancelled, or `end` was called."""
        return self._gone.is_set()

    def end(self) -> None:
        """Make the worker stop early."""
        self._gone.set()

    def fail(self, error: BaseException) -> None:
        """Raise the error in whoever still waits for completions."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)

    def _count_resolved(self, _: object) -> None:
        self._unresolved -= 1
        if not self._unresolved:
            self.end()


class RequestBatcher:
    """Passes each round's requests to `decode`, one batch at a time. Owned by one engine, closed with it."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        # Set explicitly, as a new thread may otherwise inherit what decoding sets in another one at that moment.
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, "torch", torch.set_num_threads, (threads,))
        self._closed = False

    async def submit(self, request: GenerationRequest) -> list[Completion]:
        """Return the completions, in order. Raises what the decode loop raised, and EngineError once closed."""
        if self._closed:
            raise EngineError(
                "The engine was closed, and is asked for completions; expected an open one. Load it again."
            )
        pending = PendingRequest(request, asyncio.get_running_loop().create_future(), batching.current_barrier())
        with batching.wait_for_batch(self._decode_batch, pending):
            return await pending.future

    def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the worker, after the batch that it has, and return or raise what it does."""
        return self._pool.submit(function, *args, **kwargs).result()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the same without blocking the event loop."""
        return await asyncio.wrap_future(self._pool.submit(function, *args, **kwargs))

    def close(self) -> None:
        """Wait for the batch in the worker, then end the worker."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _decode_batch(self, batch: Sequence[PendingRequest]) -> None:
        """Decode one batch; return once the worker is done with it, which is at once if nobody waits any more."""
        listener = FutureListener(batch)
        requests = [pending.request for pending in batch]
        scope = batch[0].scope
        worker = asyncio.get_running_loop().run_in_executor(self._pool, self._decode, requests, listener, scope)
        try:
            await asyncio.wait([worker])
        finally:
            # Cancelled: the worker must have stopped before the loop that it reports to is closed.
            listener.end()
            await asyncio.wait([worker])
        error = worker.exception()
        if error is not None:
            listener.fail(error)


def _resolve(future: asyncio.Future[list[Completion]], completions: list[Completion]) -> None:
    if not future.done():
        future.set_result(completions)
