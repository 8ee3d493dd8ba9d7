"""Requests for completions, and the asyncio side of sampling: a round's requests become one batch in a worker thread.

Meanwhile the event loop continues, so programs in the sandbox run beside the model. A request resolves as soon as its
own completions have ended. Each batch may run in another event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cadre.engines.text.model import Completion
from cadre.engines.torch.compute import ComputeThread
from cadre.rollout import batching
from cadre.types import Media, Sampling


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


@dataclass(frozen=True, eq=False)
class PendingRequest:
    """A request with the future of its completions and the scope that it belongs to."""

    request: GenerationRequest
    future: asyncio.Future[list[Completion]]
    scope: object


class Listener:
    """Receives the completions of one batch from the thread that decodes, and resolves the requests' futures in their
    event loop."""

    def __init__(self, batch: Sequence[PendingRequest]) -> None:
        self._loop = asyncio.get_running_loop()
        self._futures = {pending.request: pending.future for pending in batch}
        self._ended = threading.Event()

    def finished(self, request: GenerationRequest, completions: list[Completion]) -> None:
        """Receive all completions of a request; called once a request."""
        self._loop.call_soon_threadsafe(self._resolve, self._futures[request], completions)

    @staticmethod
    def _resolve(future: asyncio.Future[list[Completion]], completions: list[Completion]) -> None:
        if not future.done():
            future.set_result(completions)

    def gone(self) -> bool:
        """Return True if nobody waits for completions any more, or `end` was called."""
        return self._ended.is_set() or all(future.done() for future in self._futures.values())

    def end(self) -> None:
        """Make the worker stop early."""
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """Raise the error in whoever still waits for completions."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)


# Decodes a batch of a scope (see `cadre.rollout.batching.current_barrier`) and calls the listener.
Decode = Callable[[Sequence[GenerationRequest], Listener, object], None]


class RequestBatcher:
    """Passes each round's requests to `decode`, one batch at a time, in the thread of the engine that owns both."""

    def __init__(self, decode: Decode, thread: ComputeThread) -> None:
        self._decode, self._thread = decode, thread

    async def submit(self, request: GenerationRequest) -> list[Completion]:
        """Return the completions, in order. Raises what the decode loop raised, and EngineError once closed."""
        self._thread.check_open()
        pending = PendingRequest(request, asyncio.get_running_loop().create_future(), batching.current_barrier())
        with batching.wait_for_batch(self._decode_batch, pending):
            return await pending.future

    async def _decode_batch(self, batch: Sequence[PendingRequest]) -> None:
        """Decode one batch; return once the worker is done with it, which is at once if nobody waits any more."""
        listener = Listener(batch)
        requests = [pending.request for pending in batch]
        worker = asyncio.wrap_future(self._thread.submit(self._decode, requests, listener, batch[0].scope))
        try:
            await asyncio.wait([worker])
        finally:
            # Cancelled: the worker must have stopped before the loop that it reports to is closed.
            listener.end()
            await asyncio.wait([worker])
        error = worker.exception()
        if error is not None:
            listener.fail(error)
