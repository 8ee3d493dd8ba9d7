"""A sampler that is several processes with the same weights, to which the requests of a round are dealt by rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cadre.cluster import files
from cadre.cluster.actors import Outcome
from cadre.cluster.connection import deaths, ray_module
from cadre.cluster.member import Member, as_raised
from cadre.errors import EngineError, PromptError
from cadre.rollout import batching
from cadre.team import Weights
from cadre.types import Request, Sample

T = TypeVar("T")
# Tells an actor to load some weights; what it returns is waited for.
Loading = Callable[[Any], Any]


@dataclass(frozen=True)
class StoredWeights(Weights):
    """Weights in Ray's object store: `content` is the reference to what `cadre.cluster.files.content_of` makes."""

    content: Any = None


@dataclass(frozen=True, eq=False)
class Waiting:
    """A request, where its siblings are waited for, and what it has in common with those of its step."""

    request: Request
    future: asyncio.Future[list[Sample]]
    scope: object


def deal(batch: Sequence[T], count: int) -> list[Sequence[T]]:
    """The parts of a round for so many samplers: every `count`-th, from the first, the second ... on."""
    return [part for start in range(count) if (part := batch[start::count])]


class Drawer:
    """A sampler of a pool: a process, and what it has drawn in the present scope, which is drawn again by the one that
    replaces it. Keys and values of earlier turns are then what they were, and so are the next turns to the last bit."""

    def __init__(self, member: Member, reload: Callable[[Any], None]) -> None:
        self.member = member
        self._reload = reload
        self._scope, self._drawn = 0, list[list[Request]]()
        member.recover = self._recover

    async def draw(self, scope: int, part: Sequence[Waiting]) -> None:
        """Answer a part of a round; whatever happens, every request is answered."""
        if scope != self._scope:
            self._scope, self._drawn = scope, []
        met = 0
        try:
            while any(not waiting.future.done() for waiting in part):
                handle = self.member.handle
                try:
                    await self._stream(handle, part)
                except deaths() as error:
                    met = await asyncio.to_thread(self.member.replace, handle, error, met)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where samples are waited for
            _fail(part, as_raised(error))
        self._drawn.append([waiting.request for waiting in part])

    async def _stream(self, handle: Any, part: Sequence[Waiting]) -> None:
        """Hand over what the sampler draws, as it comes."""
        stream = handle.sample.remote(self._scope, [waiting.request for waiting in part])
        try:
            async for reference in stream:
                number, outcome = await reference
                _answer(part[number], outcome)
        except asyncio.CancelledError:
            ray_module().cancel(stream)
            raise

    def _recover(self, handle: Any) -> None:
        self._reload(handle)
        for requests in self._drawn:
            for reference in handle.sample.remote(self._scope, requests):
                ray_module().get(reference)


class SamplerPool:
    """A `Sampler` of the policies of one base model. Owned by the team, which closes it.

    What a sampler draws in one batch follows from the round and the number of samplers. One that dies is replaced, gets
    the weights that it had, and draws what it had drawn of the step and its whole batch again, with the same noise: the
    same tokens.
    """

    def __init__(self, members: Sequence[Member], policies: Sequence[str], memory: int | None) -> None:
        self.members, self.policies, self.memory = members, tuple(policies), memory
        self.asked = 0
        self._loads: dict[str, Loading] = {}
        self._drawers = [Drawer(member, self._reload) for member in members]
        self._scope: object = None
        self._scopes = 0

    async def sample(self, request: Request) -> list[Sample]:
        """`request.count` siblings, drawn in one batch with whatever else this round deals to the same sampler."""
        if request.policy not in self.policies:
            raise EngineError(
                f"Role {request.role!r} asks for policy {request.policy!r}, which this pool does not hold; it holds "
                f"{', '.join(self.policies)}. Fix team.roles."
            )
        waiting = Waiting(request, asyncio.get_running_loop().create_future(), batching.current_barrier())
        with batching.wait_for_batch(self._draw_batch, waiting):
            return await waiting.future

    async def load(self, weights: Weights) -> None:
        """Every sampler of the pool takes the weights, after the batches that they have."""
        self._loads[weights.policy] = load = self._loading(weights)
        await asyncio.gather(*(asyncio.to_thread(member.ask, load) for member in self.members))

    def close(self) -> None:
        """End the samplers."""
        for member in self.members:
            member.close()

    async def _draw_batch(self, batch: Sequence[Waiting]) -> None:
        if batch[0].scope is not self._scope:
            self._scope, self._scopes = batch[0].scope, self._scopes + 1
        self.asked += len(batch)
        parts = deal(batch, len(self.members))
        try:
            drawing = (drawer.draw(self._scopes, part) for drawer, part in zip(self._drawers, parts, strict=False))
            await asyncio.gather(*drawing)
        finally:
            self.asked -= len(batch)

    def _loading(self, weights: Weights) -> Loading:
        policy, version = weights.policy, weights.version
        if isinstance(weights, StoredWeights):
            content = weights.content
        else:
            content = ray_module().put(files.content_of(weights))
        return lambda handle: handle.load.remote(policy, version, content)

    def _reload(self, handle: Any) -> None:
        ray_module().get([load(handle) for load in self._loads.values()])


def _answer(waiting: Waiting, outcome: Outcome) -> None:
    if waiting.future.done():
        return
    if isinstance(outcome, PromptError):
        waiting.future.set_exception(outcome)
    else:
        waiting.future.set_result(outcome)


def _fail(part: Sequence[Waiting], error: BaseException) -> None:
    for waiting in part:
        if not waiting.future.done():
            waiting.future.set_exception(error)
