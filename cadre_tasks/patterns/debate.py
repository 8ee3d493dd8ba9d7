"""Debate: n agents answer at once, see each other's answers, and answer again; the majority answer is the team's.

Each is rewarded for its own last answer, and all while the majority of the last answers is right: neither stubbornness
nor changing sides for its own sake earns anything.
"""

from __future__ import annotations

import asyncio
from typing import Any

from cadre.types import Observation, Reward, Task
from cadre_tasks.patterns.question import TEAM, Count, Question, Several, asked, listed, numbered


class Debate(Question):
    """Settings, beside those of `Question`: how many `agents`, and how many `rounds`."""

    def __init__(self, task: Task, rounds: Count = 2, **settings: Any) -> None:
        super().__init__(task, **settings)
        self.names, self.rounds, self.round = self.roles_of(**settings), rounds, 0
        self.said: dict[str, str] = {}

    @classmethod
    def roles_of(cls, agents: Several = 3, **settings: Any) -> tuple[str, ...]:
        return numbered("debater", agents)

    def observe(self) -> dict[str, Observation]:
        if self.round >= self.rounds:
            return {}
        return {name: asked(name, self.question, self.others(name)) for name in self.names}

    def others(self, name: str) -> str:
        """Return the last answers of the agent itself and of the others."""
        if not self.said:
            return ""
        peer_answers = listed("Another's answer", [self.said[peer] for peer in self.names if peer != name])
        last_answer = f"You said:\n{self.said[name][-1500:]}"
        return f"{last_answer}\n\n{peer_answers}\n\nAnswer again, and change your mind where they are right."

    async def step(self, actions: dict[str, str]) -> Reward:
        right = await asyncio.gather(*(self.right(actions[name]) for name in self.names))
        self.won = await self.majority(actions[name] for name in self.names)
        self.said, self.round = dict(actions), self.round + 1
        local = {name: self.earned(actions[name], is_right) for name, is_right in zip(self.names, right, strict=True)}
        return self.settle(TEAM * self.won, local, {"majority": float(self.won)})
