"""The dry run's estimate for a simulated GPU, by numbers worked out by hand."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cadre.config import engine_validation, estimate, resolve
from cadre.config.estimate import (
    DeviceEstimate,
    EngineEstimate,
    ResourceEstimate,
    estimate_resources,
    format_estimate,
)
from cadre.config.experiment import load
from cadre.engines.torch import memory, sizes
from cadre.engines.torch import model as torch_model
from cadre.engines.torch.memory import GIB
from cadre.engines.vllm import engine as vllm_engine
from cadre.settings import PolicyConfig, VllmConfig
from tests.cadre.engines import tiny

RECIPE = "plan-path-qwen3-1.7b-L1"
LONGEST = -(-707 // 3) + 4096  # tokens of its longest prompt, of 707 characters, with an answer


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU of 80 GiB where vLLM is installed; `total` may be changed."""
    facts = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total=80 * GIB, total_memory=80 * GIB)
    monkeypatch.setattr(torch_model, "pick_device", lambda device: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(memory, "total_and_free", lambda device: (facts.total, facts.total))
    monkeypatch.setattr(sizes.Sizes, "activations", lambda self, checkpointing: 2_000_000)
    for module in (resolve, engine_validation):
        monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr(resolve, "count_gpus", lambda: 1)
    return facts


def estimated(*changes: str, recipe: str = RECIPE) -> ResourceEstimate:
    return estimate_resources(load(recipe, list(changes)))


def the_engine(resource_estimate: ResourceEstimate) -> EngineEstimate:
    (engine,) = resource_estimate.engines
    return engine


WHOLE = ("team={policies: {one: {model: Qwen/Qwen3-1.7B, dtype: bfloat16}}, roles: {tool: one, planner: one}}",)


def test_a_whole_model_with_vllm_by_hand(gpu: SimpleNamespace) -> None:
    result = estimated(*WHOLE, "vllm.context=2048", "vllm.sequences=128")
    engine, count = the_engine(result), the_engine(result).parameters
    # float32 masters here, bfloat16 there; a gradient and two moments; 28 layers of 8 heads of 128, keys and values.
    assert (engine.weights, engine.vllm, engine.training, engine.copies) == (
        4 * count,
        2 * count,
        12 * count,
        2 * count,
    )
    slot = 2 * 28 * 8 * 128 * 2
    assert engine.cache == 128 * (2048 // 16 + 2) * 16 * slot
    # 4 and 2 bytes of each of 1.7 billion weights and 28.4 GiB of cache are less than half of 80 GiB: nothing sleeps.
    assert engine.weights + engine.vllm + engine.cache < 40 * GIB
    assert engine.sleep == "none"
    # 2 MB of activations, and a score of two bytes for each of 151,936 words.
    assert engine.token == 2_000_000 + 2 * 151_936
    free = 80 * GIB - engine.held - engine.vllm - engine.cache - engine.copies
    assert engine.microbatch == int(0.75 * free / engine.token) // 1024 * 1024
    assert not engine.is_set
    (device,) = result.devices
    assert device.sampling == 18 * count + engine.cache
    assert device.learning == 20 * count + engine.cache + engine.token * engine.microbatch
    assert device.fits
    text = "\n".join(format_estimate(result))
    assert f"  micro-batches of {engine.microbatch:,} tokens, 2.3 MB a token" in text
    assert "while the learner works vllm.sleep is none" in text
    assert "it fits NVIDIA H100 80GB HBM3 (80 GiB): " in text


@pytest.mark.parametrize(
    ("sequences", "total", "sleep"), [(128, 80, "none"), (128, 60, "cache"), (16, 16, "discard"), (128, 200, "none")]
)
def test_sleep_leaves_half_of_the_gpu_free(gpu: SimpleNamespace, sequences: int, total: int, sleep: str) -> None:
    gpu.total = total * GIB
    assert the_engine(estimated(*WHOLE, "vllm.context=2048", f"vllm.sequences={sequences}")).sleep == sleep


def test_adapters_sleep_on_the_cpu_and_settings_count(gpu: SimpleNamespace) -> None:
    engine = the_engine(
        estimated("vllm.context=2048", "vllm.sleep=offload", "learner.tokens_per_microbatch=2048", "sampling.memory=3")
    )
    assert (len(engine.names), engine.cache, engine.sleep, engine.asleep) == (2, 3 * GIB, "offload", 0)
    assert (engine.microbatch, engine.is_set, engine.copies) == (LONGEST, True, 0)
    gpu.total = 12 * GIB
    assert the_engine(estimated("vllm.context=2048")).sleep == "offload"


def test_torch_samples_with_the_learners_weights(gpu: SimpleNamespace) -> None:
    engine = the_engine(estimated(*WHOLE, "sampling.engine=torch"))
    # Half of what weights and training leave of 80 GiB, as a power of two.
    assert (engine.vllm, engine.cache, engine.sleep, engine.asleep) == (0, 16 * GIB, "", 0)


def test_what_does_not_fit_is_said_with_remedies(gpu: SimpleNamespace) -> None:
    gpu.total = 24 * GIB
    result = estimated(*WHOLE)
    assert not result.devices[0].fits
    assert the_engine(result).microbatch == LONGEST
    text = "\n".join(format_estimate(result))
    assert "it does NOT fit NVIDIA H100 80GB HBM3 (24 GiB): " in text
    assert "lower sampling.memory or vllm.context" in text
    assert "set learner.gradient_checkpointing=true, or train adapters (team.policies.*.lora)" in text


def test_two_models_share_the_gpu_and_learn_in_turn() -> None:
    engine_estimate = EngineEstimate(
        names=["a"], model="A", parameters=7, trained=7, reach="", weights=4 * GIB, reference=0, training=12 * GIB,
        copies=2 * GIB, token=1 << 20, microbatch=1024, is_set=False, vllm=2 * GIB, cache=5 * GIB, sleep="cache",
    )  # fmt: skip
    other_engine_estimate = EngineEstimate(
        names=["b"], model="B", parameters=7, trained=3, reach="half", weights=1 * GIB, reference=0, training=2 * GIB,
        copies=0, token=1 << 20, microbatch=2048, is_set=True, vllm=0, cache=3 * GIB,
    )  # fmt: skip
    device = DeviceEstimate("cuda:0", "X", 40 * GIB, [engine_estimate, other_engine_estimate])
    assert device.sampling == (2 + 5 + 4 + 12 + 3 + 1 + 2) * GIB
    assert device.learning == (2 + 4 + 12 + 1 + 2) * GIB + 3 * GIB  # copies and a GiB of one, or two GiB of the other
    resource_estimate = ResourceEstimate("e", (2, 1), 1, {"a": 2}, 8, 9, False, {}, [device], is_divided=False)
    assert list(format_estimate(resource_estimate)) == [
        "e: 2 training and 1 held-out tasks",
        "a step: 2 samples (2 by a) in 1 batch, at most 8 tokens",
        "the longest prompt that was met: 9 characters",
        "a (A): 7 parameters, 7 trained",
        "  weights 4.0 GiB, gradients and optimiser 12.0 GiB",
        "  sampled by vLLM with weights of its own (2.0 GiB), 5.0 GiB of keys and values; while the learner works "
        "vllm.sleep is cache",
        "  micro-batches of 1,024 tokens, 1.0 MB a token: 1.0 GiB",
        "b (B): 7 parameters, 3 trained; half",
        "  weights 1.0 GiB, gradients and optimiser 2.0 GiB",
        "  sampled by torch, 3.0 GiB of keys, values and scores",
        "  micro-batches of 2,048 tokens, 1.0 MB a token: 2.0 GiB",
        "it fits X (40 GiB): 29.0 GiB while sampling, 24.0 while learning",
    ]


def test_the_first_gpu_is_one_device_with_its_number_and_without(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_model, "pick_device", torch.device)
    lora, roles = "{model: Qwen/Qwen3-0.6B, lora: {rank: 8}, device: %s}", "roles: {tool: one, planner: two}"
    both = [
        f"team={{policies: {{one: {lora % 'cuda'}, two: {lora % name}}}, {roles}}}" for name in ("cuda:0", "cuda:1")
    ]
    first, second = (estimated(change, "sampling.engine=torch") for change in both)
    assert [device.device for device in first.devices] == ["cuda:0"]
    assert [engine.names for engine in first.engines] == [["one"], ["two"]]
    assert [device.device for device in second.devices] == ["cuda:0", "cuda:1"]


def test_the_cache_is_what_vllm_would_be_given(gpu: SimpleNamespace, tmp_path: Path) -> None:
    folder = tiny.build(tmp_path, "llama")
    policy = PolicyConfig(model=str(folder), dtype="bfloat16")
    measure = sizes.measure(str(folder), policy)
    config = VllmConfig(sequences=8, context=64)
    reference = vllm_engine.default_cache_bytes(str(folder), policy, config, 64)
    experiment = SimpleNamespace(config=SimpleNamespace(vllm=config), models={"p": str(folder)}, policies={"p": policy})
    actual = estimate._vllm_cache(experiment, "p", measure, 80 * GIB)
    assert actual == reference == 8 * (64 // 16 + 2) * 16 * measure.sequence.slot


def test_ranks_divide_a_model_so_that_nothing_is_said_of_one_gpu(gpu: SimpleNamespace) -> None:
    result = estimated(*WHOLE, "learner.ranks=2", "sampling.engine=torch")
    assert result.is_divided
    text = "\n".join(format_estimate(result))
    assert "the engines are divided among processes" in text
    assert "fit" not in text
