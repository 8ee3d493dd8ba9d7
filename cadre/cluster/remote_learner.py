"""A learner in another process, which may die at any moment without the run's noticing more than the time it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cadre.cluster import files
from cadre.cluster.connection import ray_module
from cadre.cluster.member import Member
from cadre.cluster.sampler_pool import StoredWeights
from cadre.team import Metrics, Weights
from cadre.types import Message, TrainingSequence


class RemoteLearner:
    """A `Learner` of the policies of one base model. Owned by the team, which closes it.

    It can be made again at any time: from a copy of its state, taken at every checkpoint and every `kept` updates, and
    the data of the updates since, which are made again in their order and come to the same weights, bit for bit.
    """

    def __init__(self, member: Member, policies: Sequence[str], kept: int) -> None:
        self.member, self._kept = member, kept
        self._policies = tuple(policies)
        # What each of its processes wrote, in the object store of this machine.
        self._state: list[Any] = []
        self._since: list[Any] = []
        member.recover = self._recover
        self.busy = False

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that are trained there."""
        return self._policies

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """One update of every policy that has data; metrics by policy. Raises DivergedError."""
        self.busy = True
        try:
            return await asyncio.to_thread(self._update, data)
        finally:
            self.busy = False

    async def publish(self, policy: str) -> Weights:
        """The policy's weights in the object store of this machine, where samplers fetch them."""
        version, contents = await asyncio.to_thread(
            self.member.kept, lambda handle: handle.publish.options(num_returns=2).remote(policy)
        )
        return StoredWeights(policy, version, content=contents[0])

    def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of a conversation that the policy would answer next."""
        return self.member.ask(lambda handle: handle.encode.remote(policy, messages))

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """What the heads named in `targets` say at their places, a tuple a datum."""
        return self.member.ask(lambda handle: handle.values.remote(data))

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Log-probabilities [T] a datum under the policies as they were before any training."""
        return self.member.ask(lambda handle: handle.reference_logprobs.remote(data))

    def save(self, folder: Path) -> None:
        """Write the learner's state here, whichever machine it is on."""
        self._keep_state()
        for part in self._state:
            files.write(ray_module().get(part), folder)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        self._state, self._since = [ray_module().put(_own(files.read(folder), self._policies))], []
        self.member.ask(lambda handle: handle.load.remote(*self._state))

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write one policy for use without Cadre."""
        files.write(self.member.ask(lambda handle: handle.export.remote(policy, merge)), folder)

    def close(self) -> None:
        """End the learner's process."""
        self.member.close()

    def _update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        stored = ray_module().put(data)
        metrics: dict[str, Metrics] = self.member.ask(lambda handle: handle.update.remote(stored))
        self._since.append(stored)
        if len(self._since) >= self._kept:
            self._keep_state()
        return metrics

    def _keep_state(self) -> None:
        _, self._state = self.member.kept(lambda handle: handle.state.options(num_returns=2).remote())
        self._since = []

    def _recover(self, handle: Any) -> None:
        if self._state:
            self.member.answer(handle, lambda one: one.load.remote(*self._state))
        for data in self._since:
            self.member.answer(handle, partial(_updated, data=data))


def _updated(handle: Any, data: Any) -> Any:
    return handle.update.remote(data)


def _own(content: files.Files, policies: Sequence[str]) -> files.Files:
    """Of a checkpoint's files those of these policies."""
    return {name: data for name, data in content.items() if name.split("/")[0] in policies}
