"""Rounds: what shares a batch follows from the work alone, whatever takes how long, fails or is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadre.errors import ContractError, EngineError
from cadre.rollout import batching, shapes
from cadre.rollout.batching import gather
from cadre.rollout.episodes import Failure, grow_many
from cadre.rollout.failures import final_branches
from cadre.rollout.grow import Rollout
from cadre.types import Message, Observation, Request, Reward, Sample, Task, Tree
from tests.helpers.games import Digit, Pair
from tests.helpers.rounds import Batching, Slow, finished, nap, team_of


def test_results_come_in_order_and_nothing_gives_nothing() -> None:
    async def late(value: int) -> int:
        await asyncio.sleep(0.01 - value / 1000)
        return value

    assert finished(gather(*(late(value) for value in range(4)))) == [0, 1, 2, 3]
    assert finished(gather()) == []


def test_a_round_waits_for_whoever_may_still_ask_and_is_ordered_by_place() -> None:
    sampler = Batching()

    async def episode(number: int) -> None:
        for turn in range(3):
            await nap()
            await sampler.ask(f"{number}.{turn}")

    finished(gather(*(episode(number) for number in range(4))))
    assert sampler.batches == [[f"{number}.{turn}" for number in range(4)] for turn in range(3)]


def test_children_ask_in_their_parent_s_place_and_the_ended_are_not_waited_for() -> None:
    sampler = Batching()

    async def leaf(name: str, turns: int) -> None:
        for turn in range(turns):
            await nap()
            await sampler.ask(f"{name}{turn}")

    async def parent() -> None:
        await sampler.ask("p")
        await gather(leaf("a", 1), leaf("b", 2))
        await nap()
        await sampler.ask("q")

    finished(gather(leaf("x", 1), parent(), leaf("y", 4)))
    assert sampler.batches == [["x0", "p", "y0"], ["a0", "b0", "y1"], ["b1", "y2"], ["q", "y3"]]


def test_no_round_begins_while_another_sampler_s_batch_is_under_way() -> None:
    samplers = [Batching(), Batching()]

    async def episode(number: int) -> None:
        for turn in range(4):
            own_result = samplers[(number + turn) % 2]
            await own_result.ask(f"{number}.{turn}")
            await nap()

    class Watched(Batching):
        async def run(self, batch: Sequence[Any]) -> None:
            await asyncio.sleep(0)  # the other batch of this round begins too
            assert all(len(sampler.batches) <= len(self.batches) + 1 for sampler in samplers)
            await super().run(batch)

    samplers[:] = [Watched(), Watched()]
    finished(gather(*(episode(number) for number in range(3))))
    assert samplers[0].batches == [["0.0", "2.0"], ["1.1"], ["0.2", "2.2"], ["1.3"]]
    assert samplers[1].batches == [["1.0"], ["0.1", "2.1"], ["1.2"], ["0.3", "2.3"]]


def test_a_sampler_that_takes_no_turns_keeps_its_place_busy() -> None:
    sampler = Batching()

    async def remote() -> None:
        await asyncio.sleep(0.02)
        assert not sampler.batches
        await sampler.ask("after")

    finished(gather(sampler.ask("local"), remote()))
    assert sampler.batches == [["local", "after"]]


def test_outside_together_a_request_leaves_alone() -> None:
    sampler = Batching()

    async def run() -> None:
        await asyncio.gather(sampler.ask("a"), sampler.ask("b"))

    finished(run())
    assert sampler.batches == [["a"], ["b"]]


def test_the_first_to_fail_ends_the_others_before_its_error_is_raised() -> None:
    sampler = Batching()
    missing = []

    async def waits() -> None:
        try:
            await sampler.ask("never")
        finally:
            await asyncio.sleep(0.01)  # no round begins meanwhile
            missing.append(list(sampler.batches))

    async def fails() -> None:
        await nap()
        raise ValueError("broken")

    async def branch() -> None:
        with pytest.raises(ValueError, match="broken"):
            await gather(waits(), fails(), waits())
        assert missing == [[], []]
        await sampler.ask("after")

    finished(gather(sampler.ask("first"), branch()))
    assert sampler.batches == [["first", "after"]]


def test_cancelled_while_it_waits_and_while_its_batch_is_under_way() -> None:
    sampler = Batching()
    release = asyncio.Event()

    class Stuck(Batching):
        async def run(self, batch: Sequence[Any]) -> None:
            self.batches.append([name for name, _ in batch])
            await release.wait()

    stuck = Stuck()

    async def busy() -> None:
        await asyncio.sleep(60)

    async def cancelled(work: Awaitable[Any], when: Callable[[], bool]) -> None:
        task = asyncio.ensure_future(work)
        while not when():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def run() -> None:
        turns = iter((False, True))
        await cancelled(gather(sampler.ask("a"), busy()), lambda: next(turns))
        assert not sampler.batches
        await cancelled(gather(stuck.ask("a"), stuck.ask("b")), lambda: bool(stuck.batches))
        release.set()
        await gather(sampler.ask("c"))

    finished(run())
    assert (sampler.batches, stuck.batches) == ([["c"]], [["a", "b"]])


@settings(deadline=None, max_examples=25)
@given(
    st.recursive(st.integers(0, 3), lambda plan: st.lists(plan, max_size=3), max_leaves=8),
    st.sets(st.integers(0, 12), max_size=2),
)
def test_equal_work_makes_equal_batches(plan: Any, failing: set[int]) -> None:
    """Batches do not depend on timing, and failures that are caught further up do not change them.

    A plan is a number of requests in turn, or a list of plans that run together.
    """

    def batches() -> list[list[str]]:
        sampler = Batching()

        async def play(part: Any, name: str) -> None:
            if isinstance(part, int):
                for turn in range(part):
                    await nap()
                    await sampler.ask(f"{name}:{turn}")
                if sum(map(ord, name)) % 13 in failing:
                    raise ValueError(name)
                return
            for repeat in "ab":
                works = [play(below, f"{name}{repeat}{index}") for index, below in enumerate(part)]
                try:
                    await gather(*works)
                except ValueError:
                    await sampler.ask(f"{name}:caught")

        async def all_of_it() -> None:
            await gather(play([plan], "x"), play([plan, 2], "y"))

        finished(all_of_it())
        return sampler.batches

    assert batches() == batches()


def played(env: type[Any], sampler: Batching, shape: shapes.Shape) -> tuple[list[Tree], list[Failure]]:
    tasks = list(env.tasks("train"))[:4]
    return finished(grow_many(tasks, Rollout(env, team_of(env, sampler), shape, 1.0), 0))


@pytest.mark.parametrize("breaks", ["step", "observe"])
def test_an_environment_that_raises_holds_nobody_up(breaks: str) -> None:
    class Broken(Slow):
        pass

    Broken.breaks, Broken.broken = breaks, (1, 2)
    sampler = Batching()
    trees, failures = played(Broken, sampler, shapes.greedy(2))
    assert [tree.task.data["digit"] for tree in trees] == [0, 3]
    assert [failure.task.data["digit"] for failure in failures] == [1, 2]
    assert sampler.batches == [["0", "1", "2", "3"]]


@pytest.mark.parametrize("breaks", ["step", "observe"])
def test_when_all_raise_the_error_is_told(breaks: str) -> None:
    class Broken(Slow):
        pass

    Broken.breaks, Broken.broken = breaks, (0, 1, 2, 3)
    with pytest.raises(ContractError, match="Every episode failed"):
        played(Broken, Batching(), shapes.greedy(2))


def test_a_step_that_is_not_async_fails_its_episode() -> None:
    class Plain(Digit):
        def step(self, actions: dict[str, str]) -> Reward:  # type: ignore[override]
            return Reward()

    with pytest.raises(ContractError, match="await"):
        played(Plain, Batching(), shapes.greedy(2))


def test_one_branch_that_raises_ends_there_and_equal_work_makes_equal_batches() -> None:
    """Both first actions of a tree are played out; below one of them the environment breaks while the other goes on."""

    class Cracked(Pair):
        async def step(self, actions: dict[str, str]) -> Reward:
            await nap()
            if self.task.data["index"] == 1 and self.turn == 1 and self.agreed == 0:
                raise ValueError("cracked")
            return await super().step({"left": actions["left"], "right": "0"})

        def observe(self) -> dict[str, Observation]:
            shown = (Message("user", f"{self.task.data['index']} turn {self.turn}"),)
            return {role: Observation(role, shown) for role in self.roles} if self.turn < 4 else {}

    created = []
    for _ in range(2):
        sampler = Batching()
        trees, failures = played(Cracked, sampler, shapes.full(2))
        assert [tree.task.data["index"] for tree in trees] == [0, 1, 2, 3]
        assert failures == []
        reasons = {branch.failure.reason for branch in final_branches(trees[1].root) if branch.failure}
        assert reasons == {"raised"}
        created.append(sampler.batches)
    assert created[0] == created[1]


def test_a_sampler_s_error_ends_the_call() -> None:
    class Refusing(Batching):
        async def sample(self, request: Request) -> list[Sample]:
            if request.messages[-1].content == "2":
                raise EngineError("no twos")
            return await super().sample(request)

    with pytest.raises(EngineError, match="no twos"):
        played(Slow, Refusing(), shapes.greedy(2))


def test_ctrl_c_while_episodes_wait_and_a_new_call_after_it() -> None:
    sampler = Batching()

    class Hanging(Digit):
        async def step(self, actions: dict[str, str]) -> Reward:
            if self.task.data["digit"] == 3:
                await asyncio.sleep(60)
            return await super().step(actions)

    async def run() -> list[Tree]:
        tasks = list(Hanging.tasks("train"))[:4]
        rollout = Rollout(Hanging, team_of(Hanging, sampler), shapes.greedy(2), 1.0)
        call = asyncio.ensure_future(grow_many(tasks, rollout, 0))
        while not sampler.batches or sampler.under_way:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        trees, _ = await grow_many(tasks[:2], rollout, 0)
        return trees

    assert len(finished(run())) == 2
    assert sampler.batches == [["0", "1", "2", "3"], ["0", "1"]]


def test_tasks_keep_their_order() -> None:
    trees, _ = played(Slow, Batching(), shapes.greedy(2))
    assert [tree.task for tree in trees] == [Task(f"train-{i}", {"digit": i, "split": "train"}) for i in range(4)]


def test_calls_one_after_the_other_may_belong_to_one_scope() -> None:
    async def here() -> object:
        return batching.current_barrier()

    async def run() -> None:
        shared_barrier, other_shared_barrier = batching.SharedBarrier(), batching.SharedBarrier()
        first, second = await shared_barrier.gather(here(), here())
        (third,) = await shared_barrier.gather(here())
        (fourth,) = await other_shared_barrier.gather(here())
        assert first is second is third
        assert fourth is not first
        assert (await gather(here()))[0] not in (first, fourth)

    asyncio.run(run())
