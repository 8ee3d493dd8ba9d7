"""The dry run's estimate for a simulated GPU, by numbers worked out by hand."""

from types import SimpleNamespace

import pytest
import torch

from cadre.config import checks, resolve
from cadre.config.estimate import (
    EngineEstimate,
    ResourceEstimate,
    estimate_resources,
    format_estimate,
)
from cadre.config.experiment import load
from cadre.engines.torch import memory, sizes
from cadre.engines.torch import model as torch_model
from cadre.engines.torch.memory import GIB

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
    for module in (resolve, checks):
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
    found = estimated(*WHOLE, "learner.tokens_per_microbatch=2048", "sampling.memory=3")
    engine, count = the_engine(found), the_engine(found).parameters
    # float32 masters here, bfloat16 there; a gradient and two moments; a sleeping vLLM holds nothing.
    assert (engine.resident, engine.vllm, engine.cache, engine.asleep) == (16 * count, 2 * count, 3 * GIB, 0)
    # 2 MB of activations, and a score of two bytes for each of 151,936 words; a copy of the weights in bfloat16.
    assert engine.microbatch == LONGEST
    assert engine.learning == LONGEST * (2_000_000 + 2 * 151_936) + 2 * count
    assert found.peaks("cuda:0") == (18 * count + 3 * GIB, 16 * count + engine.learning)
    text = "\n".join(format_estimate(found))
    assert "sampled by vLLM with weights of its own (3.2 GiB), 3.0 GiB of keys and values" in text
    assert "it fits NVIDIA H100 80GB HBM3 (80 GiB): at least " in text


def test_a_sampler_that_does_not_sleep_stays_while_the_learner_works(gpu: SimpleNamespace) -> None:
    engine = the_engine(estimated("vllm.sleep=none", "sampling.memory=3"))
    assert (len(engine.names), engine.asleep) == (2, engine.vllm + 3 * GIB)


def test_torch_samples_with_the_learners_weights(gpu: SimpleNamespace) -> None:
    engine = the_engine(estimated(*WHOLE, "sampling.engine=torch"))
    # Half of what weights and training leave of 80 GiB, as a power of two.
    assert (engine.vllm, engine.cache, engine.asleep) == (0, 16 * GIB, 0)


def test_what_does_not_fit_is_said_with_remedies(gpu: SimpleNamespace) -> None:
    gpu.total = 24 * GIB
    text = "\n".join(format_estimate(estimated(*WHOLE)))
    assert "it does NOT fit NVIDIA H100 80GB HBM3 (24 GiB): " in text
    assert "set learner.gradient_checkpointing=true, or train adapters (team.policies.*.lora)" in text


def test_two_models_share_the_gpu_and_learn_in_turn() -> None:
    one = EngineEstimate(["a"], "A", "cuda:0", "", 7, 7, "", 16 * GIB, 2 * GIB, 5 * GIB, 2 * GIB, 1024, 3 * GIB)
    other = EngineEstimate(["b"], "B", "cuda:0", "", 7, 3, "half", 3 * GIB, 0, 3 * GIB, 0, 2048, 2 * GIB)
    found = ResourceEstimate(
        "e", (2, 1), {"a": 2}, 8, 9, False, {}, [one, other], {"cuda:0": ("X", 40 * GIB)}, is_divided=False
    )
    assert list(format_estimate(found)) == [
        "e: 2 training and 1 held-out tasks",
        "a step: 2 samples (2 by a), at most 8 tokens",
        "the longest prompt that was met: 9 characters",
        "a (A): 7 parameters, 7 trained",
        "  weights, and gradients and optimiser where it is trained: 16.0 GiB",
        "  sampled by vLLM with weights of its own (2.0 GiB), 5.0 GiB of keys and values",
        "  an update with micro-batches of 1,024 tokens: 3.0 GiB more",
        "b (B): 7 parameters, 3 trained; half",
        "  weights, and gradients and optimiser where it is trained: 3.0 GiB",
        "  sampled by torch, 3.0 GiB of keys, values and scores",
        "  an update with micro-batches of 2,048 tokens: 2.0 GiB more",
        "it fits X (40 GiB): at least 29.0 GiB while sampling, 24.0 while learning",
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
    assert list(first.totals) == ["cuda:0"]
    assert [engine.names for engine in first.engines] == [["one"], ["two"]]
    assert list(second.totals) == ["cuda:0", "cuda:1"]


def test_ranks_divide_a_model_so_that_nothing_is_said_of_one_gpu(gpu: SimpleNamespace) -> None:
    result = estimated(*WHOLE, "learner.ranks=2", "sampling.engine=torch")
    assert result.is_divided
    text = "\n".join(format_estimate(result))
    assert "the engines are divided among processes" in text
    assert "fit" not in text


def of_other_gpus(gpus: str, *changes: str) -> str:
    return list(format_estimate(estimate_resources(load(RECIPE, [*WHOLE, *changes]), gpus=gpus)))[-1]


def test_gpus_of_another_machine_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole model of 1.7 billion parameters, 16 bytes each, on four of a cluster's GPUs, and two samplers."""
    monkeypatch.setattr(sizes.Sizes, "activations", lambda self, checkpointing: 2_000_000)
    count = 1_720_574_976
    learning = LONGEST * (2_000_000 + 2 * 151_936)  # without a copy in bfloat16, of which ranks have one layer
    cluster = ("learner.ranks=4", "cluster={samplers: 2, sampler_gpus: 1, learner_gpus: 4}", "sampling.memory=3")
    on_learner = f"{(16 * count / 4 + learning) / GIB:.1f}"
    expected = (
        f"the engines are divided among 6 of 16 GPUs, with at least {on_learner} of 79 GiB on the fullest: they fit"
    )
    assert of_other_gpus("2x8 H100", *cluster) == expected
    assert of_other_gpus("5 H100", *cluster).endswith("they do NOT fit")
    assert of_other_gpus("2x8 15GiB", *cluster).endswith("of 15 GiB on the fullest: they do NOT fit")
    # Ranks of one process share their GPUs with its samplers, which have the weights once more.
    both = f"among 4 of 8 GPUs, with at least {(16 * count / 4 + learning + 4 * count) / GIB + 3:.1f} of 79 GiB"
    assert both in of_other_gpus("8 H100", "learner.ranks=4", "sampling.memory=3")
    # One process uses one of them, and a policy on the CPU none.
    assert of_other_gpus("2x8 H100").startswith("it fits one of these GPUs (79 GiB): at least ")
    on_cpu = WHOLE[0].replace("dtype", "device: cpu, dtype")
    assert "the memory of this machine" in of_other_gpus("2x8 H100", on_cpu)
