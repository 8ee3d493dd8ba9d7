"""The parts in which tokens leave vLLM's engine. They need vLLM, no model."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm installs and runs it")

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from cadre.engines.vllm.scheduler import PART_TOKENS, PartCollector, PartScheduler
from tests.cadre.engines import tiny


def output(name, token, finish=None, prefill=None):
    ids = [] if token is None else [token]
    return SimpleNamespace(
        request_id=name, new_token_ids=ids, finish_reason=finish, prefill_stats=prefill, new_logprobs=None
    )


def tokens_of(messages, name):
    return [token for message in messages if message.request_id == name for token in message.new_token_ids]


def test_parts_are_the_tokens_and_logprobs_in_order():
    collector, sent = PartCollector(), []
    for step in range(100):
        for name in ("a", "b"):
            finish = "length" if step == 99 else None
            message = output(name, 1000 * (name == "b") + step, finish, "prompt" if step == 0 else None)
            part = collector.add(message, -step / 2)
            sent += [] if part is None else [part]
    for name, first in (("a", 0), ("b", 1000)):
        parts = [message for message in sent if message.request_id == name]
        assert tokens_of(parts, name) == list(range(first, first + 100))
        logprobs = [float(value) for part in parts for value in part.new_logprobs.logprobs[:, 0]]
        assert logprobs == [-step / 2 for step in range(100)]
        assert [int(token) for part in parts for token in part.new_logprobs.logprob_token_ids[:, 0]] == tokens_of(
            parts, name
        )
        assert all(len(part.new_logprobs.sampled_token_ranks) == len(part.new_token_ids) for part in parts)
        assert [part.prefill_stats for part in parts] == ["prompt"] + [None] * (len(parts) - 1)
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
        # All parts are full but the first, which sets sequences apart, and the last.
        assert {len(part.new_token_ids) for part in parts[1:-1]} == {PART_TOKENS}
        assert len(parts) <= 2 + 100 // PART_TOKENS


def test_a_sequence_that_ends_is_sent_at_once_also_without_a_token():
    collector = PartCollector()
    collector.add(output("a", 5), -1.0)
    part = collector.add(output("a", None, "error"), None)
    assert (part.new_token_ids, part.finish_reason) == ([5], "error")
    assert collector.flush() == []


def test_what_is_left_is_sent_before_weights_change_and_once():
    collector = PartCollector()
    collector.add(output("a", 5), -1.0)
    collector.add(output("b", 6), -1.0)
    collector.forget(["b"])
    assert tokens_of(collector.flush(), "a") == [5]
    assert collector.flush() == []
    assert collector.add(output("a", 7), -1.0, immediately=True).new_token_ids == [7]


BLOCK = 16


def token_at(name, position):
    """Return the token that the model would draw there."""
    return int(1e4 * random.Random(f"{name} {position}").random())


class Engine:
    """vLLM's engine loop around a scheduler, with one step in flight and tokens by rule instead of a model.

    `received` are tokens and log-probabilities by request, `ends` how each ended, `messages` how many came of each.
    """

    def __init__(self, folder, kind, blocks=400):
        arguments = AsyncEngineArgs(
            model=str(folder), max_num_seqs=24, max_num_batched_tokens=8192, block_size=BLOCK, disable_log_stats=True
        )
        config = arguments.create_engine_config()
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.float32)
        cache = KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        hashing = get_hash_fn_by_name("sha256")
        init_none_hash(hashing)
        self.hasher = get_request_block_hasher(BLOCK, hashing)
        manager = StructuredOutputManager(config)
        self.scheduler = kind(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=manager,
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        # As on a GPU: vLLM's second model runner needs Triton.
        self.scheduler.use_v2_model_runner = True
        self.in_flight, self.received, self.ends = deque(), defaultdict(list), {}
        self.messages = Counter()
        self.plans = []

    def add(self, name, prompt, limit, stop=(), stop_ids=()):
        settings = SamplingParams(
            max_tokens=limit, logprobs=0, stop=list(stop), stop_token_ids=list(stop_ids), detokenize=bool(stop)
        )
        self.scheduler.add_request(Request(name, prompt, settings, None, block_hasher=self.hasher))

    def step(self):
        planned = self.scheduler.schedule()
        pool = self.scheduler.kv_cache_manager.block_pool
        blocks = {"free": pool.get_num_free_blocks(), "cached": len(pool.cached_block_hash_to_block)}
        self.plans.append(vars(planned) | blocks)
        if planned.total_num_scheduled_tokens:
            # Of a prompt that is read in part the model draws no token.
            unread = {name for name in planned.num_scheduled_tokens if self.scheduler.requests[name].is_prefill_chunk}
            self.in_flight.append((planned, unread))
            if len(self.in_flight) < 2:
                return
        if self.in_flight:
            self.finish(*self.in_flight.popleft())

    def finish(self, planned, unread):
        names = list(planned.num_scheduled_tokens)
        samples = [token_at(name, len(self.history(name))) for name in names]
        logprobs = LogprobsLists(
            np.array([[token] for token in samples], np.int32),
            np.array([[-token / 1e4] for token in samples], np.float32),
            np.ones(len(names), np.int64),
        )
        rows = {name: row for row, name in enumerate(names)}
        tokens = [[] if name in unread else [token] for name, token in zip(names, samples, strict=True)]
        result = ModelRunnerOutput(names, rows, tokens if any(tokens) else [], logprobs)
        for message in self.scheduler.update_from_output(planned, result).values():
            for output in message.outputs:
                self.messages[output.request_id] += 1
                values = [] if output.new_logprobs is None else output.new_logprobs.logprobs[:, 0].tolist()
                self.received[output.request_id] += zip(output.new_token_ids, values, strict=True)
                if output.finish_reason is not None:
                    self.ends[output.request_id] = output.finish_reason

    def history(self, name):
        request = self.scheduler.requests.get(name)
        return () if request is None else request.output_token_ids

    def run(self):
        while self.scheduler.has_requests() or self.in_flight:
            self.step()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.build(tmp_path_factory.mktemp("scheduler"), "llama")


def play(engine):
    """40 requests of five prompts; one is aborted half way, and generation is paused for a while."""
    source = random.Random(1)
    prompts = [[source.randrange(10, 200) for _ in range(60)] for _ in range(5)]
    for number in range(40):
        engine.add(f"r-{number}", prompts[number % 5], 1 + number * 3, stop=("x",) if number == 7 else ())
    for _ in range(30):
        engine.step()
    engine.scheduler.finish_requests("r-20", RequestStatus.FINISHED_ABORTED)
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    while engine.in_flight:
        engine.step()
    paused = {name: list(tokens) for name, tokens in engine.received.items()}
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run()
    # Prompts and answers are in the cache alike: what was cached of them is found by who asks again.
    engine.add("again", prompts[3] + [token for token, _ in engine.received["r-38"]][:40], 30)
    engine.run()
    return paused


@pytest.mark.parametrize("blocks", [400, 60])
def test_the_front_end_receives_what_vllms_own_scheduler_sends(folder, blocks):
    """Also where memory is short, so that requests are preempted and computed again."""
    stock, parts = Engine(folder, AsyncScheduler, blocks), Engine(folder, PartScheduler, blocks)
    at_pause = [play(engine) for engine in (stock, parts)]
    aborted = [engine.received.pop("r-20", []) for engine in (stock, parts)]
    assert parts.received == stock.received
    assert parts.ends == stock.ends
    assert [len(parts.received[f"r-{number}"]) for number in (0, 1, 39)] == [1, 4, 118]
    # While generation is paused nothing is held back.
    assert {name: tokens for name, tokens in at_pause[1].items() if name != "r-20"} == {
        name: tokens for name, tokens in at_pause[0].items() if name != "r-20"
    }
    assert aborted[1] == aborted[0][: len(aborted[1])]
    assert parts.messages.total() < stock.messages.total() / 5
    assert parts.messages["r-7"] == len(parts.received["r-7"]), "strings may end it at any token"


@pytest.mark.parametrize("blocks", [400, 60])
def test_every_step_is_planned_as_by_vllms_own_scheduler(folder, blocks):
    """Also in which blocks of the cache tokens lie, and where memory is short."""
    planned_here = []

    class Counting(PartScheduler):
        def _plan_decoding(self):
            plan = super()._plan_decoding()
            planned_here.append(plan is not None)
            return plan

    stock, parts = Engine(folder, AsyncScheduler, blocks), Engine(folder, Counting, blocks)
    for engine in (stock, parts):
        play(engine)
    assert len(parts.plans) == len(stock.plans)
    for actual, reference in zip(parts.plans, stock.plans, strict=True):
        assert actual == reference
    assert sum(planned_here) > len(planned_here) / 3
    preempted = sum(len(plan["preempted_req_ids"] or ()) for plan in stock.plans)
    assert (preempted > 0) == (blocks == 60)


def test_prompts_that_are_read_in_parts(folder):
    stock, parts = Engine(folder, AsyncScheduler), Engine(folder, PartScheduler)
    for engine in (stock, parts):
        engine.scheduler.max_num_scheduled_tokens = 48
        for number in range(3):
            engine.add(f"r-{number}", [10 + number] * 100, 20)
        engine.run()
    assert parts.plans == stock.plans
    counts = {count for plan in stock.plans for count in plan["num_scheduled_tokens"].values()}
    assert 48 in counts
    assert 100 not in counts
    assert parts.received == stock.received
    assert [len(tokens) for tokens in parts.received.values()] == [20] * 3


def test_a_stop_token_ends_a_sequence_in_plain_decoding(folder):
    stock, parts = Engine(folder, AsyncScheduler), Engine(folder, PartScheduler)
    for engine in (stock, parts):
        engine.add("a", list(range(20, 40)), 50, stop_ids=(token_at("a", 20),))
        engine.add("b", list(range(30, 50)), 50)
        engine.run()
    assert parts.received == stock.received
    assert parts.ends == stock.ends
    assert len(parts.received["a"]) == 21
