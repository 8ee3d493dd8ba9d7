"""Wrappers of environment classes: one policy for all roles, and system messages by role.

`centralised` turns an environment into a game of the single role `team` (MAGRPO's centralised form). Where several
roles act at once, `team` gets all their conversations in one prompt and answers with a marked part for each; where one
acts, it sees and says what that role would. `with_prompts` puts a system message before all that a role sees
(`team.prompts`). Neither changes the environment itself.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from cadre.env import Env, Split
from cadre.types import Drawing, Message, Observation, Reward, Task, images_of

# One policy for all roles.

TEAM = "team"


def centralised(env_class: type[Env]) -> type[Env]:
    """Return the environment class whose episodes are those of `env_class`, played by the one role `team`."""
    return type(f"Central{env_class.__name__}", (Central,), {"inner": env_class})


class Central(Env):
    """Owns one episode of `inner`. The sum of the roles' local rewards is the local reward of `team`."""

    roles: ClassVar[tuple[str, ...]] = (TEAM,)
    inner: ClassVar[type[Env]]

    def __init__(self, task: Task, **settings: Any) -> None:
        super().__init__(task)
        self.env = self.inner(task, **settings)
        self.repeatable, self.max_decisions = self.env.repeatable, self.env.max_decisions

    async def until_ready(self) -> None:
        await self.env.until_ready()

    def observe(self) -> dict[str, Observation]:
        observations = self.env.observe()
        return {TEAM: Observation(TEAM, joint_prompt(observations))} if observations else {}

    async def step(self, actions: dict[str, str]) -> Reward:
        reward = await self.env.step(split_joint_text(actions[TEAM], list(self.env.observe())))
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
    """Return the line above a role's part, in the prompt and in the answer."""
    return f"=== {role} ==="


def joint_prompt(observations: Mapping[str, Observation]) -> tuple[Message, ...]:
    """Return the conversation of the one role that acts, or those of several in one message with the answer's form."""
    if len(observations) == 1:
        (observation,) = observations.values()
        return observation.messages

    def conversation(messages: Sequence[Message]) -> str:
        # Speakers are named only where there is more than one message.
        if len(messages) == 1:
            return messages[0].content
        return "\n".join(f"[{message.role}]\n{message.content}" for message in messages)

    views = (f"{mark(role)}\n{conversation(observation.messages)}" for role, observation in observations.items())
    form = "\n".join(f"{mark(role)}\n(what {role} says)" for role in observations)
    text = (
        f"You speak for all of {', '.join(observations)} at once. This is what each of them sees:\n\n"
        + "\n\n".join(views)
        + f"\n\nAnswer with a part for each of them, below a line that names it:\n{form}"
    )
    images = images_of(message for observation in observations.values() for message in observation.messages)
    return (Message("user", text, images=images),)


def joint_text(texts: Mapping[str, str]) -> str:
    """Return the text of the one role that acts, or those of several, each below its mark."""
    if len(texts) == 1:
        (text,) = texts.values()
        return text
    return "\n".join(f"{mark(role)}\n{text}" for role, text in texts.items())


def split_joint_text(text: str, acting: Sequence[str]) -> dict[str, str]:
    """Return each acting role's part: the text between its mark and the next, the last time that it is marked.

    A mark is a line of its own. A role without one says nothing, and text before the first mark is nobody's. Takes one
    pass over the lines, whatever they contain. If one role acts, it gets all of the text.
    """
    if len(acting) == 1:
        return {acting[0]: text}
    marks = {mark(role): role for role in acting}
    lines_of: dict[str, list[str]] = {role: [] for role in acting}
    current: list[str] = []
    for line in text.split("\n"):
        role = marks.get(line.strip())
        if role is None:
            current.append(line)
        else:
            current = lines_of[role] = []
    return {role: "\n".join(lines).strip("\r\n") for role, lines in lines_of.items()}


# System messages by role.


def with_prompts(env_class: type[Env], prompts: Mapping[str, str]) -> type[Env]:
    """Return the environment class whose roles see these system messages, given by role."""

    def observe(self: Any) -> dict[str, Observation]:
        observations = env_class.observe(self)
        return {role: add_prompt(observation, prompts) for role, observation in observations.items()}

    names = {"observe": observe, "__module__": env_class.__module__, "__doc__": env_class.__doc__}
    return type(env_class.__name__, (env_class,), names)


def add_prompt(observation: Observation, prompts: Mapping[str, str]) -> Observation:
    """Return an observation with the system message of its role, if there is one.

    A conversation that begins with a system message gets both in one, the experiment's first, as chat templates take
    only one.
    """
    prompt = prompts.get(observation.role, "")
    if not prompt:
        return observation
    first, *rest = observation.messages
    if first.role == "system":
        return replace(observation, messages=(replace(first, content=f"{prompt}\n\n{first.content}"), *rest))
    return replace(observation, messages=(Message("system", prompt), *observation.messages))
