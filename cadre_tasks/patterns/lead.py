"""A leader with workers: it splits the question into as many jobs, each worker does one, and it answers from reports.

The leader's answer is rewarded for the leader as its author, and for the whole team. The value of a plan or a report is
not known at its own step: they are not rewarded, so that an algorithm with look-ahead judges them by the answer that
follows. Workers see a job and not the question; they may be frozen (`frozen: true` in the YAML), or trained with the
rest.
"""

from __future__ import annotations

import re
from typing import Any

from cadre.types import Observation, Reward, Task
from cadre_tasks.patterns.question import TEAM, Count, Question, asked, listed, numbered

# Also `**1.** ...`, `(1) ...` and `Worker 1: ...`; not a number with a point in it, which begins an answer.
JOB = re.compile(
    r"^[ \t]{0,8}[*_]{0,3}\(?(?:worker |job |task )?\d{1,3}(?:[.):]+[*_]{0,3}(?!\d)|[*_]{1,3}[.):])[ \t]*(\S.*)$",
    re.MULTILINE | re.IGNORECASE,
)


class Lead(Question):
    """Settings, beside those of `Question`: how many `workers`."""

    def __init__(self, task: Task, **settings: Any) -> None:
        super().__init__(task, **settings)
        self.workers, self.phase = self.roles_of(**settings)[1:], 0
        self.jobs: tuple[str, ...] = ()
        self.reports: tuple[str, ...] = ()

    @classmethod
    def roles_of(cls, workers: Count = 2, **settings: Any) -> tuple[str, ...]:
        return ("leader", *numbered("worker", workers))

    def observe(self) -> dict[str, Observation]:
        """Return the prompts: the leader plans, the workers that have a job act at once, the leader answers."""
        if self.phase == 0:
            plan = f"Write at most {len(self.workers)} jobs for your workers as a numbered list. They see nothing else."
            return {"leader": asked("leader", self.question, plan)}
        if self.phase == 1:
            return {name: asked(name, job) for name, job in zip(self.workers, self.jobs, strict=False)}
        if self.phase == 2:
            return {"leader": asked("leader", self.question, listed("Report", self.reports), "Now answer.")}
        return {}

    async def step(self, actions: dict[str, str]) -> Reward:
        if self.phase == 0:
            return self.planned(actions["leader"])
        if self.phase == 1:
            self.reports, self.phase = tuple(actions[name] for name in self.workers if name in actions), 2
            return Reward()
        self.won, self.phase = await self.right(actions["leader"]), 3
        leader = self.earned(actions["leader"], self.won)
        return self.settle(TEAM * self.won, {"leader": leader}, {"right": float(self.won)})

    def planned(self, text: str) -> Reward:
        jobs = tuple(job.strip() for job in JOB.findall(text))
        self.jobs = jobs[: len(self.workers)]
        # Without a job nobody could act: the leader answers at once.
        self.phase = 1 if self.jobs else 2
        return Reward(parts={"jobs": float(len(self.jobs))})
