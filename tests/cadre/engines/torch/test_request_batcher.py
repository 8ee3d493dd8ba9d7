"""The asyncio side: batching, new loops, errors, cancellation."""

import asyncio
import random
import threading

import pytest
import torch

from cadre.engines.text.model import Completion
from cadre.engines.torch import decode as decoding
from cadre.engines.torch.compute import ComputeThread
from cadre.engines.torch.request_batcher import GenerationRequest, RequestBatcher
from cadre.errors import EngineError
from cadre.rollout.batching import gather
from cadre.types import Sampling
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import sample


def answer(request, listener):
    listener.finished(request, [Completion((k,), (0.0,), "stop") for k in range(request.count)])


class ScriptedWork:
    """A decode loop that answers at once and remembers the batches."""

    def __init__(self):
        self.batches = []

    def __call__(self, requests, listener, scope):
        self.batches.append([request.key for request in requests])
        for request in requests:
            answer(request, listener)


@pytest.fixture
def batcher():
    created = []

    def make(decode):
        created.append(ComputeThread(torch.device("cpu")))
        return RequestBatcher(decode, created[-1])

    make.threads = created
    yield make
    for item in created:
        item.close()


def submit(batcher, key, count=1):
    return batcher.submit(GenerationRequest("p", (1, 2), count, 4, Sampling(), key))


def test_everything_asked_for_is_one_batch(batcher):
    decode = ScriptedWork()
    request_batcher = batcher(decode)

    async def episode(key):
        first = await submit(request_batcher, key, 2)
        await asyncio.sleep(random.random() / 100)
        await submit(request_batcher, 10 + key)
        return len(first)

    assert asyncio.run(gather(*(episode(key) for key in range(4)))) == [2, 2, 2, 2]
    assert decode.batches == [[0, 1, 2, 3], [10, 11, 12, 13]]


def test_several_event_loops_in_turn(batcher):
    decode = ScriptedWork()
    request_batcher = batcher(decode)
    for key in range(3):
        asyncio.run(submit(request_batcher, key))
    assert decode.batches == [[0], [1], [2]]


def test_a_request_resolves_before_its_batch_ends(batcher):
    going_on = threading.Event()

    def decode(requests, listener, scope):
        for request in sorted(requests, key=lambda request: request.key):
            if request.key:
                assert going_on.wait(10)
            answer(request, listener)

    request_batcher = batcher(decode)

    early = []

    async def first():
        early.extend(await submit(request_batcher, 0))
        going_on.set()

    asyncio.run(gather(first(), submit(request_batcher, 1)))
    assert early[0].token_ids == (0,)


def test_errors_reach_every_request_that_waits(batcher):
    def decode(requests, listener, scope):
        answer(requests[0], listener)
        raise MemoryError("too much")

    request_batcher = batcher(decode)

    async def caught(key):
        try:
            return await submit(request_batcher, key)
        except MemoryError as error:
            return str(error)

    first, *rest = asyncio.run(gather(*(caught(key) for key in range(3))))
    assert first[0].token_ids == (0,)
    assert rest == ["too much"] * 2


def test_a_closed_engine_refuses_instead_of_waiting(batcher):
    request_batcher = batcher(ScriptedWork())
    batcher.threads[-1].close()
    with pytest.raises(EngineError, match="Load it again"):
        asyncio.run(submit(request_batcher, 0))


def test_cancellation_stops_the_batch_and_the_next_run_works(batcher):
    started = threading.Event()
    remaining = []

    def decode(requests, listener, scope):
        started.set()
        while requests[0].key == 0 and not listener.gone():
            pass
        remaining.append(requests[0].key)
        answer(requests[0], listener)

    request_batcher = batcher(decode)

    async def run():
        asking = asyncio.create_task(submit(request_batcher, 0))
        while not started.is_set():
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(run())
    assert remaining == [0]
    asyncio.run(submit(request_batcher, 1))
    assert remaining == [0, 1]


def test_decoding_runs_in_the_thread_of_the_engine(batcher):
    threads = []

    def decode(requests, listener, scope):
        threads.append(threading.current_thread())
        for request in requests:
            answer(request, listener)

    request_batcher = batcher(decode)
    asyncio.run(submit(request_batcher, 0))
    assert threads == [batcher.threads[0].work(threading.current_thread)]


def test_steps_of_little_work_take_one_thread_and_give_the_same(engine, monkeypatch):
    counts = []

    def counted(batch):
        counts.append(torch.get_num_threads())
        return draw(batch)

    torch_engine = engine("llama")
    torch_engine.work(torch.set_num_threads, 2)
    draw = decoding.DecodingBatch.sample
    monkeypatch.setattr(decoding.DecodingBatch, "sample", counted)
    requests = [tiny.request("move it", 4, key, max_tokens=3) for key in range(3)]
    few = sample(torch_engine, *requests)
    assert set(counts) == {1}
    counts.clear()
    monkeypatch.setattr(decoding, "SERIAL_FLOPS", 0)
    many = sample(torch_engine, *requests)
    assert set(counts) == {2}
    assert torch_engine.work(torch.get_num_threads) == 2
    torch_engine.work(torch.set_num_threads, 1)
    for item, other_samples in zip(few, many, strict=True):
        assert [first.token_ids for first in item] == [second.token_ids for second in other_samples]
        for first, second in zip(item, other_samples, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)
