"""Environments of other libraries as Cadre environments, and the reverse; each needs a package that is an extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cadre.env import GeneratedTasks, Split
from cadre.envs.spec import EnvSpec
from cadre.envs.validation import declaration_faults, raise_first
from cadre.errors import ConfigError, ContractError, ReplayDiverged
from cadre.types import Observation, Task, media_of


def seeded_tasks(split: Split, count: int) -> Sequence[Task]:
    """Return `count` tasks for training, or a tenth as many for testing, that are seeds; the splits share none."""
    size, first = (count, 0) if split == "train" else (max(1, count // 10), 1_000_000)
    return GeneratedTasks(size, lambda index: {"seed": first + index}, split)


def expect_equal(env: str, before: Any, after: Any, remedy: str) -> None:
    """Raise ReplayDiverged if a state is another one after a replay than it was before."""
    if before != after:
        raise ReplayDiverged(
            f"env: {env}: equal actions led to {str(after)[:200]!r} in place of {str(before)[:200]!r}; expected the "
            f"same state again, as forks are made by replay. {remedy}"
        )


def served_spec(env: str, settings: Mapping[str, Any], split: Split, library: str) -> tuple[EnvSpec, Sequence[Task]]:
    """Return an environment that clients of another library play, and the tasks of the split.

    Raises ConfigError or ContractError where it could not be played, and for roles with tools, which they cannot call.
    """
    spec = EnvSpec(env, dict(settings))
    if spec.missing:
        raise ConfigError(
            f"settings.{spec.missing[0]}: missing, and {env} has no default for it; expected a value. Give one."
        )
    raise_first(fault.paragraph for fault in declaration_faults(spec))
    if spec.declared.tools:
        raise ConfigError(
            f"env: {spec.declared.__name__} has tools, which are not served to {library}; expected an environment "
            "without. Take one in which roles answer with texts."
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
            f"{library}; expected messages that are texts. Take an environment in which roles answer with texts."
        )
    return [{"role": message.role, "content": message.content} for message in messages]
