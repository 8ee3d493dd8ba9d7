"""Self-consistency with an aggregator: one role answers n times, each as if it were the first, another picks.

Each of the n answers earns its author an n-th of the reward of an answer, the aggregator's the whole. While the answers
come in, the team's value is that of their majority so far; at the end the aggregator's choice decides.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from cadre.types import Observation, Reward, Task
from cadre_tasks.patterns.question import TEAM, Count, Question, asked, listed


class Gather(Question):
    """Settings, beside those of `Question`: how many `answers`."""

    roles: ClassVar[tuple[str, ...]] = ("solver", "aggregator")

    def __init__(self, task: Task, answers: Count = 4, **data: Any) -> None:
        super().__init__(task, **data)
        self.count, self.over = answers, False
        self.answers: tuple[str, ...] = ()

    def observe(self) -> dict[str, Observation]:
        if self.over:
            return {}
        if len(self.answers) < self.count:
            return {"solver": asked("solver", self.question)}
        answers = listed("Answer", self.answers)
        return {
            "aggregator": asked("aggregator", self.question, answers, "Compare these answers and give the right one.")
        }

    async def step(self, actions: dict[str, str]) -> Reward:
        if "solver" in actions:
            return await self.solved(actions["solver"])
        self.won, self.over = await self.right(actions["aggregator"]), True
        local = {"aggregator": self.earned(actions["aggregator"], self.won)}
        return self.settle(TEAM * self.won, local, {"right": float(self.won)})

    async def solved(self, answer: str) -> Reward:
        self.answers = (*self.answers, answer)
        right, majority = await asyncio.gather(self.right(answer), self.majority(self.answers))
        # An n-th each, so that n right answers earn as much as one answer in the other patterns.
        solver = self.account.local.get("solver", 0.0) + self.earned(answer, right) / self.count
        return self.settle(TEAM * majority, {"solver": solver}, {"solver": float(right)})
