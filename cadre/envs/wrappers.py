"""Wrappers of environment classes: one policy for all roles, system messages by role, and a reward of the user's.

`centralised` turns an environment into a game of the single role `team` (MAGRPO's centralised form). Where several
roles act at once, `team` gets all their conversations in one prompt and answers with a marked part for each; where one
acts, it sees and says what that role would. `with_prompts` puts a system message before all that a role sees
(`team.prompts`). `with_reward` pays what a function of the user's returns. None changes the environment itself.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from cadre.env import Env, Split, actions_of
from cadre.errors import ContractError
from cadre.settings.user_code import count_positional, describe_errors, load_function
from cadre.types import Drawing, Message, Observation, Reward, Sample, Task, join_media

# One policy for all roles.

TEAM = "team"


def centralised(env_class: type[Env]) -> type[Env]:
    """Return the environment class whose episodes are those of `env_class`, played by the one role `team`."""
    return type(f"Central{env_class.__name__}", (Central,), {"inner": env_class})


class Wrapper(Env):
    """Owns one episode of the environment `env`, and passes on to it what does not name a role; by default the one role
    of `roles` plays for all of its roles."""

    env: Env

    async def until_ready(self) -> None:
        await self.env.until_ready()

    def own_reward(self, reward: Reward) -> Reward:
        """Return a reward of the roles as that of the one role, whose local reward is the sum of theirs."""
        (role,) = self.roles
        return replace(reward, local={role: sum(reward.local.values())} if reward.local else {})

    async def compare_joint(
        self, forks: Sequence[Env], joint: Sequence[Mapping[str, Sample]], rewards: Sequence[Reward]
    ) -> Sequence[Reward]:
        """Return the rewards that `env` gives to completions of its own roles."""
        inner = [fork.env if isinstance(fork, Wrapper) else fork for fork in forks]
        return [self.own_reward(reward) for reward in await self.env.compare(inner, joint, rewards)]

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin.env = self.env.fork()
        return twin

    def close(self) -> None:
        self.env.close()

    def privileged(self) -> str:
        return self.env.privileged()

    def signature(self) -> str:
        return self.env.signature()

    def render(self) -> Drawing:
        return self.env.render()

    @property
    def success(self) -> bool:
        return self.env.success


class Central(Wrapper):
    """Owns one episode of `inner`. The sum of the roles' local rewards is the local reward of `team`."""

    roles: ClassVar[tuple[str, ...]] = (TEAM,)
    inner: ClassVar[type[Env]]

    def __init__(self, task: Task, **settings: Any) -> None:
        super().__init__(task)
        self.env = self.inner(task, **settings)
        self.repeatable, self.max_decisions = self.env.repeatable, self.env.max_decisions

    def observe(self) -> dict[str, Observation]:
        observations = self.env.observe()
        return {TEAM: Observation(TEAM, joint_prompt(observations))} if observations else {}

    async def step(self, actions: dict[str, str]) -> Reward:
        return self.own_reward(await self.env.step(split_joint_text(actions[TEAM], list(self.env.observe()))))

    async def compare(
        self, forks: Sequence[Env], actions: Sequence[Mapping[str, Sample]], rewards: Sequence[Reward]
    ) -> Sequence[Reward]:
        acting = list(self.env.observe())

        def parts(sample: Sample) -> dict[str, Sample]:
            texts = split_joint_text(sample.text, acting)
            return {role: replace(sample, role=role, text=text) for role, text in texts.items()}

        return await self.compare_joint(forks, [parts(action[TEAM]) for action in actions], rewards)

    def default_action(self, role: str) -> str:
        return joint_text({acting: self.env.default_action(acting) for acting in self.env.observe()})

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
    shown = [message for observation in observations.values() for message in observation.messages]
    return (join_media("user", text, shown),)


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
    """Return an observation with the system message of its role, if there is one. A conversation that begins with a
    system message gets both in one, the experiment's first, as chat templates take only one."""
    prompt = prompts.get(observation.role, "")
    if not prompt or not observation.messages:  # no message is a fault of the environment, which is found later
        return observation
    first, *rest = observation.messages
    if first.role == "system":
        return replace(observation, messages=(replace(first, content=f"{prompt}\n\n{first.content}"), *rest))
    return replace(observation, messages=(Message("system", prompt), *observation.messages))


# A reward of the user's.


def with_reward(env_class: type[Env], reference: str) -> type[Env]:
    """Return the environment class whose steps are paid by a function of the user's, `FILE.py:FUNCTION`.

    It is called after every step as `f(task, texts, reward)`, or with the first of these alone: the task's data, the
    texts of the step by role, and the reward that the task pays itself. It may be a coroutine. `pay` says what it may
    return. Whether a task is solved stays as the task says.
    """
    function: Callable[..., Any] = load_function("settings.reward", reference, {})

    async def pay_for(self: Any, texts: Mapping[str, str], env_reward: Reward) -> Reward:
        arguments = (dict(self.task.data), dict(texts), env_reward)
        with describe_errors(f"settings.reward: {reference}"):
            result = function(*arguments[: count_positional(function)])
            if inspect.isawaitable(result):
                result = await result
        return pay(result, env_reward, reference)

    async def step(self: Any, actions: dict[str, str]) -> Reward:
        reward = await env_class.step(self, actions)
        # The task's own `step_samples` may call this one, and pays for the step itself.
        return reward if self.is_stepping_samples else await pay_for(self, actions, reward)

    async def step_samples(self: Any, samples: Mapping[str, Sample]) -> Reward:
        self.is_stepping_samples = True
        try:
            reward = await env_class.step_samples(self, samples)
        finally:
            self.is_stepping_samples = False
        return await pay_for(self, actions_of(self, samples), reward)

    names = {"step": step, "step_samples": step_samples, "is_stepping_samples": False}
    names |= {"__module__": env_class.__module__, "__doc__": env_class.__doc__}
    return type(env_class.__name__, (env_class,), names)


def pay(result: Any, env_reward: Reward, reference: str) -> Reward:
    """Return the reward of a step from what the user's function returned.

    A number is the team reward, and no role has a local one; an object `{"team": 1.0, "local": {"planner": -0.1},
    "parts": {"style": 0.5}}` or a Reward has all of it; None leaves the task's own. The task's parts are kept for the
    logs. Raises ContractError for anything else, and for numbers that are not finite.
    """
    if result is None:
        return env_reward
    if isinstance(result, Reward):
        result = {"team": result.team, "local": result.local, "parts": result.parts}
    fields: Mapping[str, Any] = result if isinstance(result, Mapping) else {"team": result}
    try:
        team = float(fields.get("team", 0.0))
        local, parts = (
            {name: float(number) for name, number in fields.get(table, {}).items()} for table in ("local", "parts")
        )
        is_valid = set(fields) <= {"team", "local", "parts"}
        is_valid &= all(map(math.isfinite, [team, *local.values(), *parts.values()]))
    except (TypeError, ValueError, OverflowError, AttributeError, RuntimeError):
        is_valid = False
    if not is_valid:
        expected = "expected a finite number, None, or an object with team, local by role and parts by name, all finite"
        raise ContractError(f"settings.reward: {reference} returned {result!r:.200}; {expected} numbers. Return one.")
    return Reward(team, local, {**env_reward.parts, **parts})
