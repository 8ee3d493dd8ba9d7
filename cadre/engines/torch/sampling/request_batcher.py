"""The asyncio side of sampling: what all running episodes and roles ask for in a round is one batch in a worker thread.

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
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch

from cadre.engines.model_text import Completion
from cadre.engines.torch.sampling.generation import GenerationRequest, Listener
from cadre.errors import EngineError
from cadre.rollout import rounds

P = ParamSpec("P")
T = TypeVar("T")
# Draws a batch, which belongs to a scope (see `cadre.rollout.rounds.scope`), and tells the listener.
Decode = Callable[[Sequence[GenerationRequest], Listener, object], None]


@dataclass(frozen=True, eq=False)
class Waiting:
    """A request, where its completions are waited for, and the scope that it belongs to."""

    request: GenerationRequest
    future: asyncio.Future[list[Completion]]
    scope: object


class Replies:
    """The `Listener` of one batch: hands over to the event loop what the worker has finished."""

    def __init__(self, batch: Sequence[Waiting]) -> None:
        self._loop = asyncio.get_running_loop()
        self._futures = {waiting.request: waiting.future for waiting in batch}
        self._gone = threading.Event()
        self._waited_for = len(self._futures)
        for future in self._futures.values():
            future.add_done_callback(self._settled)

    def finished(self, request: GenerationRequest, completions: list[Completion]) -> None:
        """Resolve the request's future. Called by the worker."""
        self._loop.call_soon_threadsafe(_resolve, self._futures[request], completions)

    def gone(self) -> bool:
        """Whether nobody waits any more: all have their completions or were cancelled."""
        return self._gone.is_set()

    def end(self) -> None:
        """Nobody is to be waited for from here on."""
        self._gone.set()

    def fail(self, error: BaseException) -> None:
        """Raise the error where completions are still waited for."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)

    def _settled(self, _: object) -> None:
        self._waited_for -= 1
        if not self._waited_for:
            self.end()


class RequestBatcher:
    """Hands what is asked for in a round to `decode`, one batch at a time. Owned by one engine, closed with it."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        # Said aloud, as a new thread may else take over what decoding allows itself in another one just then.
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, "torch", torch.set_num_threads, (threads,))
        self._closed = False

    async def submit(self, request: GenerationRequest) -> list[Completion]:
        """The siblings' completions, in order. Raises what the decode loop raised, and EngineError once closed."""
        if self._closed:
            raise EngineError(
                "The engine was closed, and is asked for completions; expected an open one. Load it again."
            )
        waiting = Waiting(request, asyncio.get_running_loop().create_future(), rounds.scope())
        with rounds.turn(self._decode_batch, waiting):
            return await waiting.future

    def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the worker, after the batch that it has, and wait for what it returns or raises."""
        return self._pool.submit(function, *args, **kwargs).result()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same without keeping the event loop waiting."""
        return await asyncio.wrap_future(self._pool.submit(function, *args, **kwargs))

    def close(self) -> None:
        """Wait for the batch in the worker, then end the worker."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _decode_batch(self, batch: Sequence[Waiting]) -> None:
        """Decode one batch; returns once the worker is done with it, which is at once when nobody waits any more."""
        replies = Replies(batch)
        requests = [waiting.request for waiting in batch]
        scope = batch[0].scope
        worker = asyncio.get_running_loop().run_in_executor(self._pool, self._decode, requests, replies, scope)
        try:
            await asyncio.wait([worker])
        finally:
            # Cancelled: the worker must be gone before the loop that it reports to is closed.
            replies.end()
            await asyncio.wait([worker])
        error = worker.exception()
        if error is not None:
            replies.fail(error)


def _resolve(future: asyncio.Future[list[Completion]], completions: list[Completion]) -> None:
    if not future.done():
        future.set_result(completions)
