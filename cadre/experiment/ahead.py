"""Sampling that runs ahead of learning by at most `train.max_staleness` updates.

The rule: step n is sampled with the weights that n - max_staleness updates made (with the first ones where that is
below 0), and the steps are learned from in their order. So what a step is sampled from follows from the settings and
never from the clock, and equal seeds give equal runs. What that gives up: where sampling is the slower side, fresher
weights that are there are not used. A step waits for its slowest episode, which nothing drops, while the next steps are
sampled as far as the rule allows.

With `max_staleness: 0` a step is sampled when the update before it is done, and learned from at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cadre.experiment.in_flight import StepSample
from cadre.rollout.dynamic_sampling import Sampled
from cadre.team import Team, Weights


@dataclass(frozen=True)
class Span:
    """How far sampling may run: `most` updates ahead, and to the step `end`, which it does not begin."""

    most: int
    end: int

    def capacity(self, version: int, begun: int) -> int:
        """The steps that may be begun after `version` updates when `begun` were: most + version + 1 - begun.

        That is (most + version + 1) * batch - (samples taken) in whole steps, so that no group is cut. After a resume
        `begun` counts what the checkpoint holds.
        """
        return max(0, min(self.most + version + 1, self.end) - begun)


@dataclass(frozen=True)
class Begun:
    """A step that is being sampled, or was: from the weights that so many updates had made."""

    step: int
    version: int
    task: asyncio.Task[StepSample]

    @property
    def sampled(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


class SamplingAhead:
    """The steps that are sampled, being sampled, or begun next; owned by the loop, lives as long as that.

    One step is sampled at a time. Where learners change the very weights that are sampled from, learning waits until
    no step is being sampled; where the team is `apart`, both go on at once and the samplers take new weights between
    two steps.
    """

    def __init__(
        self, sample: Callable[[int], Awaitable[Sampled]], team: Team, span: Span, ready: Sequence[StepSample] = ()
    ) -> None:
        self._sample, self._team, self._span = sample, team, span
        self._ready = deque(ready)
        self._begun: deque[Begun] = deque()
        self._weights: Sequence[Weights] = ()
        self._loaded: Sequence[Weights] = ()

    @property
    def versions(self) -> dict[str, int]:
        """By policy, the updates that it has had."""
        return {weights.policy: weights.version for weights in self._weights}

    def sampling(self) -> list[int]:
        """The steps that are being sampled, or wait for it."""
        return [begun.step for begun in self._begun if not begun.task.done()]

    def ready(self) -> tuple[StepSample, ...]:
        """The steps that are sampled and not learned from, in order: what a checkpoint keeps."""
        return (*self._ready, *(begun.task.result() for begun in self._begun if begun.sampled))

    async def take(self, version: int) -> StepSample:
        """What was sampled for the update that comes after `version`. Begins as many steps as the rule allows."""
        first = version + len(self._ready) + len(self._begun)
        for step in range(first, first + self._span.capacity(version, first)):
            before = self._begun[-1].task if self._begun else None
            self._begun.append(Begun(step, version, asyncio.create_task(self._draw(step, self._weights, before))))
        if not self._team.apart:
            await self._all_sampled()
        if not self._ready:
            self._ready.append(await asyncio.shield(self._begun[0].task))
            self._begun.popleft()
        return self._ready.popleft()

    async def hand_over(self) -> None:
        """Samplers take the weights that the learners have now, once no step is being sampled from others."""
        self._weights = await self._team.published()
        if all(begun.task.done() for begun in self._begun):
            await self._load(self._weights)

    async def settle(self) -> None:
        """Wait until no step is being sampled, and give the samplers the newest weights."""
        await self._all_sampled()
        await self._load(self._weights)

    async def close(self, version: int) -> bool:
        """End what is being sampled; whether nothing is lost that could not be sampled again.

        A step that is sampled from the weights of now can be, later on. One that is not is waited for.
        """
        for begun in self._begun:
            if begun.version == version:
                begun.task.cancel()
        await asyncio.gather(*(begun.task for begun in self._begun), return_exceptions=True)
        return all(begun.sampled for begun in self._begun if begun.version < version)

    async def _draw(self, step: int, weights: Sequence[Weights], before: asyncio.Task[StepSample] | None) -> StepSample:
        if before is not None:
            await asyncio.shield(before)
        await self._load(weights)
        began = time.monotonic()
        return StepSample(step, await self._sample(step), time.monotonic() - began)

    async def _load(self, weights: Sequence[Weights]) -> None:
        if weights is not self._loaded:
            await self._team.load(weights)
            self._loaded = weights

    async def _all_sampled(self) -> None:
        for begun in self._begun:
            await asyncio.shield(begun.task)
