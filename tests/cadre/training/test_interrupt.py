"""Asked to stop: what is stoppable ends at once, the rest ends by itself; and coroutines run wherever they are."""

import asyncio
import os
import signal
import threading
from contextlib import suppress

import pytest

from cadre.cli import StopHandler
from cadre.concurrency import run_coroutine
from cadre.training.interrupt import Interrupt


async def forever() -> None:
    await asyncio.Event().wait()


async def seven() -> int:
    return 7


def test_what_is_stoppable_ends_when_asked_and_nothing_begins_after() -> None:
    async def work() -> list[int | None]:
        interrupt = Interrupt()
        initial_stoppable = await interrupt.stoppable(seven())
        asyncio.get_running_loop().call_soon(interrupt)
        ended = await interrupt.stoppable(forever())
        return [initial_stoppable, ended, await interrupt.stoppable(seven())]

    assert asyncio.run(work()) == [7, None, None]


def test_what_is_not_stoppable_is_finished() -> None:
    async def work() -> tuple[int, bool]:
        interrupt = Interrupt()
        asyncio.get_running_loop().call_soon(interrupt)
        await asyncio.sleep(0.01)
        return await seven(), interrupt.requested

    assert asyncio.run(work()) == (7, True)


def test_a_cancellation_from_elsewhere_is_not_swallowed() -> None:
    async def work() -> None:
        task = asyncio.ensure_future(Interrupt().stoppable(forever()))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())


def test_an_error_of_the_work_is_its_own() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(Interrupt().stoppable(fail()))


def test_asked_twice_it_does_not_wait() -> None:
    interrupt = Interrupt()
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        interrupt()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_signal_asks_and_the_handlers_come_back() -> None:
    interrupt, initial_getsignal = Interrupt(), signal.getsignal(signal.SIGTERM)
    with interrupt.on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        assert asyncio.run(interrupt.stoppable(forever())) is None
    assert interrupt.requested
    assert signal.getsignal(signal.SIGTERM) == initial_getsignal


def test_a_signal_that_an_import_ignored_ends_a_training_before_it_begins() -> None:
    handler = StopHandler()
    former = signal.signal(signal.SIGTERM, handler)
    try:
        with suppress(KeyboardInterrupt):
            handler(signal.SIGTERM, None)
        with pytest.raises(KeyboardInterrupt), Interrupt().on_signals():
            pytest.fail("the training began")
    finally:
        signal.signal(signal.SIGTERM, former)


def test_outside_the_main_thread_there_are_no_signals() -> None:
    entered: list[bool] = []

    def elsewhere() -> None:
        with Interrupt().on_signals():
            entered.append(True)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert entered == [True]


def test_a_coroutine_runs_to_its_end_beside_a_running_loop() -> None:
    assert run_coroutine(seven()) == 7

    async def notebook() -> int:
        return run_coroutine(seven())

    assert asyncio.run(notebook()) == 7


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_beside_a_running_loop_asks_and_waits() -> None:
    interrupt = Interrupt()

    async def work() -> str:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
        await interrupt.stoppable(forever())
        return "saved"

    async def notebook() -> str:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return run_coroutine(work(), interrupt)

    initial_getsignal = signal.getsignal(signal.SIGINT)
    try:
        assert asyncio.run(notebook()) == "saved"
    finally:
        signal.signal(signal.SIGINT, initial_getsignal)
