"""One model writes every role's part: any environment as a game of the single role `team` (MAGRPO's centralised form).

Where several roles act at once, `team` sees all their conversations in one prompt and answers with a marked part for
each; where one acts, it sees and says what that role would. What it leaves out: nothing of the environment is changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from cadre.env import Env, Split
from cadre.types import Drawing, Message, Observation, Reward, Task, images_of

TEAM = "team"


def centralised(env_class: type[Env]) -> type[Env]:
    """The environment class whose episodes are those of `env_class`, played by the one role `team`."""
    return type(f"Central{env_class.__name__}", (Central,), {"inner": env_class})


class Central(Env):
    """Owns one episode of `inner`. The sum of the roles' local rewards is the local reward of `team`."""

    roles: ClassVar[tuple[str, ...]] = (TEAM,)
    inner: ClassVar[type[Env]]

    def __init__(self, task: Task, **settings: Any) -> None:
        super().__init__(task)
        self.env = self.inner(task, **settings)
        self.repeatable = self.env.repeatable

    async def until_ready(self) -> None:
        await self.env.until_ready()

    def observe(self) -> dict[str, Observation]:
        asked = self.env.observe()
        return {TEAM: Observation(TEAM, joint_prompt(asked))} if asked else {}

    async def step(self, actions: dict[str, str]) -> Reward:
        reward = await self.env.step(parts(actions[TEAM], list(self.env.observe())))
        local = {TEAM: sum(reward.local.values())} if reward.local else {}
        return Reward(reward.team, local, reward.parts)

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin.env = self.env.fork()
        return twin

    def close(self) -> None:
        self.env.close()

    def privileged(self) -> str:
        return self.env.privileged()

    def render(self) -> Drawing:
        return self.env.render()

    @property
    def success(self) -> bool:
        return self.env.success

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return cls.inner.tasks(split, **settings)


def mark(role: str) -> str:
    """The line that stands above a role's part, in the prompt and in the answer."""
    return f"=== {role} ==="


def joint_prompt(asked: Mapping[str, Observation]) -> tuple[Message, ...]:
    """The conversation of the one role that acts, or those of several in one message with how to answer."""
    if len(asked) == 1:
        (only,) = asked.values()
        return only.messages
    seen = (f"{mark(role)}\n{_conversation(observation.messages)}" for role, observation in asked.items())
    form = "\n".join(f"{mark(role)}\n(what {role} says)" for role in asked)
    text = (
        f"You speak for all of {', '.join(asked)} at once. This is what each of them sees:\n\n"
        + "\n\n".join(seen)
        + f"\n\nAnswer with a part for each of them, below a line that names it:\n{form}"
    )
    images = images_of(message for observation in asked.values() for message in observation.messages)
    return (Message("user", text, images=images),)


def _conversation(messages: Sequence[Message]) -> str:
    """A conversation as text; who said what is told only where there is more than one message."""
    if len(messages) == 1:
        return messages[0].content
    return "\n".join(f"[{message.role}]\n{message.content}" for message in messages)


def joint_text(said: Mapping[str, str]) -> str:
    """What `parts` takes apart again: the text of the one role that acts, or those of several, each below its mark."""
    if len(said) == 1:
        (only,) = said.values()
        return only
    return "\n".join(f"{mark(role)}\n{text}" for role, text in said.items())


def parts(text: str, acting: Sequence[str]) -> dict[str, str]:
    """What each acting role says: what stands between its mark and the next, the last time that it is marked.

    A mark is a line of its own. A role without one says nothing, and what precedes the first mark is nobody's. One
    pass over the lines, whatever they hold. Where one role acts, all of the text is its.
    """
    if len(acting) == 1:
        return {acting[0]: text}
    marks = {mark(role): role for role in acting}
    said: dict[str, list[str]] = {role: [] for role in acting}
    speaking: list[str] = []
    for line in text.split("\n"):
        role = marks.get(line.strip())
        if role is None:
            speaking.append(line)
        else:
            speaking = said[role] = []
    return {role: "\n".join(lines).strip("\r\n") for role, lines in said.items()}
