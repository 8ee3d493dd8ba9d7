"""Asynchronous training: sampling runs ahead of learning by at most `train.max_staleness` updates.

The rule: step n is sampled with the weights that n - max_staleness updates made (with the first weights where that is
negative), and the steps are learned from in order. So the weights that a step is sampled with follow from the settings
and never from the clock, and equal seeds give equal runs. The price: where sampling is the slower side, fresher weights
that exist are not used. A step waits for its slowest episode, while the next steps are sampled as far as the rule
allows.

With `max_staleness: 0` a step is sampled when the update before it is done, and learned from at once.

Steps that are sampled and not yet learned from are saved in a checkpoint as the trees themselves: the weights that drew
them are gone by then, and trees are small beside weights.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cadre.files import damaged_file_error
from cadre.rollout.episodes import SampledTrees
from cadre.runs import jsonl
from cadre.runs.kept_trees import IMAGES, load_images, save_images, tree_images
from cadre.team import Team, Weights

PENDING_STEPS = "in_flight.jsonl"


NOT_FINITE = "number that is not finite"


@dataclass(frozen=True)
class SampledStep:
    """All that was sampled for update number `step`, and how many seconds that took."""

    step: int
    sampled: SampledTrees
    seconds: float


def write_sampled_steps(folder: Path, steps: Sequence[SampledStep]) -> None:
    """One line a step in `folder/in_flight.jsonl`, and pictures beside it; no file where there is none."""
    if steps:
        lines = (json.dumps(_encode_numbers(asdict(step)), allow_nan=False) + "\n" for step in steps)
        (folder / PENDING_STEPS).write_text("".join(lines))
        save_images(folder, {image for step in steps for tree in step.sampled.trees for image in tree_images(tree)})


def read_sampled_steps(folder: Path) -> tuple[SampledStep, ...]:
    """What `write` wrote, number for number."""
    lines = jsonl.records(folder / PENDING_STEPS)
    if (folder / IMAGES).is_dir():
        lines = (load_images(line, folder) for line in lines)
    try:
        return tuple(_step_adapter().validate_python(_decode_numbers(line)) for line in lines)
    except ValidationError as error:
        raise damaged_file_error(folder / PENDING_STEPS, str(error).splitlines()[1].strip()) from None


def _encode_numbers(value: Any) -> Any:
    """Return values that JSON has: without the bytes of pictures, which are read again by their digest, and with a name
    for each number that is not finite, which the data of a task may hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {NOT_FINITE: repr(value)}
    if isinstance(value, dict):
        return {key: _encode_numbers(inner) for key, inner in value.items() if not isinstance(inner, bytes)}
    return [_encode_numbers(inner) for inner in value] if isinstance(value, list | tuple) else value


def _decode_numbers(value: Any) -> Any:
    """Return what `_plain` was given, with the numbers that it named."""
    if isinstance(value, dict):
        if value.keys() == {NOT_FINITE} and value[NOT_FINITE] in ("nan", "inf", "-inf"):
            return float(value[NOT_FINITE])
        return {key: _decode_numbers(inner) for key, inner in value.items()}
    return [_decode_numbers(inner) for inner in value] if isinstance(value, list) else value


@cache
def _step_adapter() -> TypeAdapter[SampledStep]:
    return TypeAdapter(SampledStep)


@dataclass(frozen=True)
class StalenessLimit:
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
class PendingStep:
    """A step that is being sampled, or was: from the weights that so many updates had made."""

    step: int
    version: int
    task: asyncio.Task[SampledStep]

    @property
    def sampled(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


class StepQueue:
    """The steps that are sampled, being sampled, or begun next; owned by the loop, lives as long as that.

    One step is sampled at a time. Where learners change the very weights that are sampled from, learning waits until
    no step is being sampled; where the team is `apart`, both go on at once and the samplers take new weights between
    two steps.
    """

    def __init__(
        self,
        sample: Callable[[int], Awaitable[SampledTrees]],
        team: Team,
        span: StalenessLimit,
        ready: Sequence[SampledStep] = (),
    ) -> None:
        self._sample, self._team, self._span = sample, team, span
        self._ready = deque(ready)
        self._begun: deque[PendingStep] = deque()
        self._weights: Sequence[Weights] = ()
        self._loaded: Sequence[Weights] = ()

    @property
    def versions(self) -> dict[str, int]:
        """By policy, the updates that it has had."""
        return {weights.policy: weights.version for weights in self._weights}

    def sampling(self) -> list[int]:
        """The steps that are being sampled, or wait for it."""
        return [begun.step for begun in self._begun if not begun.task.done()]

    def ready(self) -> tuple[SampledStep, ...]:
        """The steps that are sampled and not learned from, in order: what a checkpoint keeps."""
        return (*self._ready, *(begun.task.result() for begun in self._begun if begun.sampled))

    async def take(self, version: int) -> SampledStep:
        """What was sampled for the update that comes after `version`. Begins as many steps as the rule allows."""
        first = version + len(self._ready) + len(self._begun)
        for step in range(first, first + self._span.capacity(version, first)):
            before = self._begun[-1].task if self._begun else None
            self._begun.append(PendingStep(step, version, asyncio.create_task(self._draw(step, self._weights, before))))
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

    async def _draw(
        self, step: int, weights: Sequence[Weights], before: asyncio.Task[SampledStep] | None
    ) -> SampledStep:
        if before is not None:
            await asyncio.shield(before)
        await self._load(weights)
        began = time.monotonic()
        return SampledStep(step, await self._sample(step), time.monotonic() - began)

    async def _load(self, weights: Sequence[Weights]) -> None:
        if weights is not self._loaded:
            await self._team.load(weights)
            self._loaded = weights

    async def _all_sampled(self) -> None:
        for begun in self._begun:
            await asyncio.shield(begun.task)
