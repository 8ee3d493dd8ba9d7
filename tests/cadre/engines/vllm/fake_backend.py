"""A fake of vLLM's engine: samples ids by rule, records its calls, and checks their order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from cadre.engines.factory import VllmSpec
from cadre.engines.text.model import Completion
from cadre.engines.vllm import VllmSampler
from cadre.engines.vllm.engine import Options


class FakeBackend:
    """An `AsyncEngine` without a model. `calls` are those of its methods, in order; `gate` holds requests until it is
    set, or of `gates` the one for their seed, or without a seed for their name; they then raise `broken`, if that is
    set.

    What it samples depends on seed, index and weights: ids are `(seed + k) % 100, mark`, where the mark is the number
    of the adapter, or 200 + the version of the model's own weights.
    """

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.gates: dict[int | str, asyncio.Event] = {}
        self.paused = 0
        self.loras: dict[int, str] = {}
        self.version = 0
        self.asleep: set[str] = set()
        self.discarded = False
        self.broken: Exception | None = None
        self.aborted: list[str] = []
        self.seeds: list[int | None] = []
        self.closed = False

    @classmethod
    async def start(cls, launch):
        created = cls()
        created.launch = launch
        return created

    async def add(self, call):
        assert self.paused or not self.launch.deterministic, "calls go in together, while nothing runs"
        assert not self.asleep
        assert not self.discarded, "the weights are those that were sent last"
        self.calls.append(("add", call.name, call.adapter.name if call.adapter else None))
        self.seeds.append(call.seed)
        return Waiting(self, call)

    async def abort(self, name):
        self.aborted.append(name)

    async def pause(self):
        self.paused += 1
        self.calls.append("pause")

    async def resume(self):
        self.paused = 0
        self.calls.append("resume")

    async def add_adapter(self, adapter, folder):
        assert self.paused, "an adapter is added while nothing runs"
        assert "weights" not in self.asleep
        assert adapter.number not in self.loras
        assert (folder / "adapter_model.safetensors").is_file()
        self.loras[adapter.number] = adapter.name
        assert len(self.loras) <= self.launch.slots + 1
        self.calls.append(("adapter", adapter.name))

    async def remove_adapter(self, adapter):
        del self.loras[adapter.number]
        self.calls.append(("remove", adapter.name))

    async def load_weights(self, weights, version):
        assert self.paused, "weights change while nothing runs"
        assert "weights" not in self.asleep
        self.discarded = False
        self.version, self.sent = version, dict(weights)
        self.calls.append(("send", version))

    async def clear_prefix_cache(self):
        self.calls.append("forget")

    async def sleep(self, depth):
        assert not self.asleep or (self.asleep == {"kv_cache"} and depth != "cache")
        self.asleep = {"kv_cache"} if depth == "cache" else {"weights", "kv_cache"}
        self.discarded = depth == "discard"
        self.calls.append(f"sleep {depth}")

    async def wake(self, part):
        self.asleep.remove(part)
        self.calls.append(f"wake {part}")

    async def shutdown(self):
        self.closed = True


class Waiting:
    """A call in the queue of the fake; it samples when the gate is open."""

    def __init__(self, backend: FakeBackend, call) -> None:
        self.backend, self.call, self.before = backend, call, backend.version

    async def completions(self):
        key = self.call.name if self.call.seed is None else self.call.seed
        await self.backend.gates.get(key, self.backend.gate).wait()
        if self.backend.broken:
            raise self.backend.broken
        adapter = self.call.adapter
        if adapter:
            assert self.backend.loras[adapter.number] == adapter.name, "an adapter is there until nobody draws with it"
        mark = adapter.number if adapter else 200 + self.backend.version
        changes = ((1, self.backend.version),) if self.backend.version != self.before else ()
        plain = Completion((), (-0.5, -0.25), "length", self.before, changes)
        seed = self.call.seed or 0
        return [replace(plain, token_ids=((seed + k) % 100, mark)) for k in range(self.call.count)]


@dataclass(frozen=True)
class FakeVllmSpec(VllmSpec):
    """Makes the sampler on a fake engine, in any process."""

    def make(self) -> VllmSampler:
        options = Options(self.config, self.memory, self.max_staleness, self.deterministic)
        return VllmSampler(self.model, self.policies, options, start=FakeBackend.start)
