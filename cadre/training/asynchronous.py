"""Asynchronous training: sampling runs ahead of learning by at most `train.max_staleness` updates.

The rule: step n is sampled with the weights that n - max_staleness updates made (with the first weights where that is
negative), and the steps are learned from in order. So the weights that a step is sampled with follow from the settings
and never from the clock, and equal seeds give equal runs. A step waits for its slowest episode, while the next steps
are sampled as far as the rule allows; with `max_staleness: 0` it is sampled when the update before it is done.

Steps that are sampled and not yet learned from are saved in a checkpoint as trees: their weights are gone by then.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from cadre.files import damaged_file_error, type_adapter, validation_message
from cadre.rollout.episodes import SampledTrees
from cadre.runs import jsonl
from cadre.runs.tree_format import decode_tree, encode, iterate_media, load_media, restore_numbers, save_media
from cadre.team import Team, Weights

SAMPLED_STEPS = "in_flight.jsonl"


@dataclass(frozen=True)
class SampledStep:
    """The samples for update number `step`, and how many seconds sampling took."""

    step: int
    sampled: SampledTrees
    seconds: float


@dataclass(frozen=True)
class StalenessLimit:
    """How far sampling may run ahead: `max_staleness` updates, and not to the step `end`, where training ends."""

    max_staleness: int
    end: int

    def capacity(self, version: int, started: int) -> int:
        """Return how many more steps may be started after `version` updates: max_staleness + version + 1 - started.
        That is (max_staleness + version + 1) * batch - (samples taken) in whole steps, so that no group is cut. After a
        resume, `started` counts the sampled steps of the checkpoint too."""
        return max(0, min(self.max_staleness + version + 1, self.end) - started)


@dataclass(frozen=True)
class StartedStep:
    """A step that is being sampled, or was, with the weights that `version` updates had made."""

    step: int
    version: int
    task: asyncio.Task[SampledStep]

    @property
    def is_sampled(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


class StepQueue:
    """The steps that are sampled, being sampled, or started next. Owned by the loop, lives as long as that.

    One step is sampled at a time. Where learners change the very weights that are sampled from, learning waits until no
    step is being sampled. Where samplers have weights of their own, both run at once, and new ones are loaded between
    two steps.
    """

    def __init__(
        self,
        sample: Callable[[int], Awaitable[SampledTrees]],
        team: Team,
        limit: StalenessLimit,
        sampled: Sequence[SampledStep] = (),
    ) -> None:
        self._sample, self._team, self._limit = sample, team, limit
        self._sampled = deque(sampled)
        self._started: deque[StartedStep] = deque()
        self._weights: Sequence[Weights] = ()
        self._loaded: Sequence[Weights] = ()

    @property
    def versions(self) -> dict[str, int]:
        """The number of updates of each policy."""
        return {weights.policy: weights.version for weights in self._weights}

    def sampling(self) -> list[int]:
        """Return the steps that are being sampled, or wait for it."""
        return [started.step for started in self._started if not started.task.done()]

    def sampled(self) -> tuple[SampledStep, ...]:
        """Return the steps that are sampled and not learned from, in order, as a checkpoint saves them."""
        return (*self._sampled, *(started.task.result() for started in self._started if started.is_sampled))

    async def next_step(self, version: int) -> SampledStep:
        """Return the samples for the update after `version`, and start as many further steps as the rule allows."""
        # Steps version, ..., first - 1 are sampled or started already.
        first = version + len(self._sampled) + len(self._started)
        for step in range(first, first + self._limit.capacity(version, first)):
            previous = self._started[-1].task if self._started else None
            task = asyncio.create_task(self._sample_step(step, self._weights, previous))
            self._started.append(StartedStep(step, version, task))
        # Learners that change the sampled weights in place must not run beside sampling. Shielded: an interrupt that
        # cancels the waiting does not cancel the sampling itself.
        for started in self._started if not self._team.own_weights else ():
            await asyncio.shield(started.task)
        if not self._sampled:
            self._sampled.append(await asyncio.shield(self._started[0].task))
            self._started.popleft()
        return self._sampled.popleft()

    async def sync_weights(self) -> None:
        """Load the learners' weights into the samplers, as soon as no step is being sampled with older ones."""
        self._weights = await self._team.published()
        if all(started.task.done() for started in self._started):
            await self._load(self._weights)

    async def drain(self) -> None:
        """Wait until no step is being sampled, and load the newest weights into the samplers."""
        for started in self._started:
            await asyncio.shield(started.task)
        await self._load(self._weights)

    async def close(self, version: int) -> bool:
        """Cancel what is being sampled; return False if a step was lost that cannot be sampled again. A step that is
        sampled with the present weights can be sampled again. One with older weights is waited for."""
        for started in self._started:
            if started.version == version:
                started.task.cancel()
        await asyncio.gather(*(started.task for started in self._started), return_exceptions=True)
        return all(started.is_sampled for started in self._started if started.version < version)

    async def _sample_step(
        self, step: int, weights: Sequence[Weights], previous: asyncio.Task[SampledStep] | None
    ) -> SampledStep:
        # One step at a time, as samplers hold one set of weights.
        if previous is not None:
            await asyncio.shield(previous)
        await self._load(weights)
        began = time.monotonic()
        return SampledStep(step, await self._sample(step), time.monotonic() - began)

    async def _load(self, weights: Sequence[Weights]) -> None:
        # Each update publishes a new object, so identity tells whether these are loaded.
        if weights is not self._loaded:
            await self._team.load(weights)
            self._loaded = weights


# ---- Sampled steps in a checkpoint


def write_sampled_steps(folder: Path, steps: Sequence[SampledStep]) -> None:
    """Write one line per step to `folder/in_flight.jsonl`, images and sounds beside it; no file without steps."""
    if steps:
        lines = (json.dumps(encode(step), allow_nan=False) + "\n" for step in steps)
        (folder / SAMPLED_STEPS).write_text("".join(lines))
        save_media(folder, {medium for step in steps for tree in step.sampled.trees for medium in iterate_media(tree)})


def read_sampled_steps(folder: Path) -> tuple[SampledStep, ...]:
    """Return the steps that `write_sampled_steps` wrote, number for number."""
    steps = []
    for line in jsonl.records(folder / SAMPLED_STEPS):
        try:
            trees = [decode_tree(tree) for tree in line["sampled"]["trees"]]
            sampled = {**restore_numbers(line["sampled"]), "trees": trees}
            steps.append(type_adapter(SampledStep).validate_python({**line, "sampled": sampled}))
        except (KeyError, TypeError, ValueError) as error:
            why = validation_message(error) if isinstance(error, ValidationError) else str(error)
            raise damaged_file_error(folder / SAMPLED_STEPS, why) from None
        for tree in trees:
            load_media(tree, folder)
    return tuple(steps)
