"""Small environments and stand-ins that several tests play with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cadre.env import Env, GeneratedTasks, Split
from cadre.team import Team
from cadre.types import Message, Observation, Request, Reward, Sample, Sampling, Task
from cadre_programs.processes import ProgramFailed


class Digit(Env):
    """Say the digit that is shown. One role, one decision."""

    roles: ClassVar[tuple[str, ...]] = ("speaker",)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.said: str | None = None

    def observe(self) -> dict[str, Observation]:
        shown = Observation("speaker", (Message("user", str(self.task.data["digit"])),))
        return {} if self.said is not None else {"speaker": shown}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.said = actions["speaker"].strip()
        return Reward(team=float(self.success))

    @property
    def success(self) -> bool:
        return self.said == str(self.task.data["digit"])

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return GeneratedTasks(8, lambda index: {"digit": index % 4, "split": split}, split)


class Relay(Env):
    """`scout` leaves a note, then `runner` must repeat the note and the number of notes so far; `turns` times.

    The prompt names the state, so a test can tell which copy a prompt was made from.
    """

    roles: ClassVar[tuple[str, ...]] = ("scout", "runner")

    def __init__(self, task: Task, turns: int = 2) -> None:
        super().__init__(task)
        self.turns, self.turn, self.note, self.past = turns, 0, None, []  # type: int, int, str | None, list[str]
        self.right = 0

    def observe(self) -> dict[str, Observation]:
        if self.turn >= self.turns:
            return {}
        role = "scout" if self.note is None else "runner"
        text = f"{self.task.id} {role} turn={self.turn} note={self.note} past={','.join(self.past)}"
        return {role: Observation(role, (Message("user", text),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        if role == "scout":
            self.note = text
            return Reward(local={"scout": float(len(text))})
        right = text == self.note
        self.right += right
        self.past.append(f"{self.note}>{text}")
        self.turn, self.note = self.turn + 1, None
        return Reward(team=float(right), parts={"right": float(right)})

    @property
    def success(self) -> bool:
        return self.right == self.turns

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return GeneratedTasks(4, lambda index: {"index": index, "split": split}, split)


class Pair(Env):
    """Two roles act at once and are paid together when they agree; high first digits pay a little to each alone."""

    roles: ClassVar[tuple[str, ...]] = ("left", "right")

    def __init__(self, task: Task, turns: int = 1) -> None:
        super().__init__(task)
        self.turns, self.turn, self.agreed = turns, 0, 0

    def observe(self) -> dict[str, Observation]:
        if self.turn >= self.turns:
            return {}
        return {role: Observation(role, (Message("user", f"turn {self.turn}"),)) for role in self.roles}

    async def step(self, actions: dict[str, str]) -> Reward:
        agree = actions["left"] == actions["right"]
        self.turn, self.agreed = self.turn + 1, self.agreed + agree
        local = {role: int(text[0]) / 10 for role, text in actions.items() if text[:1].isdecimal()}
        return Reward(team=float(agree), local=local)

    @property
    def success(self) -> bool:
        return self.agreed == self.turns

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return GeneratedTasks(4, lambda index: {"index": index, "split": split}, split)


class Moody(Digit):
    """Digit that fails on the digit 1, and on every one from the third step of a training of four tasks a step on."""

    count: ClassVar[int] = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        type(self).count += task.data["split"] == "train"

    async def step(self, actions: dict[str, str]) -> Reward:
        if self.task.data["split"] == "train" and (self.task.data["digit"] == 1 or self.count > 2 * (4 + 1)):
            raise ValueError("in a mood")
        return await super().step(actions)


class Broken(Digit):
    """Digit played by a program that fails in every episode, which the samples are to blame for."""

    async def step(self, actions: dict[str, str]) -> Reward:
        failure = ProgramFailed("it cannot read its answers")
        failure.margin = 0.1
        raise failure


class Handshake(Env):
    """Both roles see a digit and act at once; each should say it. `pays` "each": half a point a role that does;
    "both": one point if both do, else nothing, so that only the joint action pays. The digit changes with the turn."""

    roles: ClassVar[tuple[str, ...]] = ("left", "right")

    def __init__(self, task: Task, pays: str = "each", turns: int = 1) -> None:
        super().__init__(task)
        self.pays, self.turns, self.turn, self.right = pays, turns, 0, 0

    @property
    def digit(self) -> str:
        return str((int(self.task.data["digit"]) + self.turn) % 4)

    def observe(self) -> dict[str, Observation]:
        if self.turn >= self.turns:
            return {}
        return {role: Observation(role, (Message("user", self.digit),)) for role in self.roles}

    async def step(self, actions: dict[str, str]) -> Reward:
        parts = {role: float(text == self.digit) for role, text in actions.items()}
        right = sum(parts.values())
        self.turn, self.right = self.turn + 1, self.right + (right == 2)
        return Reward(team=right / 2 if self.pays == "each" else float(right == 2), parts=parts)

    @property
    def success(self) -> bool:
        return self.right == self.turns

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return GeneratedTasks(8, lambda index: {"digit": index % 4, "split": split}, split)


class HandshakeSingleAgent(Handshake):
    """One agent says both digits, in one text."""

    roles: ClassVar[tuple[str, ...]] = ("both",)

    async def step(self, actions: dict[str, str]) -> Reward:
        text = actions["both"]
        return await super().step({"left": text[:1], "right": text[1:]})


class Whisper(Env):
    """`teller` sees a digit and says one, which pays nobody; then `echo` sees it and says it. Half a point each, paid
    to the team when both have spoken."""

    roles: ClassVar[tuple[str, ...]] = ("teller", "echo")

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.said: list[str] = []

    def observe(self) -> dict[str, Observation]:
        if len(self.said) == len(self.roles):
            return {}
        role = self.roles[len(self.said)]
        return {role: Observation(role, (Message("user", str(self.task.data["digit"])),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.said += actions.values()
        return Reward() if len(self.said) == 1 else Reward(team=self.right / 2)

    @property
    def right(self) -> int:
        return self.said.count(str(self.task.data["digit"]))

    @property
    def success(self) -> bool:
        return self.right == 2

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return GeneratedTasks(8, lambda index: {"digit": index % 4, "split": split}, split)


class Trio(Env):
    """A writer says a digit, an editor another, and a judge anything; high digits pay the role that said them."""

    roles: ClassVar[tuple[str, ...]] = ("writer", "editor", "judge")

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.texts: list[str] = []

    def observe(self) -> dict[str, Observation]:
        if len(self.texts) == len(self.roles):
            return {}
        role = self.roles[len(self.texts)]
        return {role: Observation(role, (Message("user", f"{len(self.texts)}{self.task.data['index']}"),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        self.texts.append(text)
        return Reward(local={role: int(text[0]) / 10 if text[:1].isdecimal() and text.isascii() else 0.0})

    @property
    def success(self) -> bool:
        return len(self.texts) == len(self.roles)

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return GeneratedTasks(4, lambda index: {"index": index, "split": split}, split)


@dataclass
class Scripted:
    """A sampler that answers by a function of the request and the sibling's index, and remembers what it was asked."""

    answer: Callable[[Request, int], str]
    requests: list[Request] = field(default_factory=list)

    async def sample(self, request: Request) -> list[Sample]:
        self.requests.append(request)
        prompt = tuple("".join(message.content for message in request.messages).encode())
        texts = [self.answer(request, index) for index in range(request.count)]
        return [
            Sample(request.role, request.policy, text, prompt, tuple(text.encode()), (-1.0,) * len(text), "stop", 0)
            for text in texts
        ]


def scripted_team(env: type[Env], answer: Callable[[Request, int], str]) -> tuple[Team, Scripted]:
    """One scripted policy in every role."""
    sampler = Scripted(answer)
    team = Team(dict.fromkeys(env.roles, "shared"), {"shared": sampler}, dict.fromkeys(env.roles, Sampling()))
    return team, sampler
