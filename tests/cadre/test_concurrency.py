import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from cadre.concurrency import run_coroutine


async def current_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def take_turns(gate: asyncio.Semaphore) -> int:
    """Hold the semaphore in turns, so that one waits for another, which binds it to the loop."""

    async def hold() -> int:
        async with gate:
            await asyncio.sleep(0)
        return 1

    return sum(await asyncio.gather(hold(), hold(), hold()))


def in_thread(function: Callable[[], object]) -> object:
    async def caller() -> object:
        return await asyncio.to_thread(function)

    return asyncio.run(caller())


def beside_a_loop(function: Callable[[], object]) -> object:
    async def caller() -> object:
        return function()

    return asyncio.run(caller())


@pytest.mark.parametrize("called", [lambda function: function(), in_thread, beside_a_loop])
def test_a_semaphore_of_a_module_works_in_every_call(called: Callable[[Callable[[], object]], object]) -> None:
    gate = asyncio.Semaphore(1)
    assert run_coroutine(take_turns(gate)) == 3
    assert called(lambda: run_coroutine(take_turns(gate))) == 3
    assert run_coroutine(take_turns(gate)) == 3


def test_the_background_task_of_a_client_lives_on() -> None:
    answers: asyncio.Queue[int] = asyncio.Queue()

    async def connect() -> asyncio.Task[None]:
        async def feed() -> None:
            for number in range(10):
                await asyncio.sleep(0.001)
                answers.put_nowait(number)

        return asyncio.create_task(feed())

    feeding = run_coroutine(connect())
    assert not feeding.done()
    assert run_coroutine(answers.get()) == 0
    run_coroutine(asyncio.wait_for(feeding, 5.0))


def test_what_work_began_ends_with_its_failure() -> None:
    begun: list[asyncio.Task[None]] = []

    async def fail() -> None:
        begun.append(asyncio.create_task(asyncio.sleep(1000.0)))
        await asyncio.sleep(0)
        raise ValueError("broken off")

    with pytest.raises(ValueError, match="broken off"):
        run_coroutine(fail())
    assert begun[0].cancelled()


def test_ctrl_c_ends_the_work_and_lets_it_clean_up() -> None:
    ended: list[str] = []

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(1000.0)
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    initial_signal = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_coroutine(work())
    finally:
        signal.signal(signal.SIGINT, initial_signal)
    assert ended == ["cleaned up"]
    assert run_coroutine(asyncio.sleep(0, 7)) == 7


def test_an_exception_that_stops_the_loop_leaves_no_work_that_goes_on_with_the_next_call() -> None:
    ended: list[str] = []

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.01, interrupt)
        try:
            await asyncio.sleep(1000.0)
        finally:
            ended.append("cleaned up")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_coroutine(work())
    assert ended == ["cleaned up"]


def test_work_within_work_and_in_another_thread_has_a_loop_of_its_own() -> None:
    async def outer() -> list[asyncio.AbstractEventLoop]:
        inner = run_coroutine(current_loop())
        thread_loop = await asyncio.to_thread(lambda: run_coroutine(current_loop()))
        return [asyncio.get_running_loop(), inner, thread_loop]

    loops = run_coroutine(outer())
    assert len(set(loops)) == 3
    assert run_coroutine(current_loop()) is loops[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_makes_its_own_loop() -> None:
    parent = run_coroutine(current_loop())
    if (child := os.fork()) == 0:
        os._exit(run_coroutine(current_loop()) is parent)
    assert os.waitpid(child, 0)[1] == 0
    woken = run_coroutine(asyncio.wait_for(asyncio.to_thread(threading.get_ident), 5.0))
    assert woken != threading.get_ident()


def test_nothing_is_printed_at_the_end_of_a_process_whose_client_has_tasks() -> None:
    program = """
import asyncio
from cadre.concurrency import run_coroutine
async def client():
    await asyncio.to_thread(int)
    global task
    task = asyncio.create_task(asyncio.sleep(1000))
run_coroutine(client())
"""
    ended = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
