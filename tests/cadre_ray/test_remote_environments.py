"""Environments that step elsewhere: they are what their state is, and a blocked process holds up no other."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from cadre.env import Env
from cadre.types import Observation, Reward, Sample, Task
from cadre_ray import remote
from cadre_ray.remote import EnvironmentPool, RemoteEnv


class ToldTask(Env):
    roles = ("left",)
    repeatable = False
    rewards_absent = True

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.done: list[Any] = []

    def observe(self) -> dict[str, Observation]:
        return {}

    async def until_ready(self) -> None:
        self.done.append("ready")

    async def step(self, actions: dict[str, str]) -> Reward:
        self.done.append(actions)
        return Reward()

    async def step_samples(self, samples: Any) -> Reward:
        self.done.append(samples)
        return Reward(1.0)

    def close(self) -> None:
        self.done.append("closed")

    def render(self) -> str:
        return "a board"

    success = True


class Here(EnvironmentPool):
    """Steps in this process."""

    def __init__(self) -> None:
        super().__init__([])

    async def step(self, env: Env, expected: Any) -> tuple[Env, Reward]:
        samples = all(isinstance(text, Sample) for text in expected.values())
        return env, await (env.step_samples(expected) if samples else env.step(expected))


def test_a_hosted_environment_is_what_its_state_is() -> None:
    inner = ToldTask(Task("t", {}))
    hosted = RemoteEnv(inner, Here())
    sample = Sample("left", "p", "x", (), (), (), "stop", 0)

    async def play() -> Reward:
        await hosted.until_ready()
        await hosted.step({"left": "x"})
        return await hosted.step_samples({"left": sample})

    assert asyncio.run(play()) == Reward(1.0)
    hosted.close()
    assert inner.done == ["ready", {"left": "x"}, {"left": sample}, "closed"]
    assert (hosted.repeatable, hosted.rewards_absent, hosted.render()) == (False, True, "a board")
    assert hosted.fork().rewards_absent


class Remote:
    """A method of an actor whose loop is held up from the first step that hangs."""

    def __init__(self, actor: EnvActor, name: str) -> None:
        self.actor, self.name = actor, name

    async def remote(self, env: Any = None, expected: Any = None) -> Any:
        self.actor.blocked |= expected == {"left": "hang"}
        if self.actor.blocked or expected == {"left": "slow"}:  # which waits, and holds up nobody else
            await asyncio.sleep(60)
        return (env, Reward()) if self.name == "step" else 1


class EnvActor:
    def __init__(self) -> None:
        self.blocked = False
        self.step, self.pid = Remote(self, "step"), Remote(self, "pid")


class ReplacedActor:
    """A member whose actors are in this process."""

    def __init__(self) -> None:
        self.handle, self.renewed = EnvActor(), 0

    def call(self, work: Any) -> None:
        pass

    def replace_stuck(self, stuck: EnvActor) -> None:
        assert self.handle is stuck
        self.handle, self.renewed = EnvActor(), self.renewed + 1


def test_a_process_that_a_step_has_blocked_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile others are asked; one whose step was given up for another reason is kept."""
    pytest.importorskip("ray")
    monkeypatch.setattr(remote, "ANSWER_S", 0.2)
    first, second = members = [ReplacedActor(), ReplacedActor()]
    hosts, env = EnvironmentPool(members), ToldTask(Task("t", {}))  # type: ignore[arg-type]

    async def idle() -> None:
        until = time.monotonic() + 10
        while hosts.running != [0, 0] and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert hosts.running == [0, 0]

    async def play() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hosts.step(env, {"left": "hang"}), 0.05)
        for _ in range(4):
            await asyncio.wait_for(hosts.step(env, {"left": "fine"}), 10.0)
        await idle()
        assert (first.renewed, second.renewed) == (1, 0)
        given_up = asyncio.ensure_future(hosts.step(env, {"left": "slow"}))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await idle()
        assert (first.renewed, second.renewed) == (1, 0)

    asyncio.run(play())
