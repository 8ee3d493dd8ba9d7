"""Environments of random words for measuring speed: prompts and answers have the same lengths whatever a model writes.

`Words` is one answer to one prompt; `Talk` is two roles that speak in turn. The reward is a checksum of what was
written, so that a group's rewards differ and every completion is trained on. No task is ever solved.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from cadre import Env, Message, Observation, Reward, Task

# Numbers below are those of special tokens and roles in the tokenizer of gpu_models.py.
FIRST_WORD = 8
TASKS = 2_048


def random_words(seed: int, length: int, vocabulary: int) -> str:
    """Return a text of `length` words, each a token of the tokenizer of gpu_models.py."""
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(FIRST_WORD, vocabulary)}" for _ in range(length))


def checksum(text: str) -> float:
    """Return a number from 0 to 1 that two texts almost never share."""
    return (zlib.crc32(text.encode()) % 10_007) / 10_007


class Words(Env):
    """A prompt of `length` random words, and one answer."""

    roles = ("writer",)

    def __init__(self, task: Task, length: int = 512, vocabulary: int = 151_936) -> None:
        super().__init__(task)
        self.length, self.vocabulary = length, vocabulary
        self.answer: str | None = None

    @classmethod
    def tasks(cls, split: str, **settings: Any) -> list[Task]:
        start = 0 if split == "train" else TASKS
        return [Task(f"{split}-{seed}", {"seed": seed}) for seed in range(start, start + TASKS)]

    def observe(self) -> dict[str, Observation]:
        if self.answer is not None:
            return {}
        text = random_words(self.task.data["seed"], self.length, self.vocabulary)
        return {"writer": Observation("writer", (Message("user", text),))}

    async def step(self, actions: Mapping[str, str]) -> Reward:
        self.answer = actions["writer"]
        return Reward(team=checksum(self.answer))

    @property
    def success(self) -> bool:
        return False


class Talk(Env):
    """A planner and a tool that speak in turn, `turns` times each, after a prompt of `length` words for both.

    A role's conversation grows by its own words and by those of the other. The length of an answer is drawn for each
    task and turn from a quarter of `longest` to all of it, as answers of real episodes differ in length.
    """

    roles = ("planner", "tool")

    def __init__(
        self, task: Task, length: int = 256, vocabulary: int = 151_936, turns: int = 3, longest: int = 192
    ) -> None:
        super().__init__(task)
        self.length, self.vocabulary, self.turns, self.longest = length, vocabulary, turns, longest
        self.texts: list[str] = []

    @classmethod
    def tasks(cls, split: str, **settings: Any) -> list[Task]:
        return Words.tasks(split)

    def observe(self) -> dict[str, Observation]:
        number = len(self.texts)
        if number == len(self.roles) * self.turns:
            return {}
        role, seed = self.roles[number % 2], self.task.data["seed"]
        messages = [Message("user", random_words(seed, self.length, self.vocabulary))]
        for index, text in enumerate(self.texts):
            messages.append(Message("assistant" if self.roles[index % 2] == role else "user", text))
        limit = random.Random(f"{seed} {number}").randint(max(1, self.longest // 4), self.longest)
        return {role: Observation(role, tuple(_alternating(messages)), max_tokens=limit)}

    async def step(self, actions: Mapping[str, str]) -> Reward:
        self.texts.append(next(iter(actions.values())))
        return Reward(team=checksum(self.texts[-1]))

    @property
    def success(self) -> bool:
        return False


def _alternating(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with two of the same author in a row made one, as chat templates expect."""
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1].role == message.role:
            merged[-1] = Message(message.role, f"{merged[-1].content} {message.content}")
        else:
            merged.append(message)
    return merged
