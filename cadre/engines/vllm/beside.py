"""Learners beside a sampler that has weights of its own: both at once, or in turns in the memory of one card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from cadre.team import Learner, Metrics, Weights
from cadre.types import Message, TrainingSequence


class Sleeper(Protocol):
    """A sampler that can give its memory back; it wakes by itself when samples are asked for or weights come."""

    def sleep(self) -> None: ...


class Beside:
    """A `Learner` that does what another one does. Others say what they do in between."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    @property
    def policies(self) -> tuple[str, ...]:
        return self._learner.policies

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        return await self._learner.update(data)

    async def publish(self, policy: str) -> Weights:
        return await self._learner.publish(policy)

    def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._learner.encode(policy, messages)

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        return self._learner.values(data)

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        return self._learner.reference_logprobs(data)

    def save(self, folder: Path) -> None:
        self._learner.save(folder)

    def load(self, folder: Path) -> None:
        self._learner.load(folder)

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        self._learner.export(policy, folder, merge)

    def close(self) -> None:
        self._learner.close()


class LearnerAtOnce(Beside):
    """Publishes copies, as the sampler may take them when the learner is at its next update already."""

    async def publish(self, policy: str) -> Weights:
        weights = await self._learner.publish(policy)
        if weights.tensors is None:
            return weights
        return replace(weights, tensors={name: tensor.detach().clone() for name, tensor in weights.tensors.items()})


class LearnerInTurns(Beside):
    """The sampler goes to sleep before the learner works, whose own spare memory is given back after it."""

    def __init__(self, learner: Learner, sampler: Sleeper) -> None:
        super().__init__(learner)
        self._sampler = sampler

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        self._sampler.sleep()
        metrics = await self._learner.update(data)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return metrics

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        self._sampler.sleep()
        return self._learner.values(data)

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        self._sampler.sleep()
        return self._learner.reference_logprobs(data)
