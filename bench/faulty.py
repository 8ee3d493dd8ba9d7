"""Games that go wrong as bench/faults.py asks: the tests' Digit, whose steps raise, hang, or run a program each.

Which steps go wrong is drawn from the task, the text and the number of the process's step, so a second try may be well.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from cadre.env import Split
from cadre.types import Reward, Task
from cadre_tasks import sandbox
from tests.helpers.games import Digit

_steps = count()


class Faulty(Digit):
    """Digit whose steps raise with the chance `raises`, and hang with the chance `hangs`."""

    def __init__(self, task: Task, raises: float = 0.0, hangs: float = 0.0) -> None:
        super().__init__(task)
        self.raises, self.hangs = raises, hangs

    async def step(self, actions: dict[str, str]) -> Reward:
        drawn = random.Random(f"{self.task.id} {actions} {next(_steps)}").random()
        if drawn < self.raises:
            raise ValueError("a step that raises")
        if drawn < self.raises + self.hangs / 2:
            await asyncio.sleep(1e6)
        if drawn < self.raises + self.hangs:
            time.sleep(1e6)
        return await super().step(actions)

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return Digit.tasks(split)


class Programs(Digit):
    """Pays 1 for every step, as the program that it runs is always right: less would be a verdict on a sandbox."""

    async def step(self, actions: dict[str, str]) -> Reward:
        self.said = actions["speaker"]
        ran = await sandbox.run("import time; time.sleep(0.1); print(7)")
        return Reward(team=float(ran.stdout == "7\n"))
