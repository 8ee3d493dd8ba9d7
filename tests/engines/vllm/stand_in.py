"""A stand-in for vLLM's engine: draws ids by rule, remembers what it was told, and checks that it was told in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from cadre.cluster.recipes import VllmRecipe
from cadre.engines.vllm import VllmSampler
from cadre.engines.vllm.arguments import Options
from cadre.engines.vllm.backend import Drawn


class StandIn:
    """A `Backend` without a model. `said` is what it was told, in order; `gate` holds calls back until it is set, or of
    `gates` the one for their seed; they then raise `broken`, if that is set.

    What it draws tells of seed, sibling and weights: ids are `(seed + k) % 100, mark`, where the mark is the number of
    the adapter, or 200 + the version of the model's own weights.
    """

    def __init__(self) -> None:
        self.said: list[object] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.gates: dict[int, asyncio.Event] = {}
        self.paused = 0
        self.loras: dict[int, str] = {}
        self.version = 0
        self.asleep: set[str] = set()
        self.broken: Exception | None = None
        self.aborted: list[str] = []
        self.closed = False

    @classmethod
    async def start(cls, launch):
        made = cls()
        made.launch = launch
        return made

    async def add(self, call):
        assert self.paused, "calls go in together, while nothing runs"
        assert not self.asleep
        self.said.append(("add", call.name, call.adapter.name if call.adapter else None))
        return Waiting(self, call)

    async def abort(self, name):
        self.aborted.append(name)

    async def pause(self):
        self.paused += 1
        self.said.append("pause")

    async def resume(self):
        self.paused = 0
        self.said.append("resume")

    async def add_adapter(self, adapter, folder):
        assert self.paused, "an adapter is added while nothing runs"
        assert "weights" not in self.asleep
        assert adapter.number not in self.loras
        assert (folder / "adapter_model.safetensors").is_file()
        self.loras[adapter.number] = adapter.name
        assert len(self.loras) <= self.launch.room + 1
        self.said.append(("adapter", adapter.name))

    async def remove_adapter(self, adapter):
        del self.loras[adapter.number]
        self.said.append(("remove", adapter.name))

    async def send(self, weights, version):
        assert self.paused, "weights change while nothing runs"
        assert "weights" not in self.asleep
        self.version, self.sent = version, dict(weights)
        self.said.append(("send", version))

    async def forget_prompts(self):
        self.said.append("forget")

    async def sleep(self):
        self.asleep = {"weights", "kv_cache"}
        self.said.append("sleep")

    async def wake(self, part):
        self.asleep.remove(part)
        self.said.append(f"wake {part}")

    def shutdown(self):
        self.closed = True


class Waiting:
    """A call that the stand-in has taken; it draws when the gate is open."""

    def __init__(self, backend: StandIn, call) -> None:
        self.backend, self.call, self.before = backend, call, backend.version

    async def drawn(self):
        await self.backend.gates.get(self.call.seed, self.backend.gate).wait()
        if self.backend.broken:
            raise self.backend.broken
        adapter = self.call.adapter
        if adapter:
            assert self.backend.loras[adapter.number] == adapter.name, "an adapter is there until nobody draws with it"
        mark = adapter.number if adapter else 200 + self.backend.version
        versions = ((0, self.before),)
        if self.backend.version != self.before:
            versions += ((1, self.backend.version),)
        plain = Drawn((), (-0.5, -0.25), "length", versions)
        return [replace(plain, token_ids=((self.call.seed + k) % 100, mark)) for k in range(self.call.count)]


@dataclass(frozen=True)
class StandInRecipe(VllmRecipe):
    """Makes the sampler on a stand-in, in whatever process it is told to."""

    def make(self) -> VllmSampler:
        options = Options(self.config, self.memory, self.max_staleness)
        return VllmSampler(self.model, self.policies, options, start=StandIn.start)
