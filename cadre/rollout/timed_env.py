"""A wrapper around the user's environment: its return values are validated and its calls have deadlines.

What happens after a failure is in `cadre.rollout.episodes`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

from cadre.env import Env
from cadre.envs.validation import described, is_valid_unicode, observation_faults, reward_faults, task_faults
from cadre.errors import ContractError
from cadre.rollout.deadlines import Deadline
from cadre.settings.run import EpisodesConfig
from cadre.settings.user_code import describe_error
from cadre.types import Drawing, Observation, Reward, Sample, Task

T = TypeVar("T")


class TimedEnv(Env):
    """One state of an environment; its forks wrap forks of the environment.

    `roles` are those that may act, `spent` the seconds that the calls on the way to this state took. Every method
    raises ContractError if the environment breaks the contract, and DeadlineError.
    """

    def __init__(self, env: Env, roles: tuple[str, ...], limits: EpisodesConfig, spent: float = 0.0) -> None:
        super().__init__(env.task)
        self._env, self._roles, self._limits, self._spent = env, roles, limits, spent
        self._name, self.repeatable = type(env).__name__, env.repeatable

    @classmethod
    def made(cls, make: Callable[[Task], Env], task: Task, roles: tuple[str, ...], limits: EpisodesConfig) -> Self:
        """Return a new episode of the task."""
        raise_first(task_faults("tasks: the task", task))
        deadline = _deadline(f"a new episode of {task.id}", limits, 0.0)
        with _only_errors(deadline.what):
            env = deadline.blocking(make, task)
        return cls(env, roles, limits, deadline.spent)

    def observe(self) -> dict[str, Observation]:
        observations = self._called("observe", self._env.observe)
        raise_first(observation_faults(self._name, observations, self._roles))
        return observations

    async def step(self, actions: dict[str, str]) -> Reward:
        return self._checked(await self._awaited("step", lambda: self._env.step(actions)), actions)

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        return self._checked(await self._awaited("step", lambda: self._env.step_samples(samples)), samples)

    async def until_ready(self) -> None:
        await self._awaited("until_ready", self._env.until_ready)

    def fork(self) -> Self:
        return type(self)(self._called("fork", self._env.fork), self._roles, self._limits, self._spent)

    def close(self) -> None:
        self._called("close", self._env.close)

    @property
    def success(self) -> bool:
        success = self._called("success", lambda: self._env.success)
        if type(success) is not bool and getattr(success, "shape", None) != ():
            raise ContractError(
                f"{self._name}.success: got {described(success)}; expected True or False. Write bool(...) around it."
            )
        return bool(success)

    def privileged(self) -> str:
        text = self._called("privileged", self._env.privileged)
        if not isinstance(text, str) or not is_valid_unicode(text):
            raise ContractError(
                f"{self._name}.privileged: got {described(text)}; expected a text of valid Unicode. Use str()."
            )
        return text

    def render(self) -> Drawing:
        drawing = self._called("render", self._env.render)
        if drawing is not None and not (isinstance(drawing, dict) and isinstance(drawing.get("kind"), str)):
            raise ContractError(
                f"{self._name}.render: got {described(drawing)}; expected what cadre.envs.drawings makes, or None."
            )
        return drawing

    def _called(self, method: str, function: Callable[[], T]) -> T:
        """Return what a plain method returns."""
        deadline = self._deadline(method)
        try:
            with _only_errors(deadline.what):
                return deadline.blocking(function)
        finally:
            self._spent += deadline.spent

    async def _awaited(self, method: str, function: Callable[[], Any]) -> Any:
        """Return what an async method returns."""
        deadline = self._deadline(method)
        try:
            with _only_errors(deadline.what):
                work = deadline.blocking(function)
                if not inspect.isawaitable(work):
                    raise ContractError(f"{deadline.what}: returned without being awaited; write async def {method}.")
                return await deadline.awaiting(work)
        finally:
            self._spent += deadline.spent

    def _checked(self, reward: Any, acting: Mapping[str, Any]) -> Reward:
        rewarded = dict.fromkeys(self._roles) if self._env.pays_absent else acting
        raise_first(reward_faults(self._name, reward, rewarded, self._roles))
        return in_floats(reward)

    def _deadline(self, method: str) -> Deadline:
        return _deadline(f"{self._name}.{method}", self._limits, self._spent)


def _deadline(what: str, limits: EpisodesConfig, spent: float) -> Deadline:
    """Return the sooner of the deadlines of the call and of the episode; 0 is none."""
    step, episode = (seconds or math.inf for seconds in (limits.step_seconds, limits.seconds))
    if step <= episode - spent:
        return Deadline(what, step, "episodes.step_seconds")
    return Deadline(what, max(0.0, episode - spent), "episodes.seconds")


@contextmanager
def _only_errors(what: str) -> Iterator[None]:
    """Turn what would end the process (`exit()`, say) into an error; Ctrl-C and cancellation stay what they are."""
    try:
        yield
    except (Exception, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise ContractError(
            f"{what}: raised {describe_error(error)}, which would end the run; expected no exit. Return, or raise an "
            "error."
        ) from error


def raise_first(faults: Iterable[str]) -> None:
    """Raise ContractError for the first fault."""
    for fault in faults:
        raise ContractError(fault)


def in_floats(reward: Reward) -> Reward:
    """Return the reward in plain floats: scalars of numpy or torch, and True for 1, are accepted as numbers."""
    if type(reward.team) is float and not reward.local and not reward.parts:
        return reward
    local = {role: float(number) for role, number in reward.local.items()}
    parts = {name: float(number) for name, number in reward.parts.items()}
    return replace(reward, team=float(reward.team), local=local, parts=parts)
