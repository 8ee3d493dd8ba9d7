"""The asyncio side: batching, new loops, errors, cancellation."""

import asyncio
import threading

import pytest
import torch

from cadre.engines.torch import decode as decoding
from cadre.engines.torch.decode import Completion
from cadre.engines.torch.front import Front
from cadre.types import Sampling
from tests.engines.tiny import request, sample


def answer(job):
    job.done([Completion((k,), (0.0,), "stop") for k in range(job.count)])


class Scripted:
    """A decode loop that answers at once and remembers the batches."""

    def __init__(self):
        self.batches = []

    def __call__(self, jobs, stopped):
        self.batches.append([job.key for job in jobs])
        for job in jobs:
            answer(job)


@pytest.fixture
def front():
    made = []

    def make(decode):
        made.append(Front(decode))
        return made[-1]

    yield make
    for one in made:
        one.close()


def submit(front, key, count=1):
    return front.submit("p", (1, 2), count, 4, Sampling(), key)


def test_everything_asked_for_is_one_batch(front):
    decode = Scripted()
    one = front(decode)

    async def episode(key):
        first = await submit(one, key, 2)
        await asyncio.sleep(0)
        await submit(one, 10 + key)
        return len(first)

    async def run():
        return await asyncio.gather(*(episode(key) for key in range(4)))

    assert asyncio.run(run()) == [2, 2, 2, 2]
    assert [sorted(batch) for batch in decode.batches] == [[0, 1, 2, 3], [10, 11, 12, 13]]


def test_several_event_loops_in_turn(front):
    decode = Scripted()
    one = front(decode)
    for key in range(3):
        asyncio.run(submit(one, key))
    assert decode.batches == [[0], [1], [2]]


def test_a_request_resolves_before_its_batch_ends(front):
    going_on = threading.Event()

    def decode(jobs, stopped):
        for job in sorted(jobs, key=lambda job: job.key):
            if job.key:
                assert going_on.wait(10)
            answer(job)

    one = front(decode)

    async def run():
        late = asyncio.create_task(submit(one, 1))
        await submit(one, 0)
        assert not late.done()
        going_on.set()
        return await late

    assert asyncio.run(run())[0].token_ids == (0,)


def test_errors_reach_every_request_that_waits(front):
    def decode(jobs, stopped):
        answer(jobs[0])
        raise MemoryError("too much")

    one = front(decode)

    async def run():
        return await asyncio.gather(*(submit(one, key) for key in range(3)), return_exceptions=True)

    first, *others = asyncio.run(run())
    assert first[0].token_ids == (0,)
    assert [(type(error), str(error)) for error in others] == [(MemoryError, "too much")] * 2


def test_cancellation_stops_the_batch_and_the_next_run_works(front):
    started = threading.Event()
    left = []

    def decode(jobs, stopped):
        started.set()
        while jobs[0].key == 0 and not stopped():
            pass
        left.append(jobs[0].key)
        answer(jobs[0])

    one = front(decode)

    async def run():
        asking = asyncio.create_task(submit(one, 0))
        while not started.is_set():
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(run())
    assert left == [0]
    asyncio.run(submit(one, 1))
    assert left == [0, 1]


def test_work_runs_in_the_thread_that_decodes(front):
    """One pool of threads for sampling and learning, with the caller's number of them."""
    threads = []

    def decode(jobs, stopped):
        threads.append(threading.current_thread())
        for job in jobs:
            answer(job)

    one = front(decode)
    asyncio.run(submit(one, 0))
    worker = one.work(lambda wanted: (threading.current_thread(), wanted, torch.get_num_threads()), 3)
    assert worker == (threads[0], 3, torch.get_num_threads())
    assert threads[0] is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        one.work(lambda: 1 / 0)
    assert one.work(lambda: "still here") == "still here"


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="one thread has no fewer")
def test_steps_of_little_work_take_one_thread_and_give_the_same(engine, monkeypatch):
    counts = []

    def counted(run):
        counts.append(torch.get_num_threads())
        return step(run)

    step = decoding.Run.step
    monkeypatch.setattr(decoding.Run, "step", counted)
    mine = engine("llama")
    asked = [request("move it", 4, key, max_tokens=12) for key in range(3)]
    few = sample(mine, *asked)
    assert set(counts) == {1}
    counts.clear()
    monkeypatch.setattr(decoding, "SERIAL_FLOPS", 0)
    many = sample(engine("llama"), *asked)
    assert set(counts) == {torch.get_num_threads()}
    assert mine._front.work(torch.get_num_threads) == torch.get_num_threads()
    for one, other in zip(few, many, strict=True):
        assert [first.token_ids for first in one] == [second.token_ids for second in other]
        for first, second in zip(one, other, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)
