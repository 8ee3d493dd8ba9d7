"""What runs in the other processes: plain classes, of which Ray makes actors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from cadre.cluster import files
from cadre.cluster.files import Bytes, Files
from cadre.cluster.recipes import LearnerRecipe, SamplerRecipe
from cadre.engines import scratch
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.errors import PromptError
from cadre.plugins import configure_sandbox
from cadre.rollout.batching import SharedBarrier
from cadre.settings import SandboxConfig
from cadre.settings.user_imports import hold_files
from cadre.team import Metrics, Weights
from cadre.types import Message, Request, Reward, Sample, TrainingSequence

# The siblings of a request, or why its prompt alone cannot be asked.
Outcome = list[Sample] | PromptError


def settle(threads: int) -> None:
    """Compute on so many threads, with the user's files as they are when they are first needed."""
    import torch

    hold_files()
    torch.set_num_threads(threads)


class Process:
    """What all of them are asked. Each is told to `begin` before anything else, as what goes wrong there can be raised
    as it is, and what a constructor raises cannot."""

    async def pid(self) -> int:
        """The process's number on its machine."""
        return os.getpid()


class SamplerProcess(Process):
    """Samples the policies of one base model."""

    async def begin(self, threads: int, recipe: SamplerRecipe) -> None:
        settle(threads)
        self.sampler = recipe.make()
        self._scope: tuple[int, SharedBarrier] | None = None

    async def memory(self) -> int | None:
        """Bytes that a batch may take; None where the sampler does not say."""
        from cadre.engines.torch import TorchEngine

        return self.sampler.memory if isinstance(self.sampler, TorchEngine) else None

    async def stay_within(self, memory: int) -> None:
        """Let a batch of torch's take so many bytes."""
        from cadre.engines.torch import TorchEngine

        if isinstance(self.sampler, TorchEngine):
            self.sampler.memory = memory

    async def sample(self, scope: int, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Outcome]]:
        """The siblings of each request, or what is wrong with its prompt, by its number, as soon as they are drawn; all
        requests are one batch.

        Batches of one `scope` belong together, as those of a step do in one process.
        """
        done: asyncio.Queue[tuple[int, Outcome]] = asyncio.Queue()

        async def one(number: int, request: Request) -> None:
            try:
                outcome: Outcome = await self.sampler.sample(request)
            except PromptError as error:
                outcome = error
            await done.put((number, outcome))

        works = (one(number, request) for number, request in enumerate(requests))
        drawing = asyncio.create_task(self._within(scope).gather(*works))
        try:
            for _ in requests:
                yield await _next(done, drawing)
            await drawing
        finally:
            if not drawing.done():
                drawing.cancel()
                await asyncio.wait([drawing])
                self._scope = None

    def _within(self, number: int) -> SharedBarrier:
        if self._scope is None or self._scope[0] != number:
            self._scope = number, SharedBarrier()
        return self._scope[1]

    async def load(self, policy: str, version: int, content: Bytes | Files) -> None:
        """Sample a policy from these weights."""
        if not isinstance(content, dict):
            await self.sampler.load(Weights(policy, version, tensors=files.unpacked(content)))
            return
        with scratch.lent("files") as folder:
            files.write(content, folder)
            await self.sampler.load(Weights(policy, version, folder))


async def _next(done: asyncio.Queue[Any], drawing: asyncio.Task[Any]) -> Any:
    """The next that is done. Raises what the drawing raised."""
    getting = asyncio.create_task(done.get())
    await asyncio.wait([getting, drawing], return_when=asyncio.FIRST_COMPLETED)
    if not getting.done() and drawing.exception() is not None:
        getting.cancel()
        drawing.result()
    return await getting


class LearningProcess(Process):
    """What a learner says of conversations and data, whichever holds it."""

    learner: Any

    async def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        return self.learner.encode(policy, messages)

    async def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        return self.learner.values(data)

    async def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        return self.learner.reference_logprobs(data)


class LearnerProcess(LearningProcess):
    """Trains the policies of one base model; where ranks do, see `cadre.cluster.rank_process`."""

    async def begin(self, threads: int, recipe: LearnerRecipe) -> None:
        settle(threads)
        self.learner = recipe.make(recipe.engine.make())

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        return await self.learner.update(data)

    async def publish(self, policy: str) -> tuple[int, Bytes | Files]:
        """The policy's version and its weights; two results, as the asker keeps the second and reads the first."""
        weights = await self.learner.publish(policy)
        return weights.version, files.content_of(weights)

    async def state(self) -> tuple[None, Files]:
        """All that `load` needs, as the second of two results: the first says that it is there."""
        return None, files.written_by(self.learner.save)

    async def load(self, *states: Files) -> None:
        """Be as the learner was whose state these are, a part of it each."""
        with scratch.lent("files") as folder:
            for state in states:
                files.write(state, folder)
            self.learner.load(folder)

    async def export(self, policy: str, merge: bool) -> Files:
        return files.written_by(lambda folder: self.learner.export(policy, folder, merge))


class EnvironmentProcess(Process):
    """Steps environments, with the sandbox that their programs need."""

    async def begin(self, env: str | type[Env], settings: Mapping[str, Any], confined: SandboxConfig) -> None:
        EnvSpec(env, settings)  # loads the file that defines the class, so that its instances can be unpickled
        configure_sandbox(confined.level, confined.cgroup)

    async def step(self, env: Env, said: Mapping[str, str] | Mapping[str, Sample]) -> tuple[Env, Reward]:
        """The environment after the step, by texts or by samples, and what that paid."""
        texts = {role: text for role, text in said.items() if isinstance(text, str)}
        samples = {role: sample for role, sample in said.items() if isinstance(sample, Sample)}
        return env, await (env.step_samples(samples) if samples else env.step(texts))
