"""An environment of Cadre as an environment of the package `verifiers` (its v1 interface, 0.4), for its users.

    CadreTaskset, CadreEnv = make_verifiers_environment("plan-path", {"prompts": "full"})    # in my_plan_path.py
    __all__ = ["CadreTaskset", "CadreEnv"]

Then `my-plan-path` is the id of a taskset wherever verifiers takes one. Each role is an agent, each task of the split a
task. A conversation of a role is an interaction with its agent: a prompt that extends the role's last one is its next
turn, and any other prompt opens a new interaction, which is a trace of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pydantic

from cadre.env import Env, Split
from cadre.envs.validation import valid_observations, valid_reward
from cadre.plugins import package
from cadre.types import Message, Observation
from cadre_tasks.integrations import plain_messages, served_spec


@dataclass
class Conversation:
    """An open interaction of a role, and the messages in it so far."""

    interaction: Any
    messages: tuple[Message, ...]
    stack: AsyncExitStack


class Episode:
    """One episode of `env`, played by verifiers' `agents`; `task` is that of verifiers.

    traces   those of all interactions, with the role of each, in the order in which they were opened
    """

    def __init__(self, env: Env, roles: tuple[str, ...], task: Any, agents: Any) -> None:
        self.env, self.roles, self.task, self.agents = env, roles, task, agents
        self.conversations: dict[tuple[str, str], Conversation] = {}
        self.traces: list[tuple[str, Any]] = []
        self.team, self.local, self.parts = 0.0, dict[str, float](), dict[str, float]()

    async def play(self) -> None:
        """Play to the end, or until a limit of verifiers ends an agent's turn, and record the rewards."""
        over = False
        try:
            for _ in range(self.env.max_decisions):
                await self.env.until_ready()
                acting = valid_observations(self.env, self.roles)
                over = not acting
                if over:
                    break
                # Opened one after the other, as the traces of an episode are in that order; the turns are at once.
                turns = [await self._turn(observation) for observation in acting.values()]
                segments = await asyncio.gather(*turns)
                if any(segment.terminated for segment in segments):
                    break
                texts = {role: segment.last_reply for role, segment in zip(acting, segments, strict=True)}
                for role, observation in acting.items():
                    conversation = self.conversations[role, observation.conversation]
                    conversation.messages = (*observation.messages, Message("assistant", texts[role]))
                reward = valid_reward(self.env, await self.env.step(texts), acting, self.roles)
                self.team += float(reward.team)
                for totals, values in ((self.local, reward.local), (self.parts, reward.parts)):
                    for name, value in values.items():
                        totals[name] = totals.get(name, 0.0) + float(value)
        finally:
            for conversation in self.conversations.values():
                await conversation.stack.aclose()
            success = over and bool(self.env.success)
            self.env.close()
        for role, trace in self.traces:
            trace.record_reward("team", self.team)
            if self.local:
                trace.record_reward("local", self.local.get(role, 0.0))
            for name, value in {**self.parts, "success": float(success), "over": float(over)}.items():
                trace.record_metric(name, value)

    async def _turn(self, observation: Observation) -> Any:
        """Return the awaitable turn that answers an observation, in the interaction that it continues or a new one."""
        key = (observation.role, observation.conversation)
        conversation = self.conversations.get(key)
        earlier = conversation.messages if conversation is not None else ()
        messages = plain_messages(observation, "verifiers")
        if (
            conversation is not None
            and len(earlier) < len(messages)
            and observation.messages[: len(earlier)] == earlier
        ):
            return conversation.interaction.turn(messages[len(earlier) :])

        if conversation is not None:
            await conversation.stack.aclose()
        has_system = len(messages) > 1 and messages[0]["role"] == "system"
        system = messages.pop(0)["content"] if has_system else None
        stack = AsyncExitStack()
        agent = getattr(self.agents, observation.role)
        interaction = await stack.enter_async_context(
            agent.interaction(self.task.with_data(prompt=None, system_prompt=system))
        )
        self.conversations[key] = Conversation(interaction, observation.messages, stack)
        self.traces.append((observation.role, interaction.trace))
        return interaction.turn(messages)


def make_verifiers_environment(
    env: str, settings: Mapping[str, Any] | None = None, split: Split = "train"
) -> tuple[type, type]:
    """Return the classes of a taskset and of its environment, for `__all__` of a module that verifiers loads by its id.

    `env` is a name or `FILE.py:CLASS`. The rewards of every trace are the episode's sum of team rewards, `team`, and
    that of its role, `local`; the parts, `success` and `over` are metrics. Agents get the tool-less harness `null` in a
    local process unless they are configured otherwise. Raises ConfigError if the environment takes no such settings or
    has tools, or verifiers is not installed.
    """
    vf = package("verifiers.v1", "verifiers")
    spec, tasks = served_spec(env, settings or {}, split, "verifiers")

    class CadreData(vf.TaskData):  # type: ignore[misc, name-defined]
        number: int

    class CadreTask(vf.Task[CadreData, vf.State, vf.TaskConfig]):  # type: ignore[misc, name-defined]
        pass

    class CadreTaskset(vf.Taskset[CadreTask, vf.TasksetConfig]):  # type: ignore[misc, name-defined]
        def load(self) -> Iterator[Any]:
            for number, task in enumerate(tasks):
                yield CadreTask(CadreData(name=task.id, number=number), self.config.task)

    agent = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})
    roles: dict[str, Any] = {role: (vf.AgentConfig, agent) for role in spec.roles}
    config: Any = pydantic.create_model("CadreEnvConfig", __base__=vf.EnvConfig, **roles)

    class CadreEnv(vf.Env[config]):  # type: ignore[misc, name-defined]
        async def run(self, task: Any, agents: Any) -> None:
            await Episode(spec.make(tasks[task.data.number]), spec.roles, task, agents).play()

    return CadreTaskset, CadreEnv
