"""Samplers that note their batches, and environments that take their time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import Any

from cadre.rollout import batching
from cadre.team import Team
from cadre.types import Observation, Request, Reward, Sample, Sampling
from tests.helpers.games import Digit


async def nap() -> None:
    """A little while, never the same."""
    await asyncio.sleep(random.random() / 500)


def finished(work: Awaitable[Any]) -> Any:
    """Return the result of the work; work that would wait for ever fails the test instead."""

    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(bounded())


class Batching:
    """A sampler that takes turns. It remembers its batches, and answers requests one by one, each after a while."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.under_way = 0

    async def sample(self, request: Request) -> list[Sample]:
        await self.ask(request.messages[-1].content)
        texts = (str(k) for k in range(request.count))
        return [Sample(request.role, request.policy, text, (0,), (0,), (0.0,), "stop", 0) for text in texts]

    async def ask(self, name: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with batching.wait_for_batch(self.run, (name, future)):
            await future

    async def run(self, batch: Sequence[tuple[str, asyncio.Future[None]]]) -> None:
        self.batches.append([name for name, _ in batch])
        self.under_way += 1
        for _, future in random.sample(batch, len(batch)):
            await nap()
            if not future.done():
                future.set_result(None)
        await nap()
        self.under_way -= 1


class Slow(Digit):
    """Digit, in which some tasks break."""

    breaks: str = ""
    broken: tuple[int, ...] = ()

    def observe(self) -> dict[str, Observation]:
        if self.breaks == "observe" and self.task.data["digit"] in self.broken and self.said is not None:
            raise ValueError("cannot look")
        return super().observe()

    async def step(self, actions: dict[str, str]) -> Reward:
        await nap()
        if self.breaks == "step" and self.task.data["digit"] in self.broken:
            raise ValueError("cannot step")
        return await super().step(actions)


def team_of(env: type[Any], sampler: Any) -> Team:
    return Team(dict.fromkeys(env.roles, "p"), {"p": sampler}, dict.fromkeys(env.roles, Sampling()))
