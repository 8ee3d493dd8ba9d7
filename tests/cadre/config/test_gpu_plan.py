"""What a dry run says of a GPU that is pretended, by numbers worked out by hand."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cadre.config import engine_validation, gpu_plan, resolve
from cadre.config.dry_run import ResourceEstimate, estimate_resources, format_estimate
from cadre.config.experiment import load
from cadre.config.gpu_plan import EngineOnGpu, GpuPlan, format_gpu_plan
from cadre.engines.factory import SAMPLERS
from cadre.engines.torch import estimate, memory
from cadre.engines.torch import model as torch_model
from cadre.engines.torch.memory import GIB
from cadre.engines.vllm import engine as vllm_engine
from cadre.settings import PolicyConfig, VllmConfig
from tests.cadre.engines import tiny

RECIPE = "plan-path-qwen3-1.7b-L1"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU of 80 GiB where vLLM is installed; `total` may be changed."""
    facts = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total=80 * GIB, total_memory=80 * GIB)
    monkeypatch.setattr(torch_model, "pick_device", lambda device: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(memory, "total_and_free", lambda device: (facts.total, facts.total))
    monkeypatch.setattr(estimate, "measure_product", lambda device, dtype, vectors: vectors * 1e-12)
    monkeypatch.setattr(estimate, "measure_activations", lambda name, policy, checkpointing, tokens: 2_000_000 * tokens)
    for module in (resolve, engine_validation):
        monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr(resolve, "count_gpus", lambda: 1)
    return facts


def estimated(*changes: str, recipe: str = RECIPE) -> ResourceEstimate:
    return estimate_resources(load(recipe, list(changes)))


def the_engine(found: ResourceEstimate) -> EngineOnGpu:
    assert found.gpu is not None
    (engine,) = found.gpu.engines
    return engine


WHOLE = ("team={policies: {one: {model: Qwen/Qwen3-1.7B, dtype: bfloat16}}, roles: {tool: one, planner: one}}",)


def test_a_whole_model_with_vllm_by_hand(gpu: SimpleNamespace) -> None:
    found = estimated(*WHOLE, "vllm.context=2048", "vllm.sequences=128")
    engine, count = the_engine(found), found.policies["one"].sizes.parameters
    # float32 masters here, bfloat16 there; a gradient and two moments; 28 layers of 8 heads of 128, keys and values.
    assert (engine.held, engine.copy, engine.training, engine.copies) == (4 * count, 2 * count, 12 * count, 2 * count)
    slot = 2 * 28 * 8 * 128 * 2
    assert engine.cache == 128 * (2048 // 16 + 2) * 16 * slot
    # 4 and 2 bytes of each of 1.7 billion weights and 28.4 GiB of cache are less than half of 80 GiB: nothing sleeps.
    assert engine.held + engine.copy + engine.cache < 40 * GIB
    assert engine.sleep == "none"
    # 2 MB of activations, and a score of two bytes for each of 151,936 words.
    assert engine.token == 2_000_000 + 2 * 151_936
    free = 80 * GIB - engine.held - engine.copy - engine.cache - engine.training - engine.copies
    assert engine.tokens == int(0.75 * free / engine.token) // 1024 * 1024
    assert not engine.is_set
    assert found.gpu is not None
    assert found.gpu.sampling == 18 * count + engine.cache
    assert found.gpu.learning == 20 * count + engine.cache + engine.token * engine.tokens
    assert found.gpu.fits
    text = "\n".join(format_estimate(found))
    assert "on NVIDIA H100 80GB HBM3 (80 GiB), as a run would choose it:" in text
    assert f"  one: micro-batches of {engine.tokens:,} tokens (by free memory), 2.3 MB a token" in text
    assert "while learning it frees nothing (vllm.sleep: none)" in text
    assert "it fits: " in text


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
    assert (engine.tokens, engine.is_set, engine.copies) == (2048, True, 0)
    gpu.total = 12 * GIB
    assert the_engine(estimated("vllm.context=2048")).sleep == "offload"


def test_torch_samples_with_the_learners_weights(gpu: SimpleNamespace) -> None:
    engine = the_engine(estimated(*WHOLE, "sampling.engine=torch"))
    # Half of what weights and training leave of 80 GiB, as a power of two.
    assert (engine.copy, engine.cache, engine.sleep, engine.asleep) == (0, 16 * GIB, "", 0)


def test_what_does_not_fit_is_said_with_remedies(gpu: SimpleNamespace) -> None:
    gpu.total = 24 * GIB
    found = estimated(*WHOLE)
    assert found.gpu is not None
    assert not found.gpu.fits
    assert the_engine(found).tokens == 1024  # the least
    text = "\n".join(format_estimate(found))
    assert "it does NOT fit: " in text
    assert "lower sampling.memory or vllm.context" in text
    assert "set learner.gradient_checkpointing=true, or train adapters (team.policies.*.lora)" in text


def test_two_models_share_the_gpu_and_learn_in_turn() -> None:
    one = EngineOnGpu(
        ["a"], 2 * GIB, 5 * GIB, "cache", 4 * GIB, 12 * GIB, 2 * GIB, 1 << 20, 1024, False, SAMPLERS["vllm"]
    )
    other = EngineOnGpu(["b"], 0, 3 * GIB, "", 1 * GIB, 2 * GIB, 0, 1 << 20, 2048, True)
    plan = GpuPlan("X", 40 * GIB, [one, other])
    assert plan.sampling == (2 + 5 + 4 + 12 + 3 + 1 + 2) * GIB
    assert plan.learning == (2 + 4 + 12 + 1 + 2) * GIB + 3 * GIB  # copies and a GiB of one, or two GiB of the other
    assert list(format_gpu_plan(plan)) == [
        "on X (40 GiB), as a run would choose it:",
        "  a: sampled by vLLM with weights of its own (2.0 GiB), 5.0 GiB of keys and values; while learning it frees "
        "its KV cache (vllm.sleep: cache)",
        "  a: micro-batches of 1,024 tokens (by free memory), 1.0 MB a token: 1.0 GiB",
        "  b: sampled by torch, 3.0 GiB of keys and values",
        "  b: micro-batches of 2,048 tokens (as set), 1.0 MB a token: 2.0 GiB",
        "it fits: 29 GiB while sampling, 24 while learning, of 40",
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
    assert list(first.devices) == ["cuda:0"]
    assert first.gpu is not None
    assert [engine.names for engine in first.gpu.engines] == [["one"], ["two"]]
    assert list(second.devices) == ["cuda:0", "cuda:1"]
    assert second.gpu is None


def test_the_cache_is_what_vllm_would_be_given(gpu: SimpleNamespace, tmp_path: Path) -> None:
    folder = tiny.build(tmp_path, "llama")
    sizes = estimate.measure(str(folder), PolicyConfig(model=str(folder), dtype="bfloat16"))
    config = VllmConfig(sequences=8, context=64)
    theirs = vllm_engine.default_cache_bytes(str(folder), PolicyConfig(model=str(folder), dtype="bfloat16"), config, 64)
    experiment = SimpleNamespace(
        sampler_settings=lambda kind: config,
        separately_sampled={"p": SAMPLERS["vllm"]},
        models={"p": str(folder)},
        policies={"p": PolicyConfig(model=str(folder), dtype="bfloat16")},
        samplers={"p": SimpleNamespace(memory=None)},
    )
    ours = gpu_plan._cache_bytes(experiment, ["p"], SAMPLERS["vllm"], sizes, 80 * GIB)
    assert ours == theirs == 8 * (64 // 16 + 2) * 16 * sizes.sequence.slot


def test_on_a_cpu_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "measure_product", lambda device, dtype, vectors: vectors * 1e-12)
    found = estimated(recipe="plan-path")
    assert found.gpu is None
    assert "as a run would choose it" not in "\n".join(format_estimate(found))
