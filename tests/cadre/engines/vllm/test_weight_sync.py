"""The order in which an engine is told of weights, awake and asleep, alone and with sequences under way."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest
import torch

from cadre.engines.vllm import weight_sync
from cadre.engines.vllm.adapters import AdapterVersions
from cadre.engines.vllm.engine import Call
from cadre.engines.vllm.weight_sync import AsyncLearner, ColocatedLearner, WeightSync
from cadre.types import Sampling
from tests.cadre.engines.tiny import datum, request, sample
from tests.cadre.engines.vllm.fake_backend import FakeBackend


class Bench:
    """A gate in front of a fake engine with slots for so many adapters."""

    def __init__(self, folder, slots=2, deterministic=True):
        (folder / "adapter_model.safetensors").touch()
        self.folder, self.versions, self.dropped = folder, AdapterVersions(slots), []
        self.backend = FakeBackend()
        self.backend.launch = self
        self.slots, self.deterministic = slots, deterministic
        self.gate = WeightSync(self.backend, self.versions, self.dropped.append, deterministic)

    async def adapter(self, version):
        await self.gate.load_adapter(self.versions.create("planner", version), self.folder)

    def call(self, adapter=None):
        return Call("planner-0", (1,), 1, 2, Sampling(), 7, (2,), adapter)


@pytest.fixture
def bench(tmp_path):
    return lambda **settings: Bench(tmp_path, **settings)


def test_calls_go_in_together(bench):
    async def play():
        gpu_bench = bench()
        await gpu_bench.gate.submit([gpu_bench.call(), gpu_bench.call()])
        return gpu_bench.backend.calls

    assert asyncio.run(play()) == ["pause", ("add", "planner-0", None), ("add", "planner-0", None), "resume"]


def test_a_call_that_need_not_wait_for_others_stops_nothing(bench):
    async def play():
        gpu_bench = bench(deterministic=False)
        await gpu_bench.gate.submit([gpu_bench.call()])
        return gpu_bench.backend.calls

    assert asyncio.run(play()) == [("add", "planner-0", None)]


def test_an_adapter_is_added_while_nothing_runs_and_the_old_one_goes(bench):
    async def play():
        gpu_bench = bench()
        await gpu_bench.adapter(1)
        await gpu_bench.adapter(2)
        return gpu_bench

    trained_run = asyncio.run(play())
    assert trained_run.backend.calls == [
        *("pause", ("adapter", "planner-v1"), "forget", "resume"),
        *("pause", ("adapter", "planner-v2"), ("remove", "planner-v1"), "forget", "resume"),
    ]
    assert [adapter.name for adapter in trained_run.dropped] == ["planner-v1"]


def test_an_adapter_waits_for_room(bench):
    async def play():
        gpu_bench = bench(slots=2)
        await gpu_bench.adapter(1)
        with gpu_bench.versions.use("planner"):
            await gpu_bench.adapter(2)
            third = asyncio.create_task(gpu_bench.adapter(3))
            await asyncio.sleep(0.01)
            assert not third.done()
            assert sorted(gpu_bench.backend.loras.values()) == ["planner-v1", "planner-v2"]
        gpu_bench.gate.end(0)
        await third
        return sorted(gpu_bench.backend.loras.values())

    assert asyncio.run(play()) == ["planner-v3"]


def test_an_adapter_leaves_sequences_under_way_as_they_are(bench):
    async def play():
        gpu_bench = bench()
        await gpu_bench.gate.submit([gpu_bench.call()])
        await gpu_bench.adapter(1)
        gpu_bench.gate.end(1)
        await gpu_bench.adapter(2)
        return [call for call in gpu_bench.backend.calls if call == "forget" or call[0] == "adapter"]

    assert asyncio.run(play()) == [("adapter", "planner-v1"), ("adapter", "planner-v2"), "forget"]


def test_weights_then_prompts_are_forgotten(bench):
    async def play():
        gpu_bench = bench()
        await gpu_bench.gate.load_weights({"w": 1}, 3)
        return gpu_bench.backend.calls

    assert asyncio.run(play()) == ["pause", ("send", 3), "forget", "resume"]


def test_asleep_the_order_is_weights_then_what_is_sent_then_the_cache(bench):
    async def play():
        gpu_bench = bench()
        await gpu_bench.gate.sleep("offload")
        await gpu_bench.gate.sleep("offload")
        await gpu_bench.gate.load_weights({"w": 1}, 3)
        return [call for call in gpu_bench.backend.calls if call not in ("pause", "resume")]

    assert asyncio.run(play()) == ["sleep offload", "wake weights", ("send", 3), "forget", "wake kv_cache"]


def test_without_its_cache_alone_it_keeps_its_weights(bench):
    async def play():
        gpu_bench = bench()
        await gpu_bench.gate.sleep("cache")
        await gpu_bench.gate.load_weights({"w": 1}, 3)
        return [call for call in gpu_bench.backend.calls if call not in ("pause", "resume")]

    assert asyncio.run(play()) == ["sleep cache", ("send", 3), "forget", "wake kv_cache"]


def test_it_goes_from_a_light_sleep_to_a_deep_one_and_not_back(bench):
    async def play():
        gpu_bench = bench()
        for depth in ("cache", "cache", "offload", "cache", "offload"):
            await gpu_bench.gate.sleep(depth)
        await gpu_bench.gate.submit([gpu_bench.call()])
        return [call for call in gpu_bench.backend.calls if "sleep" in call or "wake" in call]

    assert asyncio.run(play()) == ["sleep cache", "sleep offload", "wake weights", "wake kv_cache"]


def test_discarded_weights_are_sent_again_before_anything_is_drawn(bench):
    async def play():
        gpu_bench = bench()
        await gpu_bench.gate.load_weights({"w": 1}, 3, lasting=True)
        await gpu_bench.gate.sleep("discard")
        await gpu_bench.gate.submit([gpu_bench.call()])
        await gpu_bench.gate.sleep("discard")
        await gpu_bench.gate.load_weights({"w": 2}, 4, lasting=True)
        return [call for call in gpu_bench.backend.calls if call not in ("pause", "resume", "forget")]

    assert asyncio.run(play()) == [
        ("send", 3),
        *("sleep discard", "wake weights", ("send", 3), "wake kv_cache", ("add", "planner-0", None)),
        *("sleep discard", "wake weights", ("send", 4), "wake kv_cache"),
    ]


def test_weights_that_cannot_be_sent_again_are_not_discarded(bench):
    async def play():
        gpu_bench = bench()
        await gpu_bench.gate.sleep("discard")
        await gpu_bench.gate.load_weights({"w": 1}, 3)
        await gpu_bench.gate.sleep("discard")
        return [call for call in gpu_bench.backend.calls if "sleep" in call]

    assert asyncio.run(play()) == ["sleep offload", "sleep offload"]


def test_seconds_of_sync_sleep_and_wake_are_counted_apart(bench, monkeypatch):
    """Every look at the clock is a second after the one before."""
    clock = itertools.count()
    monkeypatch.setattr(weight_sync, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))

    async def play():
        gpu_bench = bench()
        await gpu_bench.gate.sleep("offload")
        await gpu_bench.gate.load_weights({"w": 1}, 3)
        return gpu_bench.gate.seconds

    assert asyncio.run(play()) == {"sleep": 1.0, "sync": 1.0, "wake": 2.0}


def test_two_policies_that_are_handed_over_asleep_wake_it_once(bench):
    async def play():
        gpu_bench = bench()
        await gpu_bench.gate.sleep("offload")
        await asyncio.gather(gpu_bench.adapter(1), gpu_bench.adapter(2))
        return [call for call in gpu_bench.backend.calls if "wake" in call or "sleep" in call]

    assert asyncio.run(play()) == ["sleep offload", "wake weights", "wake kv_cache"]


def test_a_call_wakes_it(bench):
    async def play():
        gpu_bench = bench()
        await gpu_bench.gate.sleep("offload")
        await gpu_bench.gate.submit([gpu_bench.call()])
        return gpu_bench.backend.calls, gpu_bench.backend.paused

    text, paused = asyncio.run(play())
    assert text[:4] == ["sleep offload", "wake weights", "wake kv_cache", "resume"]
    assert not paused


def test_it_goes_on_after_an_error(bench, monkeypatch):
    async def play():
        gpu_bench = bench()
        gpu_bench.backend.load_weights = broken
        with pytest.raises(OSError, match="full"):
            await gpu_bench.gate.load_weights({"w": 1}, 3)
        return gpu_bench.backend.paused

    async def broken(weights, version):
        raise OSError("full")

    assert asyncio.run(play()) == 0


class Sleepy:
    """Notes how deep it sleeps, and which part of the GPU is free then."""

    deepest = "offload"

    def __init__(self, free=(0.1, 0.3, 0.8)):
        self.slept, self.free = [], dict(zip((None, "cache", "offload"), free, strict=True))

    def sleep(self, depth):
        self.slept.append(depth)

    def memory(self):
        return self.free[self.slept[-1] if self.slept else None] * 100, 100


def data_of(learner):
    return [datum(item, 1.0) for item in sample(learner, request("x", 2))[0]]


def test_the_sampler_sleeps_while_the_learner_works_and_not_for_what_costs_nothing(learner, tmp_path):
    torch_learner, sampler = learner(learning_rate=1e-3), Sleepy()
    data, colocated = data_of(torch_learner), ColocatedLearner(torch_learner, sampler, "offload")
    assert colocated.policies == ("p",)
    assert colocated.encode("p", request("x").messages) == torch_learner.encode("p", request("x").messages)
    colocated.save(tmp_path / "all")
    colocated.load(tmp_path / "all")
    colocated.export("p", tmp_path / "one")
    assert sampler.slept == []
    colocated.reference_logprobs(data)
    assert sampler.slept == ["offload"]
    assert asyncio.run(colocated.update(data))["p"]["sequences"] == 2
    assert sampler.slept == ["offload"] * 2
    assert asyncio.run(colocated.publish("p")).version == 1


@pytest.mark.parametrize(
    ("free", "first", "later"),
    [
        ((0.6, 0.7, 0.8), [], []),
        ((0.4, 0.7, 0.8), ["cache"], ["cache"]),
        ((0.1, 0.3, 0.8), ["cache", "offload"], ["offload"]),
        ((0.1, 0.2, 0.3), ["cache", "offload"], ["offload"]),
    ],
)
def test_it_sleeps_no_deeper_than_the_learner_needs(learner, monkeypatch, free, first, later):
    torch_learner, sampler = learner(), Sleepy(free)
    data, colocated = data_of(torch_learner), ColocatedLearner(torch_learner, sampler)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", sampler.memory)
    colocated.reference_logprobs(data)
    assert sampler.slept == first
    colocated.reference_logprobs(data)
    assert sampler.slept == first + later


@pytest.mark.parametrize(
    ("depth", "free", "emptied"), [("none", 0.5, 0), ("none", 0.05, 1), ("cache", 0.5, 1), ("offload", 0.5, 1)]
)
def test_spare_memory_goes_back_to_a_sampler_that_needs_it(learner, monkeypatch, depth, free, emptied):
    torch_learner, calls = learner(), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * 100, 100))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    data = data_of(torch_learner)
    monkeypatch.setattr(torch_learner, "update", updated)
    asyncio.run(ColocatedLearner(torch_learner, Sleepy(), depth).update(data))
    assert len(calls) == emptied


async def updated(data):
    return {}


def test_what_is_published_at_once_stays_as_it_was(learner):
    torch_learner = learner(learning_rate=1e-2)
    published = asyncio.run(AsyncLearner(torch_learner).publish("p"))
    initial = {name: tensor.clone() for name, tensor in published.tensors.items()}
    asyncio.run(AsyncLearner(torch_learner).update(data_of(torch_learner)))
    assert all(torch.equal(published.tensors[name], tensor) for name, tensor in initial.items())
    assert not torch.equal(torch_learner.engine.parameters("p")["model.norm.weight"], initial["model.norm.weight"])
