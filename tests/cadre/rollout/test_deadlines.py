"""Calls end in time, whether they wait or block, and hold nobody up for longer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cadre.errors import ContractError, DeadlineError
from cadre.rollout import deadlines, shapes
from cadre.rollout.deadlines import Deadline, in_line
from cadre.rollout.episodes import grow_many
from cadre.rollout.grow import Rollout
from cadre.settings import EpisodesConfig
from cadre.training.interrupt import Interrupt
from cadre.types import Reward
from tests.helpers.games import Digit, Relay, scripted_team

SHORT = 0.15


def deadline(seconds: float = SHORT) -> Deadline:
    return Deadline("Game.step", seconds, "episodes.step_seconds")


async def waits() -> None:
    await asyncio.sleep(60)


async def blocks() -> None:
    time.sleep(2 * SHORT)


async def ends_its_own_timeout() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SHORT / 3):
            await asyncio.sleep(60)
    await asyncio.sleep(60)


async def cleans_up() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(SHORT)


async def pays_when_cancelled() -> float:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return 0.0


@pytest.mark.parametrize("work", [waits, blocks, ends_its_own_timeout, cleans_up, pays_when_cancelled])
def test_a_call_has_failed_at_its_deadline(work: Callable[[], Awaitable[Any]]) -> None:
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"Game.step: not done after 0.15 s.*episodes.step_seconds"):
        asyncio.run(deadline().awaiting(work()))
    assert SHORT * 0.9 < time.monotonic() - began < 10 * SHORT


def test_a_plain_call_that_blocks_has_taken_too_long_once_it_returns() -> None:
    with pytest.raises(DeadlineError, match=r"Game.step: not done after 0.15 s"):
        deadline().blocking(time.sleep, 2 * SHORT)
    assert deadline().blocking(lambda: 1) == 1


def test_the_line_that_waits_is_named() -> None:
    with pytest.raises(DeadlineError, match=r"at line \d+ of test_deadlines.py, in waits"):
        asyncio.run(deadline().awaiting(waits()))


def test_what_ends_in_time_is_as_without_a_deadline() -> None:
    async def adds() -> int:
        await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            return 1 + await asyncio.ensure_future(asyncio.sleep(0.01, 1))

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("its own")

    assert asyncio.run(deadline(60).awaiting(adds())) == 2
    assert asyncio.run(deadline(float("inf")).awaiting(adds())) == 2
    with pytest.raises(ValueError, match="its own"):
        asyncio.run(deadline(60).awaiting(fails()))


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def work() -> None:
        task = asyncio.ensure_future(deadline(60).awaiting(waits()))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())


def test_a_timeout_of_the_works_own_is_an_error_of_its_own() -> None:
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(deadline(60).awaiting(impatient()))


def test_who_blocks_takes_nobody_elses_time() -> None:
    """Mistake: timeouts run out while the loop is blocked, and one slow call fails every other episode."""

    async def naps() -> str:
        await asyncio.sleep(0.5)
        return "well"

    async def blocks_after_a_while() -> None:
        await asyncio.sleep(0.1)
        time.sleep(2.0)

    async def both() -> list[Any]:
        return await asyncio.gather(deadline(60).awaiting(blocks_after_a_while()), deadline(1.0).awaiting(naps()))

    assert asyncio.run(both())[1] == "well"


def test_a_call_that_cancels_itself_is_an_error_of_the_environment() -> None:
    async def cancels() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ContractError, match=r"Game.step: cancelled itself"):
        asyncio.run(deadline().awaiting(cancels()))


def test_a_plain_method_that_is_cancelled_fails_its_episode_alone() -> None:
    class Fragile(Digit):
        def observe(self) -> Any:
            if self.task.data["digit"] == 1:
                raise asyncio.CancelledError
            return super().observe()

    team, _ = scripted_team(Fragile, lambda request, index: "0")
    trees, failures = asyncio.run(
        grow_many(list(Fragile.tasks("train"))[:4], Rollout(Fragile, team, shapes.greedy(2), 1.0), 0)
    )
    assert [tree.task.data["digit"] for tree in trees] == [0, 2, 3]
    assert "Fragile.observe: cancelled itself" in failures[0].error


def test_time_in_line_does_not_count() -> None:
    async def queues() -> str:
        with in_line():
            await asyncio.sleep(2 * SHORT)
        return "served"

    async def nested() -> list[str]:
        return await asyncio.gather(queues(), queues())

    assert asyncio.run(deadline().awaiting(queues())) == "served"
    assert asyncio.run(deadline().awaiting(nested())) == ["served"] * 2


def test_outside_the_main_thread_what_waits_is_ended() -> None:
    errors = []

    def elsewhere() -> None:
        try:
            asyncio.run(deadline().awaiting(waits()))
        except DeadlineError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(10)
    assert len(errors) == 1


def test_the_systems_clock_may_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    async def jumps() -> str:
        monkeypatch.setattr(time, "time", lambda: 0.0)
        await asyncio.sleep(0.01)
        return "well"

    assert asyncio.run(deadline().awaiting(jumps())) == "well"


@pytest.mark.parametrize(
    ("method", "hang"),
    [("step", asyncio.sleep), ("step", time.sleep), ("observe", time.sleep), ("__init__", time.sleep)],
)
def test_an_episode_that_hangs_is_dropped_and_the_others_go_on(method: str, hang: Callable[..., Any]) -> None:
    class HangingEnv(Digit):
        def __init__(self, task: Any) -> None:
            super().__init__(task)
            if method == "__init__" and task.data["digit"] == 1:
                hang(2 * SHORT)

        def observe(self) -> Any:
            if method == "observe" and self.task.data["digit"] == 1:
                hang(2 * SHORT)
            return super().observe()

        async def step(self, actions: dict[str, str]) -> Reward:
            if method == "step" and self.task.data["digit"] == 1 and (waiting := hang(2 * SHORT)):
                await waiting
            return await super().step(actions)

    limits = EpisodesConfig(retries=1, step_seconds=SHORT)
    team, _ = scripted_team(HangingEnv, lambda request, index: "1")
    rollout = Rollout(HangingEnv, team, shapes.greedy(2), 1.0, limits)
    began = time.monotonic()
    trees, dropped = asyncio.run(grow_many(list(HangingEnv.tasks("train"))[:4], rollout, 0))
    assert len(trees) == 3
    assert [failure.reason for failure in dropped] == ["deadline"]
    assert time.monotonic() - began < 5


def test_the_calls_of_an_episode_have_a_deadline_together_and_models_take_none_of_it() -> None:
    class SlowEnv(Relay):
        def __init__(self, task: Any, nap: float = 0.0) -> None:
            super().__init__(task, 2)
            self.nap = nap

        async def step(self, actions: dict[str, str]) -> Reward:
            await asyncio.sleep(self.nap)
            return await super().step(actions)

    def answer(request: Any, index: int) -> str:
        time.sleep(0.1)
        return "a"

    def played(nap: float) -> Any:
        team, _ = scripted_team(SlowEnv, answer)
        limits = EpisodesConfig(retries=0, step_seconds=0, seconds=0.3)
        rollout = Rollout(lambda task: SlowEnv(task, nap), team, shapes.greedy(1), 1.0, limits)
        return asyncio.run(grow_many(list(SlowEnv.tasks("train"))[:1], rollout, 0))

    trees, _ = played(0.0)  # four answers of 0.1 s are more than the episode may take
    assert len(trees) == 1
    with pytest.raises(ContractError, match=r"1 deadline.*episodes.seconds"):
        played(0.1)


def test_a_call_costs_little_more_for_it() -> None:
    async def nothing() -> None:
        return None

    async def many() -> float:
        began = time.perf_counter()
        for _ in range(200):
            await deadline(60).awaiting(nothing())
        return (time.perf_counter() - began) / 200

    assert asyncio.run(many()) < 5e-4


def test_the_line_that_blocks_the_loop_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "NOTE_S", 0.6)
    monkeypatch.setattr(deadlines, "_watching_process", 0)  # a thread that looks as often

    async def stuck() -> None:
        await asyncio.sleep(0.01)
        time.sleep(1.5)

    async def both() -> None:
        await asyncio.gather(deadline(60).awaiting(stuck()), deadline(60).awaiting(asyncio.sleep(1.0)))

    asyncio.run(both())
    messages = [message for message in caplog.messages if "A call has blocked all episodes for 1 s at line" in message]
    assert len(messages) in (1, 2)
    assert "of test_deadlines.py, in stuck" in messages[0]


def test_a_call_that_only_waits_is_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "NOTE_S", 0.6)
    monkeypatch.setattr(deadlines, "_watching_process", 0)
    asyncio.run(deadline(60).awaiting(asyncio.sleep(1.5)))
    assert not caplog.messages


@pytest.mark.parametrize("method", ["step", "observe"])
def test_ctrl_c_ends_a_call_that_blocks(method: str) -> None:
    """Mistake: the request waits for the loop, which waits for the call; or the next episode blocks in turn."""

    class Blocking(Digit):
        def observe(self) -> Any:
            if method == "observe":
                time.sleep(60)
            return super().observe()

        async def step(self, actions: dict[str, str]) -> Reward:
            time.sleep(60)
            return await super().step(actions)

    team, _ = scripted_team(Blocking, lambda request, index: "1")
    rollout = Rollout(Blocking, team, shapes.greedy(2), 1.0, EpisodesConfig(retries=1))
    interrupt = Interrupt()

    async def stopped() -> Any:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        return await interrupt.stoppable(grow_many(list(Blocking.tasks("train"))[:4], rollout, 0))

    began = time.monotonic()
    with interrupt.on_signals():
        assert asyncio.run(stopped()) is None
    assert interrupt.requested
    assert not interrupt.forced
    assert time.monotonic() - began < 20
    assert asyncio.run(deadline().awaiting(asyncio.sleep(0, 1))) == 1
