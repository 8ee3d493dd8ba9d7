"""vLLM itself, its CPU build, on a tiny model whose head is tied: `make test-vllm`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import torch

from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.engines.vllm import VllmSampler
from cadre.engines.vllm.engine import SCHEDULER, Options
from cadre.engines.vllm.sampler import start_engine
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig, LoraConfig, VllmConfig
from cadre.team import Weights
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import datum, request

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: make test-vllm installs and runs it")
OPTIONS = Options(VllmConfig(context=256, sequences=64), memory=1 << 26)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """vLLM's attention on a CPU takes heads of 32 and more."""
    changes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    return tiny.build(tmp_path_factory.mktemp("vllm"), "llama", **changes)


class EnginePair:
    """vLLM and the torch engine on the same policies."""

    def __init__(self, folder, policies, options=OPTIONS, start=None):
        learners = {name: LearnerConfig() for name, policy in policies.items() if not policy.frozen}
        self.torch = TorchLearner(TorchEngine(folder, policies, 0), TrainingSettings(learners))
        self.vllm = VllmSampler(folder, policies, options, start)
        self.version = dict.fromkeys(policies, 0)

    def draw(self, *requests):
        return asyncio.run(gather(*(self.vllm.sample(request) for request in requests)))

    def change(self, policy, seed):
        """New weights, in place, for the torch engine; as published."""
        torch.manual_seed(seed)
        tensors = self.torch.engine.parameters(policy)
        with torch.no_grad():
            for tensor in tensors.values():
                tensor.add_(torch.randn_like(tensor) * 0.05)
        self.version[policy] += 1
        return Weights(policy, self.version[policy], tensors=tensors)

    def load(self, weights):
        asyncio.run(self.vllm.load(weights))

    def mismatch(self, *requests):
        """Largest difference between vLLM's log-probabilities of what it drew and the torch engine's."""
        samples = [sample for siblings in self.draw(*requests) for sample in siblings]
        data = [datum(sample, 1.0) for sample in samples]
        text = self.torch.rank._runner.compute_logprobs(data)
        gaps = [
            abs(logprob - reference)
            for datum, logprobs in zip(data, text, strict=True)
            for logprob, reference, samples in zip(datum.logprobs, logprobs, datum.mask, strict=True)
            if samples
        ]
        return max(gaps)

    def close(self):
        self.vllm.close()
        self.torch.close()


@pytest.fixture(scope="module")
def both_engines(folder):
    pair = EnginePair(folder, {"p": tiny.policy(folder)})
    yield pair
    pair.close()


@pytest.fixture(scope="module")
def adapters(folder):
    policies = {name: tiny.policy(folder, lora=LoraConfig(rank=rank, alpha=2 * rank)) for name, rank in RANKS.items()}
    pair = EnginePair(folder, policies | {"judge": tiny.policy(folder, frozen=True)})
    yield pair
    pair.close()


PART_TOKENS = 32
RANKS = {"planner": 2, "tool": 4}
ASKED = [request(f"number {index}", 4, key=1_000 + index) for index in range(3)]
MIXED = [request("go", 3, key=7, policy=name) for name in ("planner", "judge", "tool", "judge")]


def test_log_probabilities_are_the_torch_engines(both_engines):
    assert both_engines.mismatch(*ASKED) < 1e-4


def test_equal_rounds_are_equal_to_the_bit(both_engines):
    first = both_engines.draw(*ASKED)
    assert both_engines.draw(*ASKED) == first
    assert len({sample.token_ids for sample in first[0]}) == 4


def test_a_push_is_complete_with_the_tied_head_and_the_prompts(both_engines):
    initial_draw = both_engines.draw(*ASKED)
    for seed in (1, 2):
        both_engines.load(both_engines.change("p", seed))
        assert both_engines.mismatch(*ASKED) < 1e-4
    final_draw = both_engines.draw(*ASKED)
    assert final_draw != initial_draw
    assert {sample.version for siblings in final_draw for sample in siblings} == {both_engines.version["p"]}


def test_weights_that_change_on_the_way_are_told_of(both_engines):
    async def play():
        early = asyncio.create_task(both_engines.vllm.sample(request("long", 2, key=3, max_tokens=200)))
        await asyncio.sleep(0.15)
        await both_engines.vllm.load(both_engines.change("p", 3))
        return await early

    initial = both_engines.version["p"]
    for sample in asyncio.run(play()):
        assert sample.version == initial
        assert [version for _, version in sample.changes] == [initial + 1]
        ((position, _),) = sample.changes
        assert 0 < position < len(sample.token_ids)


def test_temperature_greed_and_strings_that_end(both_engines):
    (greedy,) = both_engines.draw(request("x", temperature=0.0))[0]
    assert set(greedy.logprobs) == {0.0}
    assert both_engines.mismatch(request("x", 2, temperature=0.5)) > 1e-3  # as the datum says temperature 1
    text = both_engines.draw(request("x", key=5))[0][0].text
    (cut,) = both_engines.draw(request("x", key=5, stop=(text[2],)))[0]
    assert cut.text == text[: text.index(text[2])]
    assert cut.finish == "stop"


def test_prompts_beyond_what_is_read_at_once_do_not_end_it(both_engines):
    """Seeds, and more prompt tokens than one batch takes: read in parts, they would end the engine on a CPU."""
    long = [request("w" * (150 + index), 2, key=index) for index in range(6)]
    assert [len(siblings) for siblings in both_engines.draw(*long)] == [2] * 6


def test_adapters_and_the_plain_base_in_one_batch(adapters):
    assert adapters.mismatch(*MIXED) < 1e-4
    for seed, policy in enumerate(("planner", "tool", "planner")):
        adapters.load(adapters.change(policy, seed))
        assert adapters.mismatch(*MIXED) < 1e-4
    versions = {sample.policy: sample.version for siblings in adapters.draw(*MIXED) for sample in siblings}
    assert versions == {"planner": 2, "tool": 1, "judge": 0}


def test_an_adapter_that_comes_while_another_role_decodes_changes_nothing(adapters):
    requests = request("long", 4, key=11, policy="planner", max_tokens=200)
    single = adapters.draw(requests)[0]

    async def play():
        drawing = asyncio.create_task(adapters.vllm.sample(requests))
        for seed in range(3):
            await asyncio.sleep(0.1)
            await adapters.vllm.load(adapters.change("tool", 20 + seed))
        under_way = not drawing.done()
        return under_way, await drawing

    under_way, with_adapter = asyncio.run(play())
    assert under_way, "the adapters came too late for this to show anything"
    assert with_adapter == single


def test_ctrl_c_at_the_terminal_does_not_reach_its_processes(adapters):
    groups = [os.getpgid(process.pid) for process in psutil.Process().children(recursive=True)]
    assert sum(group != os.getpgrp() for group in groups) >= 2


def test_who_goes_away_leaves_an_engine_that_goes_on(adapters):
    async def leave():
        drawing = asyncio.create_task(adapters.vllm.sample(request("long", 4, policy="tool", max_tokens=200)))
        await asyncio.sleep(0.1)
        drawing.cancel()

    asyncio.run(leave())
    assert adapters.mismatch(*MIXED) < 1e-4


async def start_in_parts(launch):
    """The engine with the scheduler that it has on a GPU."""
    return await start_engine(replace(launch, arguments={**launch.arguments, "scheduler_cls": SCHEDULER}))


def test_requests_at_any_time_and_tokens_in_parts_are_what_is_drawn(folder):
    pair = EnginePair(folder, {"p": tiny.policy(folder)}, replace(OPTIONS, deterministic=False), start_in_parts)
    try:
        long = [request(f"number {index}", 4, max_tokens=70 + index) for index in range(3)]
        assert pair.mismatch(*long) < 1e-4
        lengths = [len(sample.token_ids) for siblings in pair.draw(*long) for sample in siblings]
        assert max(lengths) > 2 * PART_TOKENS
        first, second = pair.draw(long[0], long[0])
        assert first != second
        pair.load(pair.change("p", 1))
        samples = [sample for siblings in pair.draw(*long) for sample in siblings]
        assert {(sample.version, sample.changes) for sample in samples} == {(1, ())}
        assert pair.mismatch(*long) < 1e-4
        letters = tuple("abcdefghijklmnopqrstuvwxyz")
        ended = pair.draw(request("x", 8, stop=letters))[0]
        assert all(sample.finish == "length" or not set(sample.text) & set(letters) for sample in ended)
        assert any(sample.finish == "stop" for sample in ended)
    finally:
        pair.close()


END = """
import asyncio, sys
from pathlib import Path
from cadre.engines.vllm import VllmSampler
from tests.cadre.engines import tiny
from tests.cadre.engines.vllm.test_vllm_real import OPTIONS, request

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sampler = VllmSampler(folder, {"p": tiny.policy(folder)}, OPTIONS)
    asyncio.run(sampler.sample(request("x", 2)))
    if sys.argv[2] == "closed":
        sampler.close()
    print("END", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("remaining", ["closed", "open"])
def test_a_process_ends_without_a_word(folder, tmp_path, remaining):
    """Closed or not: vLLM's finalisers would otherwise find its modules gone, and its processes dead."""
    script = tmp_path / "end.py"
    script.write_text(END)
    command = [sys.executable, str(script), str(folder), remaining]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    initial_output, _, final_output = ended.stderr.partition("END\n")
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in initial_output
    assert final_output == ""
