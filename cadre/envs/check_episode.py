"""One episode of an environment under check: every decision looked at, and the whole of it played twice."""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cadre.env import Env
from cadre.envs import check_values
from cadre.envs.check_values import described
from cadre.envs.findings import Broken, Findings
from cadre.envs.spec import EnvSpec
from cadre.rollout.deadlines import Deadline
from cadre.types import Message, Observation, Reward, Task

MAX_DECISIONS = 200
THOROUGH_DECISIONS = 8
QUOTED = 40
ANY_TEXT = "A model may say anything: take every text, and pay less for what cannot be read."


class Episode:
    """Owns one episode. `judged` is False where the class declares no usable success; a call may take `seconds`."""

    def __init__(
        self, findings: Findings, env_spec: EnvSpec, task: Task, judged: bool, seconds: float = math.inf
    ) -> None:
        self.seconds = seconds
        self.findings, self.env_spec, self.task, self.judged = findings, env_spec, task, judged
        self.name = env_spec.env_class.__name__
        self.history: list[tuple[dict[str, Observation], dict[str, str], Reward]] = []
        self.prompts: dict[str, tuple[Message, ...]] = {}
        self.said: set[str] = set()
        self.ended = False

    @property
    def rewards(self) -> list[str]:
        """What was paid at each step, in a form that can be compared."""
        return [repr(reward) for _, _, reward in self.history]

    async def play(self, actions: Sequence[str], generator: random.Random, thorough: bool = False) -> None:
        """Play one episode of random actions, then the same once more; if `thorough`, every action is tried on a fork
        of the first decisions. Raises `Broken` where it cannot go on."""
        env = self._made()
        while observations := self._observed(env):
            if len(self.history) >= MAX_DECISIONS:
                raise Broken(
                    "end",
                    f"{self.name}: not over after {MAX_DECISIONS} decisions; expected an end. Count the turns, and "
                    "return {} from observe when they are used up.",
                )
            self._check_pure(env, observations)
            chosen = {role: generator.choice(actions) for role in observations}
            await self._check_fork(env, chosen, observations)
            if thorough and len(self.history) < THOROUGH_DECISIONS:
                await self._try_all(env, actions)
            reward = await self._stepped(env, chosen)
            self.history.append((observations, chosen, reward))
        if not self.history:
            raise Broken(
                "end",
                f"{self.name}: over before anybody acted, on task {self.task.id}; expected someone to act. Return an "
                "observation for the first role.",
            )
        success = self._success(env)
        self.ended = True
        await self._check_replay(success)

    async def _try_all(self, env: Env, actions: Sequence[str]) -> None:
        """Every action, said by all who act, each on a fork of its own."""
        for action in actions:
            with self.findings.noting(), self.findings.calling("fork", f"{self.name}.fork"):
                fork = self._deadline("fork").blocking(env.fork)
                await self._stepped(fork, dict.fromkeys(self._observed(env), action))

    def _deadline(self, method: str) -> Deadline:
        return Deadline(f"{self.name}.{method}", self.seconds, "--step-seconds")

    def _made(self) -> Env:
        given = f", given {self.task.id} with the data {', '.join(self.task.data) or '(none)'}"
        with self.findings.calling("end", f"{self.name}.__init__", when=given):
            return self._deadline("__init__").blocking(self.env_spec.make, self.task)

    def _observed(self, env: Env) -> dict[str, Observation]:
        with self.findings.calling("observe", f"{self.name}.observe"):
            observations = self._deadline("observe").blocking(env.observe)
        faults = list(check_values.observation_faults(self.name, observations, self.env_spec.roles))
        if not _playable(observations):
            self.findings.refuse("observe", faults)
        for fault in faults:
            self.findings.add("observe", fault)
        if not faults:
            seen = {role: observation.messages for role, observation in observations.items()}
            unseen = {role: messages for role, messages in seen.items() if role not in self.prompts}
            self.prompts |= {role: self._without_long_nonsense(messages) for role, messages in unseen.items()}
        return observations

    def _without_long_nonsense(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages with the long texts that were said here cut short: a prompt that quotes another role is as long
        as what a model says, not as what is said to try the environment."""
        cuts = {text: f"{text[:QUOTED]}..." for text in self.said if len(text) > QUOTED}
        contents = [message.content for message in messages]
        for text, cut in cuts.items():
            contents = [content.replace(text, cut) for content in contents]
        return tuple(replace(message, content=content) for message, content in zip(messages, contents, strict=True))

    async def _stepped(self, env: Env, chosen: dict[str, str]) -> Reward:
        """One step. What does not return an awaitable is a fault of the declaration, and is played all the same."""
        self.said |= {text.strip() for text in chosen.values()}
        said = ", ".join(f"{text[:40]!r} by {role}" for role, text in chosen.items())
        with self.findings.calling("reward", f"{self.name}.step", ANY_TEXT, f", given {said}"):
            deadline = self._deadline("step")
            reward: Any = deadline.blocking(env.step, dict(chosen))
            reward = await deadline.awaiting(reward) if inspect.isawaitable(reward) else reward
        roles = self.env_spec.roles
        payable = dict.fromkeys(roles) if env.pays_absent else chosen
        self.findings.refuse("reward", check_values.reward_faults(self.name, reward, payable, roles))
        return reward

    def _success(self, env: Env) -> bool:
        if not self.judged:
            return False
        with self.findings.calling("success", f"{self.name}.success"):
            success = self._deadline("success").blocking(lambda: env.success)
        self.findings.require(
            isinstance(success, bool),
            "success",
            f"{self.name}.success: got {described(success)}; expected True or False. Write bool(...) around it.",
        )
        return bool(success)

    def _check_pure(self, env: Env, observations: dict[str, Observation]) -> None:
        self.findings.require(
            self._observed(env) == observations,
            "observe",
            f"{self.name}.observe changes what it observes; expected no side effect. Change the state in step alone.",
        )
        with self.findings.calling("observe", f"{self.name}.privileged"):
            shown, again = (self._deadline("privileged").blocking(env.privileged) for _ in range(2))
        self.findings.require(
            isinstance(shown, str),
            "observe",
            f"{self.name}.privileged: got {described(shown)}; expected a text. Write it out with str().",
        )
        self.findings.require(
            shown == again and self._observed(env) == observations,
            "observe",
            f"{self.name}.privileged changes what it tells of; expected no side effect. Change state in step alone.",
        )

    async def _check_fork(self, env: Env, chosen: dict[str, str], observations: dict[str, Observation]) -> None:
        """Two forks given the same actions agree, and the original does not move."""
        with self.findings.noting():
            advice = "Keep what cannot be copied (files, locks, generators) out of self, or write fork()."
            with self.findings.calling("fork", f"{self.name}.fork", advice):
                twins = [self._deadline("fork").blocking(env.fork) for _ in range(2)]
            first, second = await asyncio.gather(*(self._stepped(twin, chosen) for twin in twins))
            self.findings.require(
                first == second,
                "fork",
                f"{self.name}.fork: two forks paid {first} and {second} for the same actions; expected equal rewards. "
                f"{_advice('step')}",
            )
            self.findings.require(
                self._observed(twins[0]) == self._observed(twins[1]),
                "fork",
                f"{self.name}.fork: two forks show different things after the same actions; expected the same. "
                f"{_advice('step')}",
            )
            self.findings.require(
                self._observed(env) == observations,
                "fork",
                f"{self.name}.fork: stepping a fork moved the original; expected copies that share nothing. Copy every "
                "list and dict, and keep no state in the class.",
            )

    async def _check_replay(self, success: bool) -> None:
        env = self._made()
        for observations, chosen, reward in self.history:
            if self._observed(env) != observations:
                raise Broken("replay", self._differs("led to another observation"))
            if await self._stepped(env, chosen) != reward:
                raise Broken("replay", self._differs("paid differently"))
        if self._success(env) != success:
            raise Broken("replay", self._differs("ended in another success"))

    def _differs(self, how: str) -> str:
        return (
            f"{self.name}: the same actions on {self.task.id} {how}; expected the same. {_advice('__init__ or step')}"
        )


def _playable(observations: Any) -> bool:
    """Whether it can be seen who acts, whatever else is wrong."""
    return isinstance(observations, dict) and all(isinstance(seen, Observation) for seen in observations.values())


def _advice(where: str) -> str:
    return f"Draw nothing unseeded in {where}, and read no clock: seed random.Random from the task and the state."
