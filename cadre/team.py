"""The team: the map from roles to policies, and the protocols that engines implement (Sampler, Learner, RewardModel).

A policy is a named set of trained weights. Several policies may share one engine (adapters of one base, say), which
then samples and trains them in one batch. A weight sync passes `Weights` from learners to samplers, each with its
version: within one process nothing is copied, between machines they are all that is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from cadre.errors import CadreError, ConfigError, EngineError
from cadre.types import Choice, Message, Observation, PreviousTurn, Request, Sample, Sampling, Tool, TrainingSequence

Metrics = dict[str, float]
T = TypeVar("T")


@dataclass(frozen=True)
class Weights:
    """A policy's weights after `version` updates of it, for a weight sync: `Weights("planner", 3)`.

    They are `tensors` by name, those that the learner itself works on, or a `folder` that `Learner.export` or
    `Learner.save` wrote. Pickling leaves out the tensors, which belong to this process.
    """

    policy: str
    version: int
    folder: Path | None = None
    tensors: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[Weights], tuple[str, int, Path | None]]:
        return Weights, (self.policy, self.version, self.folder)


class Sampler(Protocol):
    """Draws completions. An engine batches the requests of all running episodes."""

    async def sample(self, request: Request) -> list[Sample]:
        """Return `request.count` completions with the version of the weights at the start. Completion k depends on the
        weights, the prompt and `fold(request.key, k)` alone."""

    async def load(self, weights: Weights) -> None:
        """Sample the policy from these weights from now on. Raises EngineError if that is impossible."""

    def close(self) -> None:
        """Release threads, connections and memory. May be called more than once."""


@runtime_checkable
class BatchMemory(Protocol):
    """A sampler that splits requests into batches by a number of bytes; None if nobody has stated it."""

    memory: int | None


@runtime_checkable
class AnswerLister(Protocol):
    """A sampler that knows the probabilities of listed answers, without sampling."""

    def answer_probabilities(self, policy: str, choices: Sequence[Choice]) -> list[tuple[float, ...]]:
        """Return the probabilities of every choice's answers among each other, at temperature 1; they sum to 1."""


class Learner(Protocol):
    """Trains the policies that it owns, and saves their state for a checkpoint."""

    @property
    def policies(self) -> tuple[str, ...]: ...

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """Update every policy that has sequences once, in any number of optimiser steps; return metrics by policy."""

    async def publish(self, policy: str) -> Weights:
        """Return the policy's present weights, for a sampler to load. Their version counts the policy's updates."""

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Return the token ids of a conversation as the policy's prompt."""

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return the values of the heads named in `targets` at their positions, a tuple a sequence."""

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return each sequence's [T] log-probabilities before any training, zero outside the mask."""

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return each sequence's [T] log-probabilities under its policy as it is now, zero outside the mask."""

    def save(self, folder: Path) -> None:
        """Write everything needed to resume exactly: weights, optimiser, counters. Safetensors and JSON only."""

    def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote, for every policy."""

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write one policy in the Hugging Face format, for use without Cadre; `merge` adds an adapter to its base."""

    def close(self) -> None:
        """Release threads, processes and memory. May be called more than once."""


class LearnerProxy:
    """A `Learner` whose methods are called elsewhere: in a thread, in other processes, or on a wrapped learner.

    A subclass defines `close` and `_call`, and `_run` if it does not block a thread.
    """

    def __init__(self, policies: Iterable[str]) -> None:
        self.policies = tuple(policies)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Return what the method of that name returns, blocking."""
        raise NotImplementedError

    async def _run(self, method: str, *arguments: Any) -> Any:
        """Do the same without blocking the event loop."""
        return await asyncio.to_thread(self._call, method, *arguments)

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        metrics: dict[str, Metrics] = await self._run("update", data)
        return metrics

    async def publish(self, policy: str) -> Weights:
        weights: Weights = await self._run("publish", policy)
        return weights

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        ids: tuple[int, ...] = self._call("encode", policy, messages, tools)
        return ids

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        values: list[tuple[float, ...]] = self._call("values", data)
        return values

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        logprobs: list[tuple[float, ...]] = self._call("reference_logprobs", data)
        return logprobs

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        logprobs: list[tuple[float, ...]] = self._call("logprobs", data)
        return logprobs

    def save(self, folder: Path) -> None:
        self._call("save", folder)

    def load(self, folder: Path) -> None:
        self._call("load", folder)

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        self._call("export", policy, folder, merge)


class Teacher(Protocol):
    """A model that no training changes, which scores what others sampled."""

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return each sequence's [T] log-probabilities under the teacher, zero outside the mask."""


class RewardModel(Protocol):
    """Scores answers on a scale of its own."""

    def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> list[float]:
        """Return one number for each completion of the prompt at the same index."""


@runtime_checkable
class CountsTokens(Protocol):
    """A sampler that counts its tokens as they are drawn."""

    sampled_tokens: int


class SamplingActivity:
    """Decisions and tokens sampled so far, for displays of long work. Read from any thread."""

    def __init__(self, samplers: Iterable[Sampler] = ()) -> None:
        self.decisions = 0
        self._finished_tokens = 0
        distinct = {id(sampler): sampler for sampler in samplers}.values()  # policies may share one
        self._counting = [sampler for sampler in distinct if isinstance(sampler, CountsTokens)]
        self._counted_before = sum(sampler.sampled_tokens for sampler in self._counting)

    def count(self, samples: Sequence[Sample]) -> None:
        """Count the completions of one decision."""
        self.decisions += 1
        self._finished_tokens += sum(len(sample.token_ids) for sample in samples)

    @property
    def tokens(self) -> int:
        """The tokens drawn so far; those of unfinished completions are included if the samplers count them."""
        sampled = sum(sampler.sampled_tokens for sampler in self._counting) - self._counted_before
        return max(sampled, self._finished_tokens)


@dataclass(frozen=True)
class Team:
    """Policies for roles, and the engines that sample and train them.

    assignment    role -> policy
    samplers      policy -> engine
    sampling      role -> sampling parameters
    learners      none for a team that is not trained
    reward_model  scores answers, if the algorithm has one
    teacher       scores samples, if a model that is not trained here teaches
    own_weights   True if samplers have weights of their own, so that they may sample while the learners train
    frozen        policies that could be trained, and are not at the present step
    activity      counts the samples, if somebody watches
    seats         changes of the assignment in the episodes of a task, by its position in the step
    """

    assignment: Mapping[str, str]
    samplers: Mapping[str, Sampler]
    sampling: Mapping[str, Sampling]
    learners: Sequence[Learner] = field(default=())
    reward_model: RewardModel | None = None
    teacher: Teacher | None = None
    own_weights: bool = False
    frozen: frozenset[str] = frozenset()
    activity: SamplingActivity | None = None
    seats: Callable[[int], Mapping[str, str]] = field(default=lambda position: {})

    async def sample(
        self, observation: Observation, count: int, key: int, previous: PreviousTurn | None
    ) -> list[Sample]:
        """Return `count` completions from the policy of the observation's role. Raises EngineError for any failure of
        the sampler: that is no failure of an episode."""
        role = observation.role
        policy, sampling = self.assignment[role], narrowed(self.sampling[role], observation)
        messages, tools, answers = observation.messages, observation.tools, observation.answers
        request = Request(role, policy, messages, count, sampling, key, previous, tools, answers)
        try:
            samples = await self.samplers[policy].sample(request)
            if answers and (len(samples) != count or any(sample.text not in answers for sample in samples)):
                expected = f"expected algorithm.k={len(answers)} and sampling.engine=torch. Change them."
                raise ConfigError(f"Role {role!r}: its completions are given, {count} were to be sampled; {expected}")
            if self.activity is not None:
                self.activity.count(samples)
            return samples
        except CadreError:
            raise
        except Exception as error:
            got = f"policy {policy!r} could not be sampled: {type(error).__name__}: {error}"
            advice = "The samples of this step are lost; train --resume goes on from the last checkpoint."
            raise EngineError(f"Role {role!r}: {got}. {advice}") from error

    def tempered(self, temperature: float) -> Team:
        """Return the same team at a temperature, without top-p and top-k, as benchmarks sample."""
        plain = {
            role: replace(sampling, temperature=temperature, top_p=1.0, top_k=0)
            for role, sampling in self.sampling.items()
        }
        return replace(self, sampling=plain)

    def exchanged(self, times: int) -> Team:
        """Return the team with each policy moved `times` roles on (CORY, arXiv 2410.06101)."""
        roles = list(self.assignment)
        return self.assigned({role: self.assignment[roles[(n + times) % len(roles)]] for n, role in enumerate(roles)})

    def assigned(self, changes: Mapping[str, str]) -> Team:
        """Return the team with other roles, `{"tool": "planner", "planner": "tool"}` to swap two policies."""
        return replace(self, assignment={**self.assignment, **changes})

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """Send every sequence to the engine that owns its policy, and return the metrics by policy.

        All engines update at the same time, those without sequences too, so that their schedules advance. Raises an
        engine's error once every engine has ended.
        """
        trained = [sequence for sequence in data if sequence.policy not in self.frozen]
        parts = [
            (learner, [sequence for sequence in trained if sequence.policy in learner.policies])
            for learner in self.learners
        ]
        updates = await _together(learner.update(part) for learner, part in parts)
        return {policy: metrics for update in updates for policy, metrics in update.items()}

    async def published(self) -> list[Weights]:
        """Return the weights of every policy that is both trained and sampled."""
        return await _together(
            learner.publish(policy)
            for learner in self.learners
            for policy in learner.policies
            if policy in self.samplers
        )

    async def load(self, weights: Iterable[Weights]) -> None:
        """Load these weights into the samplers of their policies."""
        await _together(self.samplers[part.policy].load(part) for part in weights)

    def trains(self, policy: str) -> bool:
        """Return True if one of the engines trains the policy; frozen and remote ones are not trained."""
        return policy not in self.frozen and any(policy in learner.policies for learner in self.learners)

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Return the token ids of a conversation as a trained policy's prompt."""
        return self.owner(policy).encode(policy, messages, tools)

    def owner(self, policy: str) -> Learner:
        """Return the learner that trains the policy."""
        (owner,) = (learner for learner in self.learners if policy in learner.policies)
        return owner

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return the values of the heads named in `targets` at their positions, in the order of the sequences."""
        return self._query(data, lambda learner, part: learner.values(part))

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return each sequence's [T] log-probabilities before any training, zero outside the mask."""
        return self._query(data, lambda learner, part: learner.reference_logprobs(part))

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return each sequence's [T] log-probabilities under its policy as it is now, zero outside the mask."""
        return self._query(data, lambda learner, part: learner.logprobs(part))

    def close(self) -> None:
        """Close every engine."""
        engines: list[Sampler | Learner] = [*self.learners, *self.samplers.values()]
        for engine in engines:
            engine.close()

    def _query(
        self,
        data: Sequence[TrainingSequence],
        query: Callable[[Learner, Sequence[TrainingSequence]], list[tuple[float, ...]]],
    ) -> list[tuple[float, ...]]:
        """Return the results of the engines that own the sequences' policies, in the order of the sequences."""
        results: dict[int, tuple[float, ...]] = {}
        for learner in self.learners:
            indices = [index for index, sequence in enumerate(data) if sequence.policy in learner.policies]
            if indices:
                results |= dict(zip(indices, query(learner, [data[index] for index in indices]), strict=True))
        return [results[index] for index in range(len(data))]


def narrowed(sampling: Sampling, observation: Observation) -> Sampling:
    """Return the role's sampling with the stop strings and the length of the observation."""
    stop = (*sampling.stop, *(text for text in observation.stop if text not in sampling.stop))
    limit = sampling.max_tokens if observation.max_tokens is None else observation.max_tokens
    return replace(sampling, stop=stop, max_tokens=min(sampling.max_tokens, limit))


@contextmanager
def closed_on_failure() -> Iterator[ExitStack]:
    """Yield a stack that is closed if the block fails, and left open otherwise."""
    with ExitStack() as stack:
        yield stack
        stack.pop_all()


async def _together(works: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results in order, once all have ended. Raises the first error in that order."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
