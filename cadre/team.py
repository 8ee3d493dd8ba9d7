"""Who plays which role: the map from roles to policies, and the protocols behind which every engine stands.

A policy is a named set of trained weights. Several policies may live in one engine (adapters of one base, say), which
then samples and trains them in one batch. Learners hand weights to samplers as `Weights`, each with its version: in one
process that moves nothing, between machines it is all that crosses. Nothing here knows how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from cadre.errors import CadreError, EngineError
from cadre.types import Message, Observation, PreviousTurn, Request, Sample, Sampling, TrainingSequence

Metrics = dict[str, float]
T = TypeVar("T")


@dataclass(frozen=True)
class Weights:
    """A policy's weights after `version` updates of it, as a learner hands them to samplers.

    They are `tensors` by name, those that the learner itself works on, or a `folder` that `Learner.export` or
    `Learner.save` wrote. Pickling keeps all but the tensors, which belong to this process: `Weights("planner", 3)`.
    """

    policy: str
    version: int
    folder: Path | None = None
    tensors: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[Weights], tuple[str, int, Path | None]]:
        return Weights, (self.policy, self.version, self.folder)


class Sampler(Protocol):
    """Draws completions. An engine batches what all running episodes ask for."""

    async def sample(self, request: Request) -> list[Sample]:
        """`request.count` siblings; sibling k depends on the weights, the prompt and `fold(request.key, k)` alone.

        Each carries the version of the weights that the policy had when sampling began.
        """
        ...

    async def load(self, weights: Weights) -> None:
        """Sample the policy from these weights from now on. Raises EngineError where that cannot be."""
        ...

    def close(self) -> None:
        """Give back threads, connections and memory. May be called more than once."""
        ...


class Learner(Protocol):
    """Trains the policies that it owns, and gives their state to a checkpoint."""

    @property
    def policies(self) -> tuple[str, ...]: ...

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """One update of every policy that has data, in however many optimiser steps; metrics by policy."""
        ...

    async def publish(self, policy: str) -> Weights:
        """The policy's weights as they are, for a sampler to load. Their version counts the policy's updates."""
        ...

    def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of a conversation that the policy would answer next."""
        ...

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """What the heads named in `targets` say at their places, a tuple a datum."""
        ...

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Log-probabilities [T] a datum under the policies as they were before any training, zero outside the mask."""
        ...

    def save(self, folder: Path) -> None:
        """Everything needed to go on exactly: weights, optimiser, counters. Safetensors and JSON only."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, for every policy."""
        ...

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write one policy in the field's own format, for use without Cadre; `merge` adds an adapter to its base."""
        ...

    def close(self) -> None:
        """Give back threads, processes and memory. May be called more than once."""
        ...


class RewardModel(Protocol):
    """Says how good answers are, on a scale of its own."""

    def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> list[float]:
        """One number a completion, the answer to the prompt beside it."""
        ...


@dataclass(frozen=True)
class Team:
    """`assignment` maps role to policy, `samplers` policy to engine, `sampling` role to its distribution.

    A team without `learners` plays only. `reward_model` scores what the team says where the algorithm asks for that.
    `apart` says that samplers have weights of their own, so that they may sample while the learners learn.
    """

    assignment: Mapping[str, str]
    samplers: Mapping[str, Sampler]
    sampling: Mapping[str, Sampling]
    learners: Sequence[Learner] = field(default=())
    reward_model: RewardModel | None = None
    apart: bool = False

    async def sample(
        self, observation: Observation, count: int, key: int, previous: PreviousTurn | None
    ) -> list[Sample]:
        """`count` siblings from the policy that plays the observation's role. Raises EngineError where the sampler
        fails, however it does: that is no failure of an episode."""
        role = observation.role
        policy, sampling = self.assignment[role], narrowed(self.sampling[role], observation)
        request = Request(role, policy, observation.messages, count, sampling, key, previous, observation.tools)
        try:
            return await self.samplers[policy].sample(request)
        except CadreError:
            raise
        except Exception as error:
            raise EngineError(
                f"Role {role!r}: policy {policy!r} could not be sampled: {type(error).__name__}: {error}. The samples "
                "of this step are lost; train --resume goes on from the last checkpoint."
            ) from error

    def greedy(self) -> Team:
        """The same team at temperature 0, as evaluation plays it."""
        return self.tempered(0.0)

    def tempered(self, temperature: float) -> Team:
        """The same team at a temperature, without top-p and top-k, as benchmarks sample."""
        plain = {
            role: replace(sampling, temperature=temperature, top_p=1.0, top_k=0)
            for role, sampling in self.sampling.items()
        }
        return replace(self, sampling=plain)

    def exchanged(self, times: int) -> Team:
        """The same policies, each so many roles further on (CORY, arXiv 2410.06101)."""
        roles = list(self.assignment)
        return self.assigned({role: self.assignment[roles[(n + times) % len(roles)]] for n, role in enumerate(roles)})

    def assigned(self, changes: Mapping[str, str]) -> Team:
        """The same policies with other roles, `{"tool": "planner", "planner": "tool"}` to swap two of them."""
        return replace(self, assignment={**self.assignment, **changes})

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """Send every datum to the engine that owns its policy; all engines update at the same time, one without data so
        that its schedules go on.

        Metrics by policy. Raises what an engine raised once every engine has ended.
        """
        parts = [(learner, [datum for datum in data if datum.policy in learner.policies]) for learner in self.learners]
        updates = await _together(learner.update(part) for learner, part in parts)
        return {policy: metrics for update in updates for policy, metrics in update.items()}

    async def published(self) -> list[Weights]:
        """The weights of every policy that is trained and that a sampler plays."""
        return await _together(
            learner.publish(policy)
            for learner in self.learners
            for policy in learner.policies
            if policy in self.samplers
        )

    async def load(self, weights: Iterable[Weights]) -> None:
        """Let the samplers of these policies take these weights."""
        await _together(self.samplers[part.policy].load(part) for part in weights)

    def trains(self, policy: str) -> bool:
        """Whether one of the engines trains the policy; frozen and remote ones are not trained."""
        return any(policy in learner.policies for learner in self.learners)

    def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of a conversation that a trained policy would answer next."""
        (owner,) = (learner for learner in self.learners if policy in learner.policies)
        return owner.encode(policy, messages)

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """What the heads named in `targets` say at their places, in the order of the data."""
        return self._ask(data, lambda learner, part: learner.values(part))

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Log-probabilities [T] a datum under the policies as they were before any training, zero outside the mask."""
        return self._ask(data, lambda learner, part: learner.reference_logprobs(part))

    def close(self) -> None:
        """Close every engine."""
        engines: list[Sampler | Learner] = [*self.learners, *self.samplers.values()]
        for engine in engines:
            engine.close()

    def _ask(
        self,
        data: Sequence[TrainingSequence],
        ask: Callable[[Learner, Sequence[TrainingSequence]], list[tuple[float, ...]]],
    ) -> list[tuple[float, ...]]:
        """The answers of the engines that own the data's policies, in the order of the data."""
        answers: dict[int, tuple[float, ...]] = {}
        for learner in self.learners:
            part = [index for index, datum in enumerate(data) if datum.policy in learner.policies]
            if part:
                answers |= dict(zip(part, ask(learner, [data[index] for index in part]), strict=True))
        return [answers[index] for index in range(len(data))]


def narrowed(sampling: Sampling, observation: Observation) -> Sampling:
    """The role's sampling with the stop strings and the length that the observation asks for."""
    stop = (*sampling.stop, *(text for text in observation.stop if text not in sampling.stop))
    longest = sampling.max_tokens if observation.max_tokens is None else observation.max_tokens
    return replace(sampling, stop=stop, max_tokens=min(sampling.max_tokens, longest))


@contextmanager
def closed_on_failure() -> Iterator[ExitStack]:
    """What is put on the stack is closed where the block fails, and left open where it does not."""
    with ExitStack() as stack:
        yield stack
        stack.pop_all()


async def _together(works: Iterable[Awaitable[T]]) -> list[T]:
    """What they return, in order, once all have ended. Raises the first error in that order."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
