"""Memory of a device: how much sampling may take, batches that fit into it, and freed memory that is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from cadre.engines import host
from cadre.engines.host import NO_LIMIT
from cadre.engines.torch import TorchEngine, memory
from cadre.engines.torch.memory import (
    GIB,
    MIN_SAMPLING,
    SequenceMemory,
    choose_sampling_memory,
    floor_power_of_two,
    split_batches,
)
from cadre.engines.torch.request_batcher import GenerationRequest
from cadre.team import SamplingActivity
from cadre.types import Sampling
from tests.cadre.engines import tiny

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def devices(monkeypatch: pytest.MonkeyPatch, total: float, free: float) -> None:
    monkeypatch.setattr(memory, "total_and_free", lambda device: (int(total * GIB), int(free * GIB)))


def test_powers_of_two() -> None:
    assert [floor_power_of_two(number) for number in (1, 2, 3, 4, 1023, 1024)] == [1, 2, 2, 4, 512, 1024]


def test_a_quarter_of_a_cpu_and_half_of_a_gpu_beside_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU: 24 / 4 = 6, less than 20 / 2; (24 - 12) / 4 = 3. GPU: (140 - 28) / 2 = 56, less than 3/4 of 130."""
    devices(monkeypatch, 24.0, 20.0)
    assert choose_sampling_memory(CPU, 0, 1) == 4 * GIB
    assert choose_sampling_memory(CPU, 12 * GIB, 1) == 2 * GIB
    devices(monkeypatch, 140.0, 130.0)
    assert choose_sampling_memory(GPU, 28 * GIB, 1) == 32 * GIB


def test_engines_share_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 / 2 / 4 = 3, and 20 / 2 / 2 = 5 of what is free."""
    devices(monkeypatch, 24.0, 20.0)
    assert choose_sampling_memory(CPU, 0, 2) == 2 * GIB


def test_others_on_the_device_change_it_only_when_little_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """6 of 24 are 4 as a power of two, and as long as half of what is free is 4."""
    results = []
    for free in (24.0, 16.0, 8.1, 7.9, 0.1):
        devices(monkeypatch, 24.0, free)
        results.append(choose_sampling_memory(CPU, 0, 1))
    assert results == [4 * GIB, 4 * GIB, 4 * GIB, 2 * GIB, MIN_SAMPLING]


def test_what_linux_says(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 10 kB\nMemFree: 3 kB\nMemAvailable:    7 kB\n")
    assert host.read_meminfo("MemAvailable", tmp_path / "meminfo") == 7 * 1024
    assert host.read_meminfo("MemAvailable", tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("membership", "limits", "minimum"),
    [
        ("0::/\n", {"memory.max": "4096"}, 4096),
        ("0::/\n", {"memory.max": "max"}, NO_LIMIT),
        ("0::/slice/job\n", {"slice/job/memory.max": "max", "slice/memory.max": "8192", "memory.max": "16384"}, 8192),
        ("0::/slice/job\n", {"slice/job/memory.max": "512", "slice/memory.max": "8192"}, 512),
        ("0::/not/seen/here\n", {"memory.max": "4096"}, 4096),
        ("1:cpu:/\n4:hugetlb,memory:/a/b\n0::/\n", {"memory/a/memory.limit_in_bytes": "2048"}, 2048),
        ("4:memory:/a\n", {"cpu/a/memory.limit_in_bytes": "1"}, NO_LIMIT),
    ],
)
def test_what_control_groups_say(tmp_path: Path, membership: str, limits: dict[str, str], minimum: int) -> None:
    (tmp_path / "own").write_text(membership)
    for name, limit in limits.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(f"{limit}\n")
    assert host.cgroup_limit(tmp_path / "own", tmp_path / "mount") == minimum
    assert host.cgroup_limit(tmp_path / "nowhere", tmp_path / "mount") == NO_LIMIT


def test_this_machine() -> None:
    total, free = memory.total_and_free(CPU)
    assert 0 < free <= total


def request(count: int, prompt: int = 10, limit: int = 10) -> GenerationRequest:
    return GenerationRequest("p", (1,) * prompt, count, limit, Sampling(), 0)


def counts(batches: list[list[GenerationRequest]]) -> list[list[int]]:
    return [[item.count for item in batch] for batch in batches]


def test_bytes_of_a_sequence() -> None:
    """Keys and values of 2 heads of 8 in 3 layers, 2 bytes each; 20 bytes for each of 100 scores."""
    config = LlamaConfig(
        vocab_size=100, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3
    )
    assert SequenceMemory.from_config(config, torch.bfloat16) == SequenceMemory(slot=2 * 2 * 8 * 3 * 2, scores=2000)


def test_a_batch_has_what_fits_and_a_larger_request_is_alone() -> None:
    """20 tokens a sequence of one byte each, and one for its scores."""
    memory = SequenceMemory(slot=1, scores=1)
    assert counts(split_batches([request(4)] * 5, memory, 2 * 4 * 21)) == [[4, 4], [4, 4], [4]]
    assert counts(split_batches([request(4)] * 3, memory, 2 * 4 * 21 - 1)) == [[4], [4], [4]]
    assert counts(split_batches([request(1), request(9), request(1)], memory, 21)) == [[1], [9], [1]]


def test_the_longest_counts_for_all() -> None:
    """The third would make the first two as long as itself: 3 * 41 bytes."""
    memory = SequenceMemory(slot=1, scores=1)
    requests = [request(1), request(1), request(1, prompt=30)]
    assert counts(split_batches(requests, memory, 3 * 41)) == [[1, 1, 1]]
    assert counts(split_batches(requests, memory, 3 * 41 - 1)) == [[1, 1], [1]]


SCRIPT = """
import resource, sys
import torch
from cadre.engines.torch import memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(open("/proc/self/statm").read().split()[1])

if sys.argv[1] == "keep":
    assert memory.keep_freed_memory()
def four():
    [torch.ones(1_000_000) for _ in range(4)]

four()
before, began = resident(), faults()
for _ in range(5):
    four()
again = faults() - began
memory.release_freed_memory()
print(again, before - resident())
"""


def pages(kind):
    """Pages that five times four blocks of 4 MB took anew after a first four, and how many giving back set free."""
    # An interpreter of its own: the allocator of a forked process has pages that it shares with its parent.
    result = subprocess.run([sys.executable, "-c", SCRIPT, kind], check=True, capture_output=True, text=True)
    again, freed = map(int, result.stdout.split())
    return again, freed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_used_again_and_can_be_given_back():
    remaining, _ = pages("leave")
    again, freed = pages("keep")
    assert 3 * again < remaining
    assert freed > 0.9 * 16_000_000 / 4096


def test_an_engine_that_is_not_trained_samples_in_the_memory_of_its_moments(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients and two moments are 12 bytes a weight, which an evaluation does not have."""
    policies = {"p": tiny.policy(folders["llama"])}
    reserved: list[int] = []
    monkeypatch.setattr(memory, "choose_sampling_memory", lambda device, size, engines: reserved.append(size) or GIB)
    for is_trained in (True, False):
        engine = TorchEngine(folders["llama"], policies, 0, is_trained=is_trained)
        weights = sum(weight.numel() for weight in engine.loaded.model.parameters())
        engine.close()
    assert reserved == [(4 + 12) * weights, 4 * weights]


def test_tokens_are_counted_while_they_are_drawn(folders: dict[str, Path]) -> None:
    engine = TorchEngine(folders["llama"], {"p": tiny.policy(folders["llama"])}, 0)
    activity = SamplingActivity([engine, engine])
    ((*samples,),) = tiny.sample(engine, tiny.request("count", count=3, max_tokens=6))
    assert activity.tokens == engine.sampled_tokens >= sum(len(sample.token_ids) for sample in samples) > 0
    activity.count(samples)
    assert activity.decisions == 1
    engine.close()
