"""Batches by rule: sampling goes in rounds, and what shares a batch follows from the work alone, never from the clock.

Everybody who may still ask for completions has a place. A round begins when no place is busy: each waits for a
completion or has ended, and the batches of the round before are done. Then everything that is asked for leaves at
once, ordered by where in the trees it is asked. A completion may come back while the rest of its batch goes on, so that
programs run meanwhile; what is asked then waits for the next round.

Rounding depends on what shares a batch, so without this equal seeds would draw different tokens. A sampler that does
not take turns, a remote one, say, keeps its caller's place busy until it has answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Position = tuple[int, ...]
# Runs one batch of requests, and returns once it is done. It answers every request, whatever happens.
RunBatch = Callable[[Sequence[Any]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, eq=False)
class Turn:
    """A request that waits for the next round: what runs its batch, and where it is asked for."""

    run: RunBatch
    position: Position
    request: Any


class Rounds:
    """Counts the busy places and begins a round when there are none. Lives as long as the outermost `together`.

    Busy are the places whose owner acts or has been given a batch, and the batches under way.
    """

    def __init__(self) -> None:
        self._busy = 1
        self._waiting: list[Turn] = []
        self._batches: set[asyncio.Task[None]] = set()

    def enter(self, places: int) -> None:
        """So many more places are busy."""
        self._busy += places

    def leave(self) -> None:
        """One place is busy no more."""
        self._busy -= 1
        if self._busy == 0:
            self._begin()

    @contextmanager
    def wait(self, turn: Turn) -> Iterator[None]:
        """Within it the caller's place waits for its turn and then for what it asked for."""
        self._waiting.append(turn)
        self.leave()
        try:
            yield
        finally:
            if turn in self._waiting:  # cancelled before the round began
                self._waiting.remove(turn)
                self.enter(1)

    def _begin(self) -> None:
        """Hand everything that waits to its samplers, a batch each. Whoever waited is busy from here on."""
        batches: dict[RunBatch, list[Any]] = {}
        for turn in sorted(self._waiting, key=lambda turn: turn.position):
            batches.setdefault(turn.run, []).append(turn.request)
        self.enter(len(self._waiting) + len(batches))
        self._waiting = []
        for run, requests in batches.items():
            batch = asyncio.get_running_loop().create_task(run(requests))
            self._batches.add(batch)
            batch.add_done_callback(self._landed)

    def _landed(self, batch: asyncio.Task[None]) -> None:
        self._batches.discard(batch)
        self.leave()


@dataclass(frozen=True)
class Place:
    """Somebody who may ask: the rounds that it takes part in, and its number below each of its ancestors."""

    rounds: Rounds
    position: Position


_place: ContextVar[Place | None] = ContextVar("place", default=None)


async def together(*works: Awaitable[T]) -> list[T]:
    """Run several things at once and return their results in order.

    Each has a place of its own, and the caller none meanwhile. When one fails the others are cancelled, and its error
    is raised once they have gone.
    """
    if not works:
        return []
    place = _place.get() or Place(Rounds(), ())
    hand_back = _passed_on(place.rounds, len(works))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_finish(work), context=_below(place, index)) for index, work in enumerate(works)]
            for task in tasks:
                task.add_done_callback(hand_back)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


@contextmanager
def turn(run: RunBatch, request: Any) -> Iterator[None]:
    """Within it the caller waits for `run` to answer the request, which it is given in the next round.

    Whoever asks outside `together` is in rounds of its own: its request leaves at once and alone.
    """
    place = _place.get() or Place(Rounds(), ())
    with place.rounds.wait(Turn(run, place.position, request)):
        yield


class Continued:
    """Several calls of `together`, one after the other, that belong to one scope, as if all were within one."""

    def __init__(self) -> None:
        self._place = Place(Rounds(), ())

    async def together(self, *works: Awaitable[T]) -> list[T]:
        """`together`, within the scope. Once one has failed or was cancelled the scope is of no further use."""
        token = _place.set(self._place)
        try:
            return await together(*works)
        finally:
            _place.reset(token)


def scope() -> object:
    """What all have in common that were begun within one outermost `together`, and nobody else."""
    place = _place.get()
    return object() if place is None else place.rounds


async def _finish(work: Awaitable[T]) -> T:
    return await work


def _below(place: Place, index: int) -> Any:
    """The caller's context with the place of its child of that number."""
    context = copy_context()
    context.run(_place.set, Place(place.rounds, (*place.position, index)))
    return context


def _passed_on(rounds: Rounds, children: int) -> Callable[[asyncio.Task[Any]], None]:
    """Turn the caller's place into its children's; returns what to call when one has ended.

    The last to end gives its place back to the caller. So does the first to fail, as the caller then waits for the
    others to be gone before it acts, and no round may begin in between.
    """
    rounds.enter(children - 1)
    running, handed_back = children, False

    def ended(task: asyncio.Task[Any]) -> None:
        nonlocal running, handed_back
        running -= 1
        failed = task.cancelled() or task.exception() is not None
        if handed_back or (running and not failed):
            rounds.leave()
        else:
            handed_back = True

    return ended
