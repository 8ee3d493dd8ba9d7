"""Environments of other libraries as Cadre environments, and the reverse; each needs a package that is an extra."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cadre.env import Env, GeneratedTasks, Split
from cadre.envs.spec import EnvSpec
from cadre.envs.validation import declaration_faults, raise_first
from cadre.errors import ConfigError, ContractError, ReplayDiverged
from cadre.types import Message, Observation, Reward, Task, media_of


def seeded_tasks(split: Split, count: int) -> Sequence[Task]:
    """Return `count` tasks for training, or a tenth as many for testing, that are seeds; the splits share none."""
    size, first = (count, 0) if split == "train" else (max(1, count // 10), 1_000_000)
    return GeneratedTasks(size, lambda index: {"seed": first + index}, split)


class OneAgentGame(Env):
    """A game of another library that one agent plays with texts, in one conversation. It is a success once it is over
    with a sum of rewards of `solved` or more."""

    roles = ("agent",)

    def __init__(self, task: Task, observation: str, turns: int, solved: float) -> None:
        super().__init__(task)
        self.observation, self.turns, self.solved = observation, turns, solved
        self.actions: tuple[Any, ...] = ()
        self.total, self.over = 0.0, False
        self.messages: tuple[Message, ...] = ()

    def begin(self, prompt: str, shown: Any) -> None:
        """Begin the conversation with a system message, if there is one, and the first observation."""
        self.messages = (*((Message("system", prompt),) if prompt else ()), Message("user", self.text_of(shown)))

    def text_of(self, shown: Any) -> str:
        """Return an observation as text: the entry that `settings.observation` names, or all of it."""
        if self.observation:
            if not isinstance(shown, Mapping) or self.observation not in shown:
                raise ConfigError(
                    f"settings.observation: got {self.observation!r}; expected an entry of the observations: "
                    f"{', '.join(shown) if isinstance(shown, Mapping) else 'they have none'}. Fix the name."
                )
            shown = shown[self.observation]
        return shown if isinstance(shown, str) else self.written(shown)

    def written(self, shown: Any) -> str:
        """Return an observation that is no text as text."""
        return json.dumps(shown, ensure_ascii=False)

    def took(self, text: str, action: Any, shown: Any, reward: float, is_done: bool) -> Reward:
        """Note a step with what it led to, and return its reward."""
        self.actions = (*self.actions, action)
        self.total += reward
        self.over = is_done or len(self.actions) >= self.turns
        self.messages = (*self.messages, Message("assistant", text), Message("user", self.text_of(shown)))
        return Reward(reward, parts={"valid": 1.0})

    def observe(self) -> dict[str, Observation]:
        return {} if self.over else {"agent": Observation("agent", self.messages)}

    @property
    def success(self) -> bool:
        return self.over and self.total >= self.solved

    @classmethod
    def tasks(cls, split: Split, count: int = 1000, **settings: Any) -> Sequence[Task]:
        return seeded_tasks(split, count)


def expect_equal(env: str, before: Any, after: Any, remedy: str) -> None:
    """Raise ReplayDiverged if a state is another one after a replay than it was before."""
    if before != after:
        raise ReplayDiverged(
            f"env: {env}: equal actions led to {str(after)[:200]!r} in place of {str(before)[:200]!r}; expected the "
            f"same state again, as forks are made by replay. {remedy}"
        )


def served_spec(env: str, settings: Mapping[str, Any], split: Split, library: str) -> tuple[EnvSpec, Sequence[Task]]:
    """Return an environment that clients of another library play, and the tasks of the split. Raises ConfigError or
    ContractError where it could not be played, and for roles with tools, which they cannot call."""
    spec = EnvSpec(env, dict(settings))
    if spec.missing:
        raise ConfigError(
            f"settings.{spec.missing[0]}: missing, and {env} has no default for it; expected a value. Give one."
        )
    raise_first(fault.paragraph for fault in declaration_faults(spec))
    if spec.declared.tools:
        raise ConfigError(
            f"env: {spec.declared.__name__} has tools, which are not served to {library}; expected one without."
        )
    tasks = spec.tasks(split)
    if not len(tasks):
        raise ConfigError(
            f"tasks: {env} has none in its split {split}; expected one or more. Change the settings, or the split."
        )
    return spec, tasks


def plain_messages(observation: Observation, library: str) -> list[dict[str, str]]:
    """Return the messages of an observation as plain values. Raises ContractError for tools, calls and media."""
    messages = observation.messages
    if observation.tools or media_of(messages) or any(m.tool_calls or m.role == "tool" for m in messages):
        raise ContractError(
            f"{observation.role}: its observation has tools, calls of tools, images or sounds, which are not served to "
            f"{library}; expected messages that are texts."
        )
    return [{"role": message.role, "content": message.content} for message in messages]
