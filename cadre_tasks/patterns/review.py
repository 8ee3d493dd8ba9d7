"""Review by peers: all answer, each judges the next one's answer, each revises its own; the majority answer counts.

An answer is rewarded for its author, a true verdict earns .2 and a false one -.2, and all are rewarded while the
majority of the last answers is right. A review changes no answer, so that step rewards the reviewers alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from cadre.types import Observation, Reward, Task
from cadre_tasks.patterns.question import TEAM, VERDICT, Question, Several, asked, numbered, verdict

# The reward of a true verdict; a false one costs as much.
JUDGED = 0.2


class Review(Question):
    """Settings, beside those of `Question`: how many `agents`, two or more."""

    def __init__(self, task: Task, **settings: Any) -> None:
        super().__init__(task, **settings)
        # Phases: 0 answers, 1 reviews, 2 second answers, 3 the end.
        self.names, self.phase = self.roles_of(**settings), 0
        self.answers: dict[str, str] = {}
        self.reviews: dict[str, str] = {}
        self.correct: dict[str, bool] = {}
        # The reward of each author's review so far.
        self.verdicts = dict.fromkeys(self.names, 0.0)

    @classmethod
    def roles_of(cls, agents: Several = 2, **settings: Any) -> tuple[str, ...]:
        return numbered("author", agents)

    def reviewed_by(self, name: str) -> str:
        """Return the author whose answer this author judges: the next one in the circle."""
        return self.names[(self.names.index(name) + 1) % len(self.names)]

    def observe(self) -> dict[str, Observation]:
        return {name: self.ask(name) for name in self.names} if self.phase < 3 else {}

    def ask(self, name: str) -> Observation:
        if self.phase == 0:
            return asked(name, self.question)
        if self.phase == 1:
            peer_answer = self.answers[self.reviewed_by(name)]
            return asked(name, "Review this answer of a peer.", self.question, peer_answer[-3000:], VERDICT)
        # The inverse of `reviewed_by`; index -1 closes the circle.
        reviewer = self.names[self.names.index(name) - 1]
        answer, review = self.answers[name][-3000:], self.reviews[reviewer][-1500:]
        return asked(
            name, self.question, f"Your answer:\n{answer}", f"A peer's review of it:\n{review}", "Answer again."
        )

    async def step(self, actions: dict[str, str]) -> Reward:
        self.phase += 1
        # The phase has been advanced: 2 means that reviews were given.
        return self.judged(actions) if self.phase == 2 else await self.answered(actions)

    def judged(self, reviews: dict[str, str]) -> Reward:
        self.reviews = dict(reviews)
        is_true = {name: verdict(reviews[name]) == WORDS[self.correct[self.reviewed_by(name)]] for name in self.names}
        self.verdicts = {name: JUDGED if is_true[name] else -JUDGED for name in self.names}
        return self.paid()

    async def answered(self, answers: dict[str, str]) -> Reward:
        self.answers = dict(answers)
        right = await asyncio.gather(*(self.right(answers[name]) for name in self.names))
        self.correct = dict(zip(self.names, right, strict=True))
        self.won = await self.majority(answers[name] for name in self.names)
        return self.paid({"majority": float(self.won)})

    def paid(self, parts: Mapping[str, float] | None = None) -> Reward:
        local = {name: self.earned(self.answers[name], self.correct[name]) for name in self.names}
        return self.settle(TEAM * self.won, {name: local[name] + self.verdicts[name] for name in self.names}, parts)


WORDS = {True: "right", False: "wrong"}
