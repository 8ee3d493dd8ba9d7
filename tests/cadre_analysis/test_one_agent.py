"""One agent in the place of a team: what it is shown, that it acts for all roles, and its reward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from cadre.env import Env, Split
from cadre.types import Message, Observation, Reward, Sample, Task, ToolCall
from cadre_analysis.one_agent import OneAgent

TASK = Task("test-0", {"word": "blue"})


class Letter(Env):
    """`writer` writes and `critic` judges, in turns; then both say at once whether it is good."""

    roles: ClassVar[tuple[str, ...]] = ("writer", "critic")

    def __init__(self, task: Task, greeting: str = "Hello") -> None:
        super().__init__(task)
        self.greeting, self.said = greeting, []

    def observe(self) -> dict[str, Observation]:
        first = (Message("system", "You write."), Message("user", f"{self.greeting}, write {self.task.data['word']}."))
        if not self.said:
            return {"writer": Observation("writer", first)}
        draft = self.said[0]
        if len(self.said) == 1:
            return {"critic": Observation("critic", (Message("system", "You judge."), Message("user", draft)))}
        if len(self.said) == 2:
            again = (*first, Message("assistant", draft), Message("user", f"The critic: {self.said[1]}. Good?"))
            return {
                "writer": Observation("writer", again),
                "critic": Observation("critic", (Message("user", "Good?"),)),
            }
        return {}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.said = [*self.said, " and ".join(f"{role} {text}" for role, text in sorted(actions.items()))]
        if len(actions) < 2:
            return Reward(local=dict.fromkeys(actions, 0.25))
        return Reward(team=1.0, local={"writer": 0.5, "critic": -0.125}, parts={"length": 2.0})

    @property
    def success(self) -> bool:
        return len(self.said) == 3

    @classmethod
    def tasks(cls, split: Split, greeting: str = "Hello") -> Sequence[Task]:
        return [Task(f"{split}-{greeting}", {"word": "blue"})]


OF = f"{Path(__file__)}:Letter"


def sample(text: str) -> Sample:
    return Sample("agent", "shared", text, (1,), (1,), (0.0,), "stop", 0)


def shown(env: OneAgent) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in env.observe()["agent"].messages]


def test_the_conversation_goes_on_from_role_to_role() -> None:
    env = OneAgent(TASK, OF, {"greeting": "Hi"})
    assert shown(env) == [("system", "You write."), ("user", "=== writer ===\n\nHi, write blue.")]
    assert asyncio.run(env.step({"agent": "azure"})) == Reward(local={"agent": 0.25})
    before = shown(env)
    assert before[2:] == [
        ("assistant", "azure"),
        ("user", "=== critic ===\n\nYou judge.\n\nwriter azure"),
    ]
    fork = env.fork()
    asyncio.run(env.step({"agent": "fine"}))
    # The writer's own answer is not shown a second time.
    assert shown(env) == [
        *before,
        ("assistant", "fine"),
        ("user", "=== writer ===\n\nThe critic: critic fine. Good?"),
    ]
    assert shown(fork) == before


def test_roles_that_act_at_once_are_asked_one_after_the_other_and_act_together() -> None:
    env = OneAgent(TASK, OF)
    for text in ("azure", "fine"):
        asyncio.run(env.step({"agent": text}))
    assert asyncio.run(env.step({"agent": "yes"})) == Reward()
    assert shown(env)[-2:] == [("assistant", "yes"), ("user", "=== critic ===\n\nGood?")]
    assert not env.success
    reward = asyncio.run(env.step({"agent": "no"}))
    assert reward == Reward(team=1.0, local={"agent": 0.375}, parts={"length": 2.0})
    assert (env.observe(), env.success, env.env.said[-1]) == ({}, True, "critic no and writer yes")


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


class Adder(Letter):
    """The writer may call a tool before it answers."""

    tools: ClassVar = {"writer": [add]}


def test_tools_of_the_acting_role_are_offered_and_run() -> None:
    env = OneAgent(TASK, f"{Path(__file__)}:{Adder.__name__}")
    assert [tool.name for tool in env.observe()["agent"].tools] == ["add"]
    calls = (ToolCall("call_0", "add", '{"first": 2, "second": 3}'),)
    called = replace(sample("I add."), message=Message("assistant", "I add.", calls))
    asyncio.run(env.step_samples({"agent": called}))
    messages = env.observe()["agent"].messages
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool"]
    assert messages[2].tool_calls == calls
    assert messages[3].content == "5"
    asyncio.run(env.step_samples({"agent": sample("azure")}))
    assert [tool.name for tool in env.observe()["agent"].tools] == []


def test_calls_of_tools_beside_another_role_lose_no_answer() -> None:
    env = OneAgent(TASK, f"{Path(__file__)}:{Adder.__name__}")
    for text in ("azure", "fine"):
        asyncio.run(env.step_samples({"agent": sample(text)}))
    calls = (ToolCall("call_0", "add", '{"first": 2, "second": 3}'),)
    called = replace(sample("I add."), message=Message("assistant", "I add.", calls))
    asyncio.run(env.step_samples({"agent": called}))
    asyncio.run(env.step_samples({"agent": sample("no")}))
    # The result is of a call that is not the last answer.
    assert shown(env)[-4:] == [
        ("assistant", "I add."),
        ("user", "=== critic ===\n\nGood?"),
        ("assistant", "no"),
        ("user", "=== writer ===\n\n5"),
    ]


class Walk(Env):
    """`walker` sees a prompt that is written anew each turn, with an example before it; the third is the second."""

    roles: ClassVar[tuple[str, ...]] = ("walker",)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.turn = 0

    def observe(self) -> dict[str, Observation]:
        example = (Message("user", "At 9."), Message("assistant", "left"))
        now = Message("user", f"At {min(self.turn, 1)}.")
        if self.turn == 3:
            return {}
        return {"walker": Observation("walker", (Message("system", "You walk."), *example, now))}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.turn += 1
        return Reward()

    @property
    def success(self) -> bool:
        return self.turn == 3

    @classmethod
    def tasks(cls, split: Split) -> Sequence[Task]:
        return [Task(split, {})]


def test_a_prompt_that_is_written_anew_is_shown_without_what_was_shown() -> None:
    env = OneAgent(TASK, f"{Path(__file__)}:{Walk.__name__}")
    assert shown(env) == [
        ("system", "You walk."),
        ("user", "=== walker ===\n\nAt 9.\n\n=== assistant ===\n\nleft\n\nAt 0."),
    ]
    for _ in range(2):
        asyncio.run(env.step({"agent": "right"}))
        # A prompt that is the same again is shown again, as it has to be answered again.
        assert shown(env)[-2:] == [("assistant", "right"), ("user", "=== walker ===\n\nAt 1.")]


def test_tasks_are_those_of_the_team() -> None:
    assert [task.id for task in OneAgent.tasks("test", of=OF, settings={"greeting": "Hi"})] == ["test-Hi"]
