"""Metrics of a run on GPUs, by hand and in a run whose GPU is pretended."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cadre.cli.runs import format_status
from cadre.config.resolve import resolve
from cadre.engines.torch import model as torch_model
from cadre.learn.prefix_tree import PrefixTree
from cadre.runs.progress import Progress, format_gpu, read_status
from cadre.settings import LossConfig
from cadre.training import loop
from cadre.training.metrics import (
    GpuMeter,
    GpuPeaks,
    PolicyCost,
    find_peaks,
    longest_chain,
    make_gpu_meter,
)
from cadre.types import Branch, Node, Reward, Sample, Task, TrainingSequence, Tree
from tests.helpers.training import configured, play

PEAKS = GpuPeaks(bandwidth=1000.0, flops=10_000.0)
COSTS = {
    "p": PolicyCost(engine=0, learning_flops=60.0, weight_bytes=50.0, slot_bytes=2.0),
    "q": PolicyCost(engine=1, learning_flops=40.0, weight_bytes=30.0, slot_bytes=1.0),
}


def sample(policy: str, prompt: int, tokens: int) -> Sample:
    return Sample("r", policy, "", (0,) * prompt, (0,) * tokens, (0.0,) * tokens, "stop", 0)


def node(samples: dict[str, tuple[Sample, ...]], child: Node | None = None) -> Node:
    return Node(0, {}, samples, (Branch({}, Reward(0.0), child is None, False, child=child),))


def sequence(ids: tuple[int, ...], policy: str = "p", advantage: float = 1.0) -> TrainingSequence:
    """Two tokens of prompt, the others trained."""
    mask = (False, False) + (True,) * (len(ids) - 2)
    advantages = tuple(advantage if inside else 0.0 for inside in mask)
    return TrainingSequence(policy, "r", ids, mask, (0.0,) * len(ids), advantages, 0)


# A decision of p and q at once, then one of p: samples of 3 and 5 tokens and of 4, then of 2.
TREE = Tree(
    Task("t", {}),
    node(
        {"one": (sample("p", 10, 3), sample("p", 10, 5)), "two": (sample("q", 6, 4),)},
        node({"one": (sample("p", 20, 2),)}),
    ),
)


def test_the_longest_chain_counts_answers_that_follow_one_another() -> None:
    assert longest_chain(TREE.root, {"p"}) == 5 + 2
    assert longest_chain(TREE.root, {"q"}) == 4
    assert longest_chain(TREE.root, {"p", "q"}) == 5 + 2


def test_sampling_by_hand() -> None:
    # Keys and values of p: 3 * 10 + 0 + 1 + 2, 5 * 10 + 0 + 1 + 2 + 3 + 4, 2 * 20 + 0 + 1, of 2 bytes; of q: 4 * 6 + 6.
    values = 2 * (33 + 60 + 41) + 30
    weights = 7 * 50 + 4 * 30
    meter = GpuMeter(COSTS, LossConfig(), PEAKS)
    assert meter.sampling_metrics([TREE], 2.0) == {
        "gpu/sampling_tokens_per_s": 7.0,
        "gpu/sampling_bandwidth_fraction": (values + weights) / 2000.0,
    }
    # Trees are sampled side by side, in as many steps, unless there are more sequences than are decoded at once.
    assert meter.bytes_read([TREE, TREE], []) == weights
    both = [item for _ in range(2) for item in [sample("p", 10, 3), sample("p", 10, 5), sample("p", 20, 2)]]
    narrow = {"p": PolicyCost(0, 60.0, 50.0, 0.0, sequences=2)}
    assert GpuMeter(narrow, LossConfig(), PEAKS).bytes_read([TREE, TREE], both) == 10 * 50.0
    # On two GPUs it is half of what both can read.
    pair = GpuMeter(COSTS, LossConfig(), PEAKS, gpus=2).sampling_metrics([TREE], 2.0)
    assert pair["gpu/sampling_bandwidth_fraction"] == (values + weights) / 4000.0


def test_learning_by_hand() -> None:
    # Tokens that are read by no other are not run at the end: 1 2 3 4 and 1 2 3 share 1 2 3, and 9 8 7 is alone.
    sequences = [sequence((1, 2, 3, 4, 5)), sequence((1, 2, 3, 7)), sequence((9, 8, 7, 6))]
    sequences += [sequence((5, 5, 5), "q"), sequence((6, 6, 6, 6), "q", advantage=0.0), sequence((1, 1, 1), "remote")]
    meter = GpuMeter(COSTS, LossConfig(), PEAKS)
    assert meter.trained_tokens(sequences) == {"p": 4 + 3, "q": 2}
    ordered = sorted(sequences[:3], key=lambda sample: sample.token_ids)
    assert len(PrefixTree.of(ordered).token_ids) == 7
    assert meter.learning_metrics(sequences, 0.5) == {
        "gpu/learning_tokens_per_s": 18.0,
        "gpu/learning_mfu": (7 * 60 + 2 * 40) / 5000.0,
    }


def test_an_unknown_gpu_has_no_fractions() -> None:
    meter = GpuMeter(COSTS, LossConfig(), None)
    assert meter.sampling_metrics([TREE], 2.0).keys() == {"gpu/sampling_tokens_per_s"}
    assert meter.learning_metrics([sequence((1, 2, 3))], 2.0) == {"gpu/learning_tokens_per_s": 1.0}


@pytest.mark.parametrize(
    ("name", "bandwidth", "flops"),
    [
        ("NVIDIA H200", 4.8e12, 989e12),
        ("NVIDIA H200 NVL", 4.8e12, 835e12),
        ("NVIDIA GH200 480GB", 4.0e12, 989e12),
        ("NVIDIA H100 80GB HBM3", 3.35e12, 989e12),
        ("NVIDIA H100 PCIe", 2.0e12, 756e12),
        ("NVIDIA A100-SXM4-80GB", 2.0e12, 312e12),
        ("NVIDIA A100-SXM4-40GB", 1.555e12, 312e12),
        ("NVIDIA GeForce RTX 4090", 1.008e12, 165e12),
    ],
)
def test_peaks_of_known_gpus(name: str, bandwidth: float, flops: float) -> None:
    assert find_peaks(name) == GpuPeaks(bandwidth, flops)


def test_peaks_of_an_unknown_gpu() -> None:
    assert find_peaks("NVIDIA GeForce GTX 1060") is None


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 by its name, for the meter alone; models stay on the CPU."""
    monkeypatch.setattr(torch_model, "pick_device", lambda device: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")


@pytest.mark.usefixtures("pretended_gpu")
def test_costs_follow_from_the_models(speaker: Path) -> None:
    lora = {"model": "seed", "lora": {"rank": 4}}
    config = configured(
        speaker, env="Relay", team={"policies": {"a": lora, "b": str(speaker)}, "roles": {"scout": "a", "runner": "b"}}
    )
    experiment = resolve(config)
    meter = make_gpu_meter(experiment)
    assert meter is not None
    assert (meter.peaks, meter.gpus) == (find_peaks("NVIDIA H200"), 1)
    from transformers import AutoModelForCausalLM

    for name, operations in (("a", 4), ("b", 6)):
        model = AutoModelForCausalLM.from_pretrained(experiment.models[name])
        text = model.config.get_text_config()
        weights = sum(weight.numel() for weight in model.parameters())
        if not text.tie_word_embeddings:
            weights -= text.vocab_size * text.hidden_size
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        slot = 2 * text.num_key_value_heads * size * text.num_hidden_layers * 4  # keys and values, float32
        cost = meter.costs[name]
        assert (cost.learning_flops, cost.weight_bytes, cost.slot_bytes) == (operations * weights, 4 * weights, slot)
    assert meter.costs["a"].engine != meter.costs["b"].engine


def test_gpus_are_counted_once_and_the_peak_is_that_of_the_gpus_that_hold_weights(
    speaker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak was that of the first GPU, which a policy on another one does not use; cuda and cuda:0 were two GPUs."""
    peaks, reset = {"cuda:0": 1e9, "cuda:1": 3e9}, list[str]()
    monkeypatch.setattr(torch_model, "pick_device", lambda device: torch.device("cuda" if device == "auto" else device))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: reset.append(device))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peaks[device])

    def meter(first: str, second: str) -> GpuMeter:
        policies = {"a": {"model": "seed", "device": first}, "b": {"model": str(speaker), "device": second}}
        team = {"policies": policies, "roles": {"scout": "a", "runner": "b"}}
        gpu_meter = make_gpu_meter(resolve(configured(speaker, env="Relay", team=team)))
        assert gpu_meter is not None
        return gpu_meter

    assert meter("auto", "cuda:0").gpus == 1
    other_meter = meter("cuda:1", "cuda:1")
    other_meter.reset_peak()
    assert (other_meter.gpus, reset, other_meter.peak_gb()) == (1, ["cuda:1"], 3.0)
    both = meter("auto", "cuda:1")
    assert (both.gpus, both.peak_gb()) == (2, 3.0)


def test_a_run_on_cpus_has_none_of_them(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    play(configured(speaker, train={"steps": 1, "tasks_per_step": 2}), tmp_path / "run", quiet)
    (line,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert not [name for name in line if name.startswith("gpu/")]
    assert {name for name in line if name.startswith("time/")} == {"time/wait_s", "time/sample_s", "time/learn_s"}
    assert read_status(tmp_path / "run")["gpu"] == {}


def test_a_run_on_a_gpu_logs_prints_and_shows_them(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = PolicyCost(engine=0, learning_flops=6e6, weight_bytes=2e6, slot_bytes=1e3)
    meter = GpuMeter({"shared": cost}, LossConfig(), GpuPeaks(1e12, 1e12))
    peaks = iter([1.5e9, 3.25e9] * 2)
    monkeypatch.setattr(loop, "make_gpu_meter", lambda experiment: meter)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(peaks))
    out, folder = io.StringIO(), tmp_path / "run"
    console = Console(file=out, soft_wrap=True)
    play(configured(speaker, train={"steps": 2, "tasks_per_step": 2}), folder, console)
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        assert (line["gpu/sampling_peak_gb"], line["gpu/learning_peak_gb"]) == (1.5, 3.25)
        assert 0 < line["time/update_s"] <= line["time/learn_s"]
        assert line["gpu/sampling_tokens_per_s"] == pytest.approx(line["rollout/tokens"] / line["time/sample_s"])
        trained = line["gpu/learning_tokens_per_s"] * line["time/update_s"]
        assert trained == pytest.approx(round(trained))
        assert line["gpu/learning_mfu"] == pytest.approx(trained * 6e6 / 1e12 / line["time/update_s"])
        assert 0 < line["gpu/sampling_bandwidth_fraction"] < 1
    assert out.getvalue().count("    GPU: sampling ") == 2
    assert "peak 1.5 GB" in out.getvalue()
    assert "peak 3.2 GB" in out.getvalue()
    status = read_status(folder)
    assert status["gpu"]["gpu/learning_peak_gb"] == 3.25
    (shown,) = [text for text in format_status(status, 0.0) if text.startswith("GPU")]
    assert shown.startswith("GPU        sampling ")


def test_lines_of_a_step_on_a_gpu() -> None:
    metrics = {
        "time/sample_s": 1.25,
        "time/update_s": 0.84,
        "time/sync_s": 0.31,
        "time/wake_s": 0.1,
        "gpu/learning_mfu": 0.352,
        "gpu/sampling_bandwidth_fraction": 0.481,
        "gpu/learning_peak_gb": 61.04,
        "gpu/sampling_peak_gb": 12.0,
        "gpu/learning_tokens_per_s": 97_217.9,
        "gpu/sampling_tokens_per_s": 52_429.0,
    }
    assert format_gpu(metrics) == [
        "    GPU: sampling 1.2 s (52,429 tok/s, 48% of bandwidth, peak 12.0 GB),",
        "    learning 0.8 s (97,218 tok/s, 35% MFU, peak 61.0 GB), sync 0.3 s, wake 0.1 s",
    ]
    assert format_gpu(metrics | {"time/sleep_s": 100.0})[0].startswith("    GPU: sampling")
    fractions = ("gpu/learning_mfu", "gpu/sampling_bandwidth_fraction")
    unknown = {name: value for name, value in metrics.items() if name not in fractions}
    lines = [
        "    GPU: sampling 1.2 s (52,429 tok/s, peak 12.0 GB),",
        "    learning 0.8 s (97,218 tok/s, peak 61.0 GB), sync 0.3 s, wake 0.1 s",
    ]
    assert format_gpu(unknown) == lines
    assert format_gpu({"time/sample_s": 1.0}) == []
    out = io.StringIO()
    rest = {"rollout/success": 0.5, "rollout/tokens": 40.0, "time/wait_s": 3.0, "time/learn_s": 1.0, "one/reward": 1.0}
    Progress(Console(file=out, soft_wrap=True), steps=2).step(0, rest | unknown)
    assert out.getvalue().splitlines() == [
        "step 1/2  reward one +1.00  success 50%  4 s left",
        *lines,
    ]
