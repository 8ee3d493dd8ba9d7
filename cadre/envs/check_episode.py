"""One episode of an environment under check: every decision looked at, and the whole of it played twice."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cadre.env import Env
from cadre.envs import changes, check_values
from cadre.envs.check_values import described
from cadre.envs.findings import Broken, Findings
from cadre.envs.spec import EnvSpec
from cadre.rollout.deadlines import Deadline
from cadre.types import Message, Observation, Reward, Sample, Task, Tool, ToolCall

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
        self.history: list[tuple[dict[str, Observation], dict[str, Sample], Reward]] = []
        self.prompts: dict[str, tuple[Message, ...]] = {}
        self.tools: dict[str, tuple[Tool, ...]] = {}
        self.said: set[str] = set()
        self.ended = self.shares = False

    @property
    def rewards(self) -> list[str]:
        """What was paid at each step, in a form that can be compared."""
        return [repr(reward) for _, _, reward in self.history]

    async def play(self, actions: Sequence[str], generator: random.Random, thorough: bool = False) -> None:
        """Play one episode of random actions, then the same once more; if `thorough`, every action is tried on a fork
        of the first decisions. Raises `Broken` where it cannot go on."""
        self._task_before = changes.kept(self.task.data)
        env = self._made()
        self._class_before = changes.of_class(type(env))
        while observations := self._observed(env):
            if len(self.history) >= MAX_DECISIONS:
                raise Broken(
                    "end",
                    f"{self.name}: not over after {MAX_DECISIONS} decisions; expected an end. Count the turns, and "
                    "return {} from observe when they are used up.",
                )
            self._check_pure(env, observations)
            chosen = {role: _answer(role, seen, actions, generator) for role, seen in observations.items()}
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
        self._check_task()
        self.ended = True
        if not self.shares:  # which is why it would be played differently
            await self._check_replay(success)

    async def _try_all(self, env: Env, actions: Sequence[str]) -> None:
        """Every action, said by all who act, each on a fork of its own."""
        for action in actions:
            with self.findings.noting(), self.findings.calling("fork", f"{self.name}.fork"):
                fork = self._deadline("fork").blocking(env.fork)
                await self._stepped(fork, {role: _said(role, action) for role in self._observed(env)})
        for role, seen in self._observed(env).items():
            for tool in seen.tools:
                with self.findings.noting(), self.findings.calling("fork", f"{self.name}.fork"):
                    fork = self._deadline("fork").blocking(env.fork)
                    others = {other: _said(other, "") for other in self._observed(env)}
                    await self._stepped(fork, {**others, role: _call(role, tool)})

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
            self.tools |= {role: observations[role].tools for role in unseen}
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

    async def _stepped(self, env: Env, chosen: dict[str, Sample]) -> Reward:
        """One step, by samples where the environment takes these. What does not return an awaitable is a fault of the
        declaration, and is played all the same."""
        self.said |= {sample.text.strip() for sample in chosen.values()} - {""}
        said = ", ".join(f"{_shown(sample)} by {role}" for role, sample in chosen.items())
        method = "step" if type(env).step_samples is Env.step_samples else "step_samples"
        with self.findings.calling("reward", f"{self.name}.{method}", ANY_TEXT, f", given {said}"):
            deadline = self._deadline(method)
            texts = {role: sample.text for role, sample in chosen.items()}
            reward: Any = deadline.blocking(getattr(env, method), texts if method == "step" else dict(chosen))
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

    async def _check_fork(self, env: Env, chosen: dict[str, Sample], observations: dict[str, Observation]) -> None:
        """Two forks given the same actions agree, and the original does not move."""
        with self.findings.noting():
            advice = "Keep what cannot be copied (files, locks, generators) out of self, or write fork()."
            with self.findings.calling("fork", f"{self.name}.fork", advice):
                twins = [self._deadline("fork").blocking(env.fork) for _ in range(2)]
            before = changes.kept(vars(env))
            first, second = await asyncio.gather(*(self._stepped(twin, chosen) for twin in twins))
            self._check_task()
            moved = changes.difference(before, vars(env), "self") if before is not None else ""
            moved = changes.changed_of_class(self._class_before) or _attribute(moved)
            if self._observed(env) != observations or (moved and first != second):
                self.shares = True
                self.findings.add(
                    "fork",
                    f"{self.name}.fork: stepping a fork moved the original{f' in {moved}' if moved else ''}; expected "
                    f"copies that share nothing. {_copying(moved)}",
                )
                return
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

    async def _check_replay(self, success: bool) -> None:
        env = self._made()
        for observations, chosen, reward in self.history:
            if self._observed(env) != observations:
                raise Broken("replay", self._differs("led to another observation"))
            if await self._stepped(env, chosen) != reward:
                raise Broken("replay", self._differs("paid differently"))
        if self._success(env) != success:
            raise Broken("replay", self._differs("ended in another success"))

    def _check_task(self) -> None:
        """The task is as it was given: others play it, too."""
        if self._task_before is not None and (path := changes.difference(self._task_before, self.task.data, "data")):
            self.findings.add(
                "replay",
                f"{self.name}: playing {self.task.id} changed the task itself, in {path}; expected a task that stays "
                "as it was given, as others play it, too. Copy what changes in __init__: copy.deepcopy(task.data).",
            )
            raise Broken("replay", self.findings.paragraphs[-1])

    def _differs(self, how: str) -> str:
        if path := changes.changed_of_class(self._class_before):
            return (
                f"{self.name}: the same actions on {self.task.id} {how}, as an episode changed {path}, which all "
                f"episodes share; expected the same. {_copying(path)}"
            )
        return (
            f"{self.name}: the same actions on {self.task.id} {how}; expected the same. {_advice('__init__ or step')}"
        )


def _said(role: str, text: str) -> Sample:
    """A sample of a text, as from a model."""
    message = Message("assistant", text)
    return Sample(role, "check", text, (0,), (0,), (0.0,), "stop", 0, message)


def _call(role: str, tool: Tool) -> Sample:
    """A sample that calls a tool with arguments that its schema allows."""
    arguments = json.dumps(example_of(tool.parameters) if tool.parameters else {})
    text = json.dumps({"name": tool.name, "arguments": json.loads(arguments)})
    message = Message("assistant", "", (ToolCall("call_0", tool.name, arguments),))
    return replace(_said(role, text), message=message)


def _answer(role: str, seen: Observation, actions: Sequence[str], generator: random.Random) -> Sample:
    """A text, or where tools are offered as often a call of one."""
    if seen.tools and generator.random() < 0.5:
        return _call(role, generator.choice(seen.tools))
    return _said(role, generator.choice(actions))


def _shown(sample: Sample) -> str:
    calls = sample.message.tool_calls if sample.message else ()
    return f"a call of {calls[0].name} with {calls[0].arguments[:40]}" if calls else repr(sample.text[:40])


def example_of(schema: Mapping[str, Any]) -> Any:
    """Return a value that a JSON schema allows, of the schemas that tools have."""
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    for name in ("anyOf", "oneOf"):
        if schema.get(name):
            return example_of(schema[name][0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: example_of(inner) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [example_of(schema.get("items", {}))] * max(1, schema.get("minItems", 1))
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    plain = {"integer": least, "number": least, "boolean": True, "null": None}
    return plain[kind] if kind in plain else "x" * max(1, schema.get("minLength", 1))


def _attribute(path: str) -> str:
    """`self['board'].cells[3]`, a path into the attributes, as one writes it."""
    return re.sub(r"^self\['(\w+)'\]", r"self.\1", path)


def _copying(path: str) -> str:
    if path and not path.startswith("self"):
        return f"Make {path.partition('[')[0]} an attribute of self in __init__, and keep no state in the class."
    what = path.partition("[")[0] if path else "every list and dict"
    return f"Copy {what} in fork(), or leave out fork(), as cadre.Env's copies all, and keep no state in the class."


def _playable(observations: Any) -> bool:
    """Whether it can be seen who acts, whatever else is wrong."""
    return isinstance(observations, dict) and all(isinstance(seen, Observation) for seen in observations.values())


def _advice(where: str) -> str:
    return f"Draw nothing unseeded in {where}, and read no clock: seed random.Random from the task and the state."
