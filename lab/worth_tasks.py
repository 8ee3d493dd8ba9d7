"""The situations of lab/worth.py: tasks of a few digits in which a second agent may or may not be worth its tokens.

Everybody speaks in single digits. A prompt is a digit that says whose turn it is and digits that say what is seen, of
which 7 stands for nothing.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from cadre import random_keys
from cadre.env import Env, GeneratedTasks, Split
from cadre.types import Message, Observation, Reward, Task

FIRST, SECOND, NOTHING = "8", "9", "7"
# Those that a channel passes on.
DIGITS = tuple("01234568")


def shown(role: str, *digits: str | int) -> dict[str, Observation]:
    return {role: Observation(role, (Message("user", "".join(map(str, digits))),))}


class InTurns(Env):
    """`first` speaks and then `second`, whose answer is the team's; with `single_agent` the second is alone."""

    roles: ClassVar[tuple[str, ...]] = ("first", "second")

    def __init__(self, task: Task, single_agent: bool = False) -> None:
        super().__init__(task)
        self.truth = int(task.data["truth"])
        self.said: list[str] = [NOTHING] if single_agent else []

    def sees(self, role: str) -> tuple[str | int, ...]:
        """Return the part of a role's observation after the marker of its turn."""
        raise NotImplementedError

    def observe(self) -> dict[str, Observation]:
        if len(self.said) == len(self.roles):
            return {}
        role = self.roles[len(self.said)]
        return shown(role, FIRST if role == "first" else SECOND, *self.sees(role))

    async def step(self, actions: dict[str, str]) -> Reward:
        self.said += actions.values()
        return Reward(team=float(self.success)) if not self.observe() else Reward()

    def fork(self) -> Self:
        clone = copy.copy(self)
        clone.said = list(self.said)
        return clone

    @property
    def success(self) -> bool:
        return len(self.said) == 2 and self.said[1] == str(self.truth)

    @classmethod
    def roles_of(cls, single_agent: bool = False, **settings: Any) -> tuple[str, ...]:
        return cls.roles[1:] if single_agent else cls.roles

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return GeneratedTasks(4000, lambda index: cls.drawn(random_keys.generator(cls.__name__, split, index)), split)

    @classmethod
    def drawn(cls, luck: random.Random) -> dict[str, Any]:
        """Return a task's data: the digit that is asked for, and random numbers from 0 to 1."""
        return {"truth": luck.randrange(4), "luck": [luck.random() for _ in range(4)]}


class Relay(InTurns):
    """Only the first sees the digit that is asked for; the second sees it in `known_fraction` of the tasks."""

    def __init__(self, task: Task, known_fraction: float = 0.0, single_agent: bool = False) -> None:
        super().__init__(task, single_agent)
        self.open = task.data["luck"][0] < known_fraction

    def sees(self, role: str) -> tuple[str | int, ...]:
        return (self.truth,) if role == "first" else (self.said[0], self.truth if self.open else NOTHING)


class Second(Relay):
    """The second role of Relay alone."""

    def __init__(self, task: Task, known_fraction: float = 0.0) -> None:
        super().__init__(task, known_fraction, single_agent=True)

    @classmethod
    def roles_of(cls, **settings: Any) -> tuple[str, ...]:
        return cls.roles[1:]


class Channel(InTurns):
    """Only the first sees the digit, one of four; of what it says only the remainder by `width` arrives, and 0 where it
    says something else, as silence would be one more sign."""

    def __init__(self, task: Task, width: int = 4, single_agent: bool = False) -> None:
        super().__init__(task, single_agent)
        self.width = width

    def sees(self, role: str) -> tuple[str | int, ...]:
        if role == "first":
            return (self.truth,)
        message = self.said[0]
        return (int(message) % self.width if message in DIGITS else 0,)


class Verifier(InTurns):
    """Each sees the digit in 60% of the tasks, else nothing; in the share `same` of the tasks both do or neither."""

    SEES = 0.6

    def __init__(self, task: Task, same: float = 0.0, single_agent: bool = False) -> None:
        super().__init__(task, single_agent)
        second_luck, first_luck, together, _ = task.data["luck"]
        self.hints = {
            "second": second_luck < self.SEES,
            "first": (second_luck if together < same else first_luck) < self.SEES,
        }

    def sees(self, role: str) -> tuple[str | int, ...]:
        hint = self.truth if self.hints[role] else NOTHING
        return (hint,) if role == "first" else (self.said[0], hint)


class Jobs(Env):
    """Two jobs that are done at once: each is given two digits and has a table of answers. In `differ_fraction` of
    the table the jobs want different answers, elsewhere the same one."""

    roles: ClassVar[tuple[str, ...]] = ("first", "second")

    def __init__(self, task: Task, differ_fraction: float = 1.0) -> None:
        super().__init__(task)
        self.given, self.right, self.over = (task.data["row"], task.data["column"]), 0, False
        luck = random_keys.generator("table", *self.given)
        answer, differs = luck.randrange(4), luck.random() < differ_fraction
        self.wanted = {"first": str(answer), "second": str((answer + 1 + luck.randrange(3)) % 4 if differs else answer)}

    def observe(self) -> dict[str, Observation]:
        if self.over:
            return {}
        return shown("first", FIRST, *self.given) | shown("second", SECOND, *self.given)

    async def step(self, actions: dict[str, str]) -> Reward:
        self.over = True
        rewards = {role: float(answer == self.wanted[role]) for role, answer in actions.items()}
        self.right = round(sum(rewards.values()))
        return Reward(local=rewards)

    @property
    def success(self) -> bool:
        return self.right == 2

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        def drawn(index: int) -> dict[str, Any]:
            luck = random_keys.generator("jobs", split, index)
            return {"row": luck.randrange(4), "column": luck.randrange(4), "number": index, "split": split}

        return GeneratedTasks(4000, drawn, split)
