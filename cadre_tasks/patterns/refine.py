"""Generate, verify, refine: one answers, another judges the answer, and unless it finds it right the first tries again.

The generator is rewarded for its last answer. A true verdict earns the verifier a share of half a point, a false one
costs it; a verdict that ends the episode counts for all the remaining rounds, so that a verifier who is always right
gets half a point, however early the episode ends. The team's value has its half for a right answer until the verdict: a
verdict that sends a right answer back costs the team that half.
"""

from __future__ import annotations

from typing import Any, ClassVar

from cadre.types import Observation, Reward, Task
from cadre_tasks.patterns.question import TEAM, VERDICT, Count, Question, asked, verdict

# The sum of the rewards for true verdicts in all rounds.
VERDICTS = 0.5


class Refine(Question):
    """Settings, beside those of `Question`: how many `rounds` at most."""

    roles: ClassVar[tuple[str, ...]] = ("generator", "verifier")

    def __init__(self, task: Task, rounds: Count = 3, **data: Any) -> None:
        super().__init__(task, **data)
        self.rounds, self.round, self.answer, self.criticism, self.over = rounds, 0, "", "", False
        self.judging = False

    def observe(self) -> dict[str, Observation]:
        if self.over:
            return {}
        if self.judging:
            return {"verifier": asked("verifier", "Check this answer.", self.question, self.answer[-3000:], VERDICT)}
        past = f"Your last answer:\n{self.answer[-3000:]}\n\nWhat a reader says:\n{self.criticism[-1500:]}"
        return {"generator": asked("generator", self.question, past if self.round else "")}

    async def step(self, actions: dict[str, str]) -> Reward:
        if self.judging:
            return self.judged(actions["verifier"])
        self.answer, self.judging = actions["generator"], True
        self.won = await self.right(self.answer)
        return self.settle(
            TEAM * self.won, {"generator": self.earned(self.answer, self.won)}, {"right": float(self.won)}
        )

    def judged(self, text: str) -> Reward:
        judgement, rounds_left = verdict(text), self.rounds - self.round
        self.criticism, self.judging, self.round = text, False, self.round + 1
        self.over = judgement == "right" or self.round >= self.rounds
        is_true = judgement is not None and (judgement == "right") == self.won
        # A verdict that ends the episode counts for all remaining rounds, so that ending early is neither gain nor
        # loss.
        reward = VERDICTS * (1 if is_true else -1) * (rounds_left if self.over else 1) / self.rounds
        verifier = self.account.local.get("verifier", 0.0) + reward
        return self.settle(TEAM * (self.won and self.over), {"verifier": verifier}, {"verdict": float(is_true)})
