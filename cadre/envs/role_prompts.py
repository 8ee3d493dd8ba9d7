"""A system message for each role before all that it sees (`team.prompts`): an own wording of any environment.

What it leaves out: the environment's own messages stay as they are; one that begins with a system message gets both in
one, the experiment's first, since chat templates take one only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cadre.env import Env
from cadre.types import Message, Observation


def prompted(env_class: type[Env], prompts: Mapping[str, str]) -> type[Env]:
    """The environment class whose roles see these system messages; `prompts` are by role."""

    def observe(self: Any) -> dict[str, Observation]:
        asked = env_class.observe(self)
        return {role: told(observation, prompts) for role, observation in asked.items()}

    names = {"observe": observe, "__module__": env_class.__module__, "__doc__": env_class.__doc__}
    return type(env_class.__name__, (env_class,), names)


def told(observation: Observation, prompts: Mapping[str, str]) -> Observation:
    """An observation with the system message of its role, where there is one."""
    prompt = prompts.get(observation.role, "")
    if not prompt:
        return observation
    first, *others = observation.messages
    if first.role == "system":
        return replace(observation, messages=(replace(first, content=f"{prompt}\n\n{first.content}"), *others))
    return replace(observation, messages=(Message("system", prompt), *observation.messages))
