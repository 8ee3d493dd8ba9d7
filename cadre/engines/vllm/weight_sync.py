"""Weight sync between a learner and an engine with weights of its own.

On the engine's side `WeightSync` puts the steps in an order, each of which has gone wrong without the one before.
Generation pauses while an adapter is added or weights change: with sequences running, engines have served one adapter's
request with another's weights. The prefix cache is cleared afterwards. A sleeping engine, which has freed as much
memory of its GPU as `Depth` says, allocates memory for its weights first, then takes the new ones, then allocates its
KV cache.

On the learner's side `AsyncLearner` and `ColocatedLearner` adapt a learner to such a sampler.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from cadre.engines.torch.storage import weights_folder
from cadre.engines.vllm.adapters import Adapter, AdapterVersions
from cadre.engines.vllm.engine import Call, Depth
from cadre.learn import tensor_files
from cadre.team import Learner, LearnerProxy, Metrics, Weights
from cadre.types import TrainingSequence

if TYPE_CHECKING:
    from cadre.engines.vllm.async_engine import AsyncEngine, Stream
    from cadre.engines.vllm.sampler import VllmSampler


def read_tensors(weights: Weights) -> Mapping[str, Tensor]:
    """Return the tensors of a whole model by their names in a checkpoint, which may be the shards of a group's ranks.
    Raises EngineError if there are none."""
    if weights.tensors is not None:
        return weights.tensors
    folder = weights_folder(weights)
    if tensor_files.is_sharded(folder):
        return tensor_files.read_whole(folder)
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


class WeightSync:
    """The gate of one engine: calls enter together, weights change while nothing is computed.

    Lives as long as the engine, in its event loop. `on_removed` is called for adapters whose files are read no more.
    `seconds` add up how long weight syncs, falling asleep and waking took.
    """

    def __init__(
        self,
        backend: AsyncEngine,
        adapters: AdapterVersions,
        on_removed: Callable[[Adapter], None],
        deterministic: bool = True,
    ) -> None:
        self._backend, self._adapters, self._on_removed = backend, adapters, on_removed
        self._deterministic = deterministic
        self._gate = asyncio.Lock()
        self._calls_ended = asyncio.Event()
        self._asleep: list[str] = []
        self._depth: Depth | None = None
        self._sent: tuple[Mapping[str, Any], int] | None = None
        self._running_calls = 0
        self.seconds: dict[str, float] = defaultdict(float)

    async def submit(self, calls: list[Call]) -> list[Stream]:
        """Queue calls, if deterministic all of them before the engine begins any, so that its batches follow from the
        calls alone."""
        self._running_calls += len(calls)
        async with self._gate:
            await self._wake("weights")
            if self._depth == "discard" and self._sent is not None:
                await self._send(*self._sent)
            await self._wake("kv_cache")
            if not self._deterministic:
                return [await self._backend.add(call) for call in calls]
            async with self._paused():
                return [await self._backend.add(call) for call in calls]

    def end(self, count: int) -> None:
        """Note that so many calls have ended: their versions may be unused now."""
        self._running_calls -= count
        self._calls_ended.set()

    async def load_adapter(self, adapter: Adapter, folder: Path) -> None:
        """Sample with the adapter in this folder from now on. Waits until old versions leave a slot."""
        async with self._gate:
            # The gate is held meanwhile: new calls would keep the current version in use.
            while self._adapters.is_full:
                self._calls_ended.clear()
                await self._calls_ended.wait()
            await self._wake("weights")
            async with self._timed("sync"), self._paused():
                await self._remove_unused()
                # Before and after: an old version may leave its slot to the new one, or become unused by it.
                await self._backend.add_adapter(adapter, folder)
                self._adapters.activate(adapter)
                await self._remove_unused()
                # Prefixes are cached by the adapter's name, so none is wrong. They are dropped all the same if no
                # call runs, so that what is computed anew does not depend on how long the engine has run.
                if not self._running_calls:
                    await self._backend.clear_prefix_cache()
            await self._wake("kv_cache")

    async def load_weights(self, weights: Mapping[str, Any], version: int, lasting: bool = False) -> None:
        """Replace the model's own weights; running sequences continue with the new ones. `lasting` tensors stay as they
        are until the next ones are loaded: the engine may discard its copy of them."""
        async with self._gate:
            await self._wake("weights")
            await self._send(weights, version)
            self._sent = (weights, version) if lasting else None
            await self._wake("kv_cache")

    async def sleep(self, depth: Depth) -> None:
        """Free the GPU's memory until the next call or weights. An engine that sleeps is only put to sleep deeper.
        Without weights that can be sent again `discard` is `offload`."""
        if depth == "discard" and self._sent is None:
            depth = "offload"
        async with self._gate:
            if self._asleep and (depth == "cache" or "weights" in self._asleep):
                return
            async with self._timed("sleep"):
                await self._backend.sleep(depth)
                self._asleep = ["kv_cache"] if depth == "cache" else ["weights", "kv_cache"]
                self._depth = depth

    async def _send(self, weights: Mapping[str, Any], version: int) -> None:
        async with self._timed("sync"), self._paused():
            await self._backend.load_weights(weights, version)
            await self._backend.clear_prefix_cache()
            self._depth = None

    @asynccontextmanager
    async def _timed(self, name: str) -> AsyncIterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - began

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        await self._backend.pause()
        try:
            yield
        finally:
            # A sleeping engine resumes once it has all its memory.
            if not self._asleep:
                await self._backend.resume()

    async def _remove_unused(self) -> None:
        for adapter in self._adapters.unused():
            await self._backend.remove_adapter(adapter)
            self._adapters.remove(adapter)
            self._on_removed(adapter)

    async def _wake(self, *parts: str) -> None:
        for part in parts:
            if part in self._asleep:
                async with self._timed("wake"):
                    await self._backend.wake(part)
                    self._asleep.remove(part)
                    if not self._asleep:
                        await self._backend.resume()


class WrappedLearner(LearnerProxy):
    """A `Learner` that delegates to another one; subclasses change single methods."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner.policies)
        self._learner = learner

    def close(self) -> None:
        self._learner.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._learner, method)(*arguments)

    async def _run(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._learner, method)(*arguments)


class AsyncLearner(WrappedLearner):
    """Publishes copies of the weights, as the learner may be in its next update when the sampler reads them."""

    async def publish(self, policy: str) -> Weights:
        weights = await self._learner.publish(policy)
        if weights.tensors is None:
            return weights
        return replace(weights, tensors={name: tensor.detach().clone() for name, tensor in weights.tensors.items()})


class ColocatedLearner(WrappedLearner):
    """Shares one GPU with the sampler: puts it to sleep before it computes, and frees its own spare memory after.

    With `sleep="auto"` the first use finds out how deep: the first depth, from not at all on, that leaves half of the
    GPU free, or the deepest. A learner that sizes its batches by free memory then has enough of it, and a step does not
    pay for memory that nobody needs.
    """

    def __init__(self, learner: Learner, sampler: VllmSampler, sleep: Depth | Literal["auto", "none"] = "auto") -> None:
        super().__init__(learner)
        self._sampler, self._sleep = sampler, sleep

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        self._make_room()
        metrics = await self._learner.update(data)
        # A sampler that slept takes its memory back; one that did not needs some for every batch. Memory that is kept
        # otherwise need not be asked for again in the next update.
        if self._sleep != "none" or not has_free_memory(0.1):
            torch.cuda.empty_cache()
        return metrics

    def _call(self, method: str, *arguments: Any) -> Any:
        if method in ("values", "reference_logprobs", "logprobs"):
            self._make_room()
        return super()._call(method, *arguments)

    def _make_room(self) -> None:
        """Put the sampler to sleep as deep as the setting says."""
        if self._sleep != "auto":
            if self._sleep != "none":
                self._sampler.sleep(self._sleep)
            return
        depths: list[Depth] = ["cache", self._sampler.deepest]
        self._sleep = "none"
        while not has_free_memory(0.5) and depths:
            self._sleep = depths.pop(0)
            self._sampler.sleep(self._sleep)


def has_free_memory(fraction: float) -> bool:
    """Return True if at least this fraction of the GPU's memory is free; False without a GPU."""
    if not torch.cuda.is_available():
        return False
    free, total = torch.cuda.mem_get_info()
    return free >= fraction * total
