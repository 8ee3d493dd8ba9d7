"""The environment `one-agent`: one agent does all that the roles of another environment do, in turn.

    cadre train one-agent team=seed settings.of=plan-path algorithm=grpo

It is what `cadre prove` compares a team with, where a task names no form of its own for one agent (`Env.one_agent`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from typing import Any, ClassVar

from pydantic import JsonValue

from cadre.env import Env, Split
from cadre.envs.spec import EnvSpec, env_class
from cadre.envs.wrappers import Wrapper, mark
from cadre.settings.user_code import NOTEBOOK, find_object
from cadre.types import Message, Observation, Reward, Sample, Task, answer_text, join_media

AGENT = "agent"


@lru_cache(maxsize=32)
def _find_team(of: str, settings: str, prompts: str) -> EnvSpec:
    env = find_object("settings.of", of) if of.startswith(NOTEBOOK) else env_class(of)
    return EnvSpec(env, json.loads(settings), prompts=json.loads(prompts))


def team_spec(of: str, settings: Mapping[str, Any] | None, prompts: Mapping[str, str] | None) -> EnvSpec:
    """Return the environment whose roles the agent plays."""
    return _find_team(of, json.dumps(settings or {}, sort_keys=True), json.dumps(prompts or {}))


class OneAgent(Wrapper):
    """Owns one episode of the environment `of`, and is shown in one conversation what each acting role of it sees.

    Roles that act at once are asked one after the other, and act together. A part of the conversation begins with the
    name of the role, and has only what that role has not been shown before. The agent's reward is the team's and the
    sum of the roles' own. `settings` are those of `of`, and `prompts` the roles' system messages.
    """

    roles: ClassVar[tuple[str, ...]] = (AGENT,)

    def __init__(
        self, task: Task, of: str, settings: dict[str, JsonValue] | None = None, prompts: dict[str, str] | None = None
    ) -> None:
        super().__init__(task)
        spec = team_spec(of, settings, prompts)
        self.env = spec.make(task)
        self.repeatable, self.keeps_thinking = self.env.repeatable, self.env.keeps_thinking
        self.max_decisions = self.env.max_decisions * len(spec.roles)
        self.past: tuple[Message, ...] = ()
        # What each role's conversation was when it was last shown, and which message of `past` answers it.
        self.shown: Mapping[tuple[str, str], tuple[tuple[Message, ...], int]] = {}
        # Answers of roles that act at once with others, which are still to be asked.
        self.waiting: Mapping[str, Any] = {}

    def observe(self) -> dict[str, Observation]:
        if not self.env.observe():
            return {}
        observation = self._next_observation()
        return {AGENT: replace(observation, role=AGENT, messages=self._with_past(observation), conversation="")}

    def _next_observation(self) -> Observation:
        """Return what the role sees whose part is next, while the episode goes on."""
        return next(observation for role, observation in self.env.observe().items() if role not in self.waiting)

    def _with_past(self, observation: Observation) -> tuple[Message, ...]:
        """Return the conversation so far, and what the role sees that was not shown in it."""
        shown, index = self.shown.get((observation.role, observation.conversation), ((), -1))
        pairs = zip(shown, observation.messages, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        is_continued = same == len(shown)
        past, new = self.past, list(observation.messages[same:])
        if shown and is_continued and new and new[0].role == "assistant":
            # The task repeats the answer, with its calls of tools; as the last one it replaces the agent's own.
            answer, *new = new
            if new and new[0].role == "tool" and index == len(past) - 1:
                past = (*past[:-1], answer)
                while new and new[0].role == "tool":
                    past = (*past, new.pop(0))
                if not new:
                    return past
        if not past and new and new[0].role == "system":
            past = (new.pop(0),)
        if not is_continued:
            # Answers in a conversation that was written anew were given in this one.
            new = [message for message in new if message.role != "assistant"]
        # The same prompt again, which has to be answered again.
        new = new or [message for message in observation.messages if message.role != "system"][-1:]
        texts = [f"{mark('assistant')}\n\n{m.content}" if m.role == "assistant" else m.content for m in new]
        return (*past, join_media("user", "\n\n".join([mark(observation.role), *texts]), new))

    async def step(self, actions: dict[str, str]) -> Reward:
        joint = self._take_part(actions[AGENT], actions[AGENT])
        return Reward() if joint is None else self.own_reward(await self.env.step(joint))

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        sample = samples[AGENT]
        joint = self._take_part(replace(sample, role=self._next_observation().role), answer_text(sample))
        return Reward() if joint is None else self.own_reward(await self.env.step_samples(joint))

    def _take_part(self, answer: Any, text: str) -> dict[str, Any] | None:
        """Note an answer for the role that was asked; return those of all acting roles once there is none to ask."""
        observation = self._next_observation()
        self.past = (*self._with_past(observation), Message("assistant", text))
        key = (observation.role, observation.conversation)
        self.shown = {**self.shown, key: (observation.messages, len(self.past) - 1)}
        joint = {**self.waiting, observation.role: answer}
        self.waiting = joint if joint.keys() < self.env.observe().keys() else {}
        return None if self.waiting else joint

    async def compare(
        self, forks: Sequence[Env], actions: Sequence[Mapping[str, Sample]], rewards: Sequence[Reward]
    ) -> Sequence[Reward]:
        if len(self.waiting) + 1 < len(self.env.observe()):
            return rewards
        role = self._next_observation().role
        joint = [{**self.waiting, role: replace(action[AGENT], role=role)} for action in actions]
        return await self.compare_joint(forks, joint, rewards)

    def default_action(self, role: str) -> str:
        return self.env.default_action(self._next_observation().role)

    def signature(self) -> str:
        return super().signature() if not self.waiting else ""

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return team_spec(settings["of"], settings.get("settings"), None).tasks(split)
