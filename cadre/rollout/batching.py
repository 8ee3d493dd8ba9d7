"""Generation batches that do not depend on timing.

Floating-point rounding depends on which requests share a batch, so equal seeds give equal tokens only if batches follow
from the work alone. A batch therefore starts once every task that may still ask for completions is waiting for one or
has ended, and the batches before are done; requests are ordered by their position in the trees. A completion may return
while the rest of its batch is still running. What the environments then ask for waits for the next batch.

Samplers that do not use `wait_for_batch`, such as remote ones, count as busy until they have answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Position = tuple[int, ...]
# Runs one batch of requests, and returns once it is done. It answers every request, whatever happens.
RunBatch = Callable[[Sequence[Any]], Coroutine[Any, Any, None]]


class BatchBarrier:
    """Starts the pending batches once nothing is busy. Lives as long as the outermost `gather`. Busy are tasks that act
    or wait for the answer of a started batch, and the started batches themselves."""

    def __init__(self) -> None:
        self._busy = 1
        # By the object that stands for the wait: the position it comes from, the sampler's function, the request.
        self._pending: dict[object, tuple[Position, RunBatch, Any]] = {}
        self._batches: set[asyncio.Task[None]] = set()

    def enter(self, count: int) -> None:
        """Count `count` more tasks as busy."""
        self._busy += count

    def leave(self) -> None:
        """Count one task less as busy, and start the pending batches if it was the last."""
        self._busy -= 1
        if self._busy == 0:
            self._start_batches()

    @contextmanager
    def wait(self, position: Position, run: RunBatch, request: Any) -> Iterator[None]:
        """Count the caller as waiting, first for the batch to start and then for its answer."""
        wait = object()
        self._pending[wait] = position, run, request
        self.leave()
        try:
            yield
        finally:
            if self._pending.pop(wait, None) is not None:  # cancelled before the batch started
                self.enter(1)

    def _start_batches(self) -> None:
        """Start a batch for each sampler. From here on those who wait are busy."""
        batches: dict[RunBatch, list[Any]] = {}
        for _, run, request in sorted(self._pending.values(), key=lambda pending: pending[0]):
            batches.setdefault(run, []).append(request)
        self.enter(len(self._pending) + len(batches))
        self._pending = {}
        for run, requests in batches.items():
            batch = asyncio.get_running_loop().create_task(run(requests))
            self._batches.add(batch)
            batch.add_done_callback(self._end_batch)

    def _end_batch(self, batch: asyncio.Task[None]) -> None:
        self._batches.discard(batch)
        self.leave()


@dataclass(frozen=True)
class Participant:
    """A task that may ask for completions: its barrier, and its index below each of its ancestors."""

    barrier: BatchBarrier
    position: Position

    def child_context(self, index: int) -> Context:
        """Return the caller's context for its child of that index."""
        context = copy_context()
        context.run(_participant.set, Participant(self.barrier, (*self.position, index)))
        return context


_participant: ContextVar[Participant | None] = ContextVar("participant", default=None)


async def gather(*works: Coroutine[Any, Any, T]) -> list[T]:
    """Run several coroutines at once and return their results in order. Each counts as a task of its own, and the
    caller as none meanwhile. If one fails the others are cancelled, and its error is raised once they have ended."""
    if not works:
        return []
    participant = _participant.get() or Participant(BatchBarrier(), ())
    barrier, running, handed_back = participant.barrier, len(works), False
    barrier.enter(len(works) - 1)  # the caller's own count goes to its children

    def count_end(task: asyncio.Task[Any]) -> None:
        # The last child to end hands its count back to the caller. So does the first to fail: the caller then waits for
        # the others to be gone before it acts, and no batch may start in between.
        nonlocal running, handed_back
        running -= 1
        failed = task.cancelled() or task.exception() is not None
        if handed_back or (running and not failed):
            barrier.leave()
        else:
            handed_back = True

    first_error: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(work, context=participant.child_context(index)) for index, work in enumerate(works)
            ]
            for task in tasks:
                task.add_done_callback(count_end)
    except BaseExceptionGroup as failed:
        first_error = failed.exceptions[0]
    if first_error is not None:
        # Outside of the clause, as a notebook writes the whole traceback of an error whose context is a group.
        raise first_error
    return [task.result() for task in tasks]


@contextmanager
def wait_for_batch(run: RunBatch, request: Any) -> Iterator[None]:
    """Wait within this context for `run` to answer the request, which it gets with the next batch. Outside `gather` the
    caller has a barrier of its own: the request leaves at once and alone."""
    participant = _participant.get() or Participant(BatchBarrier(), ())
    with participant.barrier.wait(participant.position, run, request):
        yield


class SharedBarrier:
    """Several calls of `gather`, one after the other, that share a barrier as if all were within one."""

    def __init__(self) -> None:
        self._participant = Participant(BatchBarrier(), ())

    async def gather(self, *works: Coroutine[Any, Any, T]) -> list[T]:
        """Like `gather`, with this barrier. Once one has failed or was cancelled the barrier is of no further use."""
        token = _participant.set(self._participant)
        try:
            return await gather(*works)
        finally:
            _participant.reset(token)


def current_barrier() -> object:
    """Return an object that all share who were started within one outermost `gather`, and nobody else."""
    participant = _participant.get()
    return object() if participant is None else participant.barrier
