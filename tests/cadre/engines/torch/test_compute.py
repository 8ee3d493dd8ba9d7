"""One thread of the process computes with several threads, all others with one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakValueDictionary

import pytest
import torch

from cadre.concurrency import one_thread, run_coroutine
from cadre.engines.torch import compute
from cadre.engines.torch.compute import ComputeThread
from cadre.errors import EngineError
from tests.helpers import forked

CPU = torch.device("cpu")


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Owners that other tests have left open would go on with as many threads as are set here.
    monkeypatch.setattr(compute, "_shared", WeakValueDictionary())
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


def test_owners_on_the_cpu_share_a_thread_until_the_last_one_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_shared", WeakValueDictionary())  # other tests may have owners open
    first, second = ComputeThread(CPU), ComputeThread(CPU)
    worker = first.work(threading.current_thread)
    assert second.work(threading.current_thread) is worker is not threading.current_thread()
    first.close()
    assert second.work(threading.current_thread) is worker
    second.close()
    worker.join(10.0)
    assert not worker.is_alive()


def test_a_gpu_has_a_thread_of_its_own() -> None:
    cpu, gpus = ComputeThread(CPU), [ComputeThread(torch.device("cuda", 0)) for _ in range(2)]
    assert len({owner.work(threading.get_ident) for owner in (cpu, *gpus)}) == 3
    for owner in (cpu, *gpus):
        owner.close()


def test_errors_are_raised_and_the_thread_goes_on() -> None:
    owner = ComputeThread(CPU)
    with pytest.raises(ZeroDivisionError):
        owner.work(lambda: 1 / 0)
    assert owner.work(lambda value: value, 3) == 3
    owner.close()
    owner.close()
    with pytest.raises(EngineError, match="was closed"):
        owner.work(int)


def test_closing_cancels_what_is_its_own_alone() -> None:
    closing, open_one = ComputeThread(CPU), ComputeThread(CPU)
    begun, go_on = threading.Event(), threading.Event()

    def block() -> str:
        begun.set()
        assert go_on.wait(10.0)
        return "ended"

    running, waiting, other_submit = closing.submit(block), closing.submit(int), open_one.submit(int)
    assert begun.wait(10.0)
    threading.Timer(0.05, go_on.set).start()
    closing.close()
    assert running.result(0) == "ended"
    assert waiting.cancelled()
    assert other_submit.result(10.0) == 0
    open_one.close()


@pytest.mark.usefixtures("three_threads")
def test_the_thread_has_the_number_of_who_opens_it() -> None:
    first = ComputeThread(CPU)
    assert first.work(torch.get_num_threads) == 3
    with one_thread():  # as the event loop of a training is
        assert torch.get_num_threads() == 1
        second = ComputeThread(CPU)
    assert torch.get_num_threads() == 3
    assert second.work(torch.get_num_threads) == 3
    torch.set_num_threads(2)  # the user's own change
    third = ComputeThread(CPU)
    assert first.work(torch.get_num_threads) == 2
    for owner in (first, second, third):
        owner.close()


@pytest.mark.usefixtures("three_threads")
def test_the_event_loop_computes_with_one_thread_and_its_caller_as_before() -> None:
    async def count() -> int:
        return torch.get_num_threads()

    async def in_a_notebook() -> tuple[int, int]:
        return run_coroutine(count()), torch.get_num_threads()

    assert run_coroutine(count()) == 1
    assert torch.get_num_threads() == 3
    assert run_coroutine(in_a_notebook()) == (1, 1)
    assert torch.get_num_threads() == 3


TRAININGS = """
import os, threading, time
import torch, cadre
from cadre.engines.torch import trials

def native_threads():  # those that are not Python's, once none has begun or ended for a while
    counts = []
    while len(counts) < 20 or len(set(counts[-20:])) > 1:
        counts.append(len(os.listdir("/proc/self/task")) - threading.active_count())
        time.sleep(0.01)
    return counts[-1]

def train(threads):
    torch.set_num_threads(threads)
    goal = {"evaluate": {"tasks": 0, "every": 0}, "train": {"tasks_per_step": 1}}
    return cadre.train("plan-path", run=f"run-{threads}", steps=1, quiet=True, **goal)

train(1).close()  # some libraries start threads of their own once they are used
trials._faults.clear()
others = native_threads()
trained = train(3)
print(native_threads() - others, torch.get_num_threads())
trained.evaluate(1)
print(native_threads() - others, torch.get_num_threads())
trained.close()
print(native_threads() - others)
"""


def test_a_training_opens_one_team_of_threads(tmp_path: Path) -> None:
    """Three threads are one of Python's and two of its team; a second team would have two more."""
    code, printed = forked.run([], tmp_path, TRAININGS)
    assert (code, printed.splitlines()[-3:]) == (0, ["2 3", "2 3", "0"]), printed
