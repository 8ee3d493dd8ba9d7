"""The sampler in front of a stand-in: rounds, versions, cancelled and failed requests, weights."""

import asyncio
import gc
from pathlib import Path

import pytest
import torch

from cadre.engines.torch import TorchEngine
from cadre.engines.vllm import VllmSampler
from cadre.engines.vllm.engine import Options
from cadre.errors import EngineError
from cadre.rollout.batching import gather
from cadre.settings import LoraConfig
from cadre.team import Weights
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import request
from tests.cadre.engines.vllm.fake_backend import FakeBackend

LORA = LoraConfig(rank=2, alpha=4)


@pytest.fixture
def sampler(folders):
    """Make samplers of policies on one base, each in front of a stand-in: `sampler("planner", "tool")`."""
    created = []

    def make(*adapters, frozen=(), options=None):
        folder = folders["llama"]
        policies = {name: tiny.policy(folder, lora=LORA) for name in adapters}
        policies |= {name: tiny.policy(folder, frozen=True) for name in frozen}
        created.append(
            VllmSampler(folder, policies or {"p": tiny.policy(folder)}, options or Options(), FakeBackend.start)
        )
        return created[-1]

    yield make
    for item in created:
        item.close()


def drawn(sampler, *requests):
    return asyncio.run(gather(*(sampler.sample(request) for request in requests)))


def adapter(folders, version, policy="planner"):
    engine = TorchEngine(folders["llama"], {policy: tiny.policy(folders["llama"], lora=LORA)}, version)
    tensors = {name: value.detach().clone() for name, value in engine.parameters(policy).items()}
    engine.close()
    return Weights(policy, version, tensors=tensors)


def test_a_round_goes_in_together_and_each_answer_is_its_own(sampler):
    vllm_sampler = sampler("planner", "tool")
    first, second = drawn(
        vllm_sampler, request("a", 2, key=7, policy="planner"), request("b", 3, key=50, policy="tool")
    )
    assert vllm_sampler._backend.calls == ["pause", ("add", "r-0", None), ("add", "r-1", None), "resume"]
    assert [sample.token_ids[0] for sample in first] == [7, 8]
    assert [sample.token_ids[0] for sample in second] == [50, 51, 52]
    assert {sample.policy for sample in second} == {"tool"}


class Turns:
    """A slow episode of one turn and a quick one of three, played at once; `ended` are their turns in order."""

    def __init__(self, created, slow, initial):
        self.made, self.ended, self.before = created, [], initial  # turns that end before the slow one may
        created._backend.gates[slow] = self.slow = asyncio.Event()

    async def play(self):
        async with asyncio.timeout(20):
            finish = asyncio.create_task(self.finish_slow())
            await gather(self.episode("slow", 1), self.episode("quick", 3))
            await finish

    async def episode(self, name, turns):
        for turn in range(turns):
            await self.made.sample(request(name, key=(100 if name == "quick" else 7) + turn, policy="planner"))
            self.ended.append(name)

    async def finish_slow(self):
        while len(self.ended) < self.before:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # for turns that should have waited
        self.ended.append("waited")
        self.made._thread.loop.call_soon_threadsafe(self.slow.set)


def test_without_batches_a_slow_episode_holds_up_nobody(sampler):
    vllm_sampler = sampler("planner", options=Options(deterministic=False))
    turns = Turns(vllm_sampler, "r-0", initial=3)
    asyncio.run(turns.play())
    assert turns.ended == ["quick", "quick", "quick", "waited", "slow"]
    assert vllm_sampler._backend.seeds == [None] * 4
    assert {call for call in vllm_sampler._backend.calls if not isinstance(call, tuple)} == set()


def test_deterministic_batches_wait_for_the_slowest(sampler):
    vllm_sampler = sampler("planner", options=Options(deterministic=True))
    turns = Turns(vllm_sampler, 7, initial=1)
    asyncio.run(turns.play())
    assert turns.ended == ["quick", "waited", "slow", "quick", "quick"]
    assert vllm_sampler._backend.seeds == [7, 100, 101, 102]


def test_without_batches_who_is_cancelled_is_aborted(sampler):
    vllm_sampler = sampler("planner", options=Options(deterministic=False))

    async def play():
        vllm_sampler._backend.gate.clear()
        works = [asyncio.create_task(vllm_sampler.sample(request("x", policy="planner"))) for _ in range(2)]
        await asyncio.sleep(0.05)
        works[0].cancel()
        await asyncio.wait([works[0]])
        vllm_sampler._thread.loop.call_soon_threadsafe(vllm_sampler._backend.gate.set)
        return await works[1]

    assert len(asyncio.run(play())) == 1
    assert vllm_sampler._backend.aborted == ["r-0"]


def test_prompts_are_those_of_the_torch_engine(sampler, engine):
    requests = request("hello", 1)
    (actual,), (reference,) = drawn(sampler(), requests)[0], tiny.sample(engine(), requests)[0]
    assert actual.prompt_ids == reference.prompt_ids


def test_samples_carry_the_version_of_their_adapter(sampler, folders):
    vllm_sampler = sampler("planner", "tool", frozen=("judge",))
    asyncio.run(vllm_sampler.load(adapter(folders, 5)))
    names = ("planner", "tool", "judge")
    samples = [siblings[0] for siblings in drawn(vllm_sampler, *(request("x", policy=name) for name in names))]
    assert [sample.version for sample in samples] == [5, 0, 0]
    assert [sample.token_ids[1] for sample in samples] == [1, 200, 200]


def test_files_of_an_adapter_lie_in_memory_until_the_next_and_end_with_the_sampler(sampler, folders):
    vllm_sampler = sampler("planner")
    for version in (1, 2):
        asyncio.run(vllm_sampler.load(adapter(folders, version)))
    root = vllm_sampler._files._root
    assert root.parent == Path("/dev/shm")
    assert [path.name for path in root.glob("planner-*")] == ["planner-v2"]
    assert {path.name for path in (root / "planner-v2").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    vllm_sampler.close()
    assert not root.exists()


def test_an_adapter_of_a_checkpoint_is_read_where_it_lies(sampler, folders, tmp_path):
    engine = TorchEngine(folders["llama"], {"planner": tiny.policy(folders["llama"], lora=LORA)}, 0)
    engine.export("planner", tmp_path)
    engine.close()
    vllm_sampler = sampler("planner")
    asyncio.run(vllm_sampler.load(Weights("planner", 3, tmp_path)))
    asyncio.run(vllm_sampler.load(Weights("planner", 4, tmp_path)))
    assert list(vllm_sampler._backend.loras.values()) == ["planner-v4"]
    assert (tmp_path / "adapter_model.safetensors").is_file()


def test_an_adapter_that_comes_meanwhile_is_not_for_those_under_way(sampler, folders):
    vllm_sampler = sampler("planner", "tool")

    async def play():
        await vllm_sampler.load(adapter(folders, 1))
        vllm_sampler._backend.gate.clear()
        early = asyncio.create_task(vllm_sampler.sample(request("x", policy="planner")))
        await asyncio.sleep(0.05)
        await vllm_sampler.load(adapter(folders, 2))
        vllm_sampler._thread.loop.call_soon_threadsafe(vllm_sampler._backend.gate.set)
        return (await early)[0], (await vllm_sampler.sample(request("x", policy="planner")))[0]

    early, late = asyncio.run(play())
    assert (early.version, late.version) == (1, 2)
    assert early.token_ids[1] != late.token_ids[1]


def test_weights_that_change_on_the_way_are_told_of(sampler, folders):
    vllm_sampler = sampler()

    async def play():
        vllm_sampler._backend.gate.clear()
        early = asyncio.create_task(vllm_sampler.sample(request("x")))
        await asyncio.sleep(0.05)
        await vllm_sampler.load(Weights("p", 3, tensors={"w": torch.ones(2)}))
        vllm_sampler._thread.loop.call_soon_threadsafe(vllm_sampler._backend.gate.set)
        return (await early)[0], (await vllm_sampler.sample(request("x")))[0]

    early, late = asyncio.run(play())
    assert (early.version, early.changes) == (0, ((1, 3),))
    assert (late.version, late.changes) == (3, ())


def test_whole_weights_of_a_folder_are_sent_by_the_names_of_the_checkpoint(sampler, folders):
    vllm_sampler = sampler()
    asyncio.run(vllm_sampler.load(Weights("p", 1, folders["llama"])))
    assert "model.embed_tokens.weight" in vllm_sampler._backend.sent


def test_who_is_cancelled_is_aborted_and_the_others_go_on(sampler):
    vllm_sampler = sampler("planner")

    async def play():
        vllm_sampler._backend.gate.clear()
        works = [asyncio.create_task(vllm_sampler.sample(request("x", key=key, policy="planner"))) for key in (3, 4)]
        await asyncio.sleep(0.05)
        works[0].cancel()
        await asyncio.sleep(0.05)
        vllm_sampler._thread.loop.call_soon_threadsafe(vllm_sampler._backend.gate.set)
        return await works[1]

    (sample,) = asyncio.run(play())
    assert sample.token_ids[0] == 4
    assert vllm_sampler._backend.aborted == ["r-0"]


def test_a_loop_that_ends_leaves_nothing_under_way(sampler):
    vllm_sampler = sampler("planner")

    async def leave():
        vllm_sampler._backend.gate.clear()
        asyncio.create_task(vllm_sampler.sample(request("x", policy="planner")))  # noqa: RUF006
        await asyncio.sleep(0.05)

    asyncio.run(leave())
    assert vllm_sampler._backend.aborted == ["r-0"]
    vllm_sampler._backend.gate.set()
    assert len(drawn(vllm_sampler, request("x", 2, policy="planner"))[0]) == 2


def test_an_engine_that_dies_is_an_error_where_samples_are_waited_for(sampler):
    vllm_sampler = sampler("planner")
    vllm_sampler._backend.broken = EngineError("vLLM's engine has died")
    with pytest.raises(EngineError, match="has died"):
        drawn(vllm_sampler, request("x", policy="planner"), request("y", policy="planner"))


def test_one_that_fails_leaves_nobody_waiting(sampler):
    """One request is answered, one fails, and one would wait for ever: it is cancelled, and raises too."""
    vllm_sampler = sampler("planner")

    backend = vllm_sampler._backend
    backend.gates = {4: asyncio.Event(), 5: asyncio.Event()}

    async def asked(key):
        try:
            (sample,) = await vllm_sampler.sample(request("x", key=key, policy="planner"))
        except EngineError as error:
            return error
        backend.broken = EngineError("vLLM's engine has died")
        vllm_sampler._thread.loop.call_soon_threadsafe(backend.gates[4].set)
        return sample

    first, second, third = asyncio.run(asyncio.wait_for(gather(*(asked(key) for key in (3, 4, 5))), 20))
    assert first.token_ids[0] == 3
    assert all(isinstance(failed, EngineError) and "has died" in str(failed) for failed in (second, third))
    assert backend.aborted == ["r-2"]
    backend.broken = None
    assert len(drawn(vllm_sampler, request("x", 2, policy="planner"))[0]) == 2


def test_what_it_is_refused(sampler, folders):
    vllm_sampler = sampler("planner", frozen=("judge",))
    with pytest.raises(EngineError, match=r"asks for policy 'p', which this engine does not hold; it holds planner"):
        drawn(vllm_sampler, request("x"))
    with pytest.raises(EngineError, match="'judge', which is frozen"):
        asyncio.run(vllm_sampler.load(Weights("judge", 1, folders["llama"])))
    with pytest.raises(EngineError, match="without tensors"):
        asyncio.run(vllm_sampler.load(Weights("planner", 1)))
    with pytest.raises(EngineError, match="context holds 512"):
        drawn(vllm_sampler, request("x" * 600, policy="planner"))
    vllm_sampler.close()
    vllm_sampler.close()
    with pytest.raises(EngineError, match="was closed"):
        drawn(vllm_sampler, request("x", policy="planner"))


def test_a_sampler_that_nobody_closed_ends_its_engine(folders):
    vllm_sampler = VllmSampler(folders["llama"], {"p": tiny.policy(folders["llama"])}, Options(), FakeBackend.start)
    backend, thread = vllm_sampler._backend, vllm_sampler._thread
    del vllm_sampler
    gc.collect()
    assert backend.closed
    assert thread.loop.is_closed()


def test_a_sleeping_sampler_wakes_for_a_round(sampler):
    vllm_sampler = sampler("planner")
    vllm_sampler.sleep("offload")
    drawn(vllm_sampler, request("x", policy="planner"))
    assert vllm_sampler._backend.calls[:4] == ["sleep offload", "wake weights", "wake kv_cache", "resume"]
