"""Deadlines for the user's code: a call of an environment that waits too long is cancelled, one that blocks is named.

`TimedEnv` wraps an environment: its calls have deadlines, and what they return is validated. A call that awaits is
cancelled by `asyncio.timeout`. One that blocks the event loop (`time.sleep`, `while True`) is not interrupted: a thread
logs the line that it is at, Ctrl-C ends it, and it has taken too long once it returns. The time during which the loop
is blocked does not count for a call that awaits, nor the time that it queues for a shared resource within `in_line`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self, TypeVar

from cadre.env import Env
from cadre.envs import validation
from cadre.envs.validation import described
from cadre.errors import ContractError, DeadlineError
from cadre.settings.run import EpisodesConfig
from cadre.settings.user_code import describe_error, describe_frames, error_location
from cadre.types import Drawing, Observation, Reward, Sample, Task

T = TypeVar("T")

# Seconds of a call are counted as often; where the event loop is blocked for longer, no more than these count.
TICK_S = 0.25
# A call that blocks the loop is logged after so many seconds, and again after as many more.
NOTE_S = 60.0

log = logging.getLogger("cadre.rollout")


class Deadline:
    """The time limit of one call, from when this is made. `setting` is the name of the setting that it comes from.
    Infinite `seconds` are no limit. `spent` are the seconds so far that count."""

    def __init__(self, call: str, seconds: float, setting: str) -> None:
        self.call, self.seconds, self.setting = call, seconds, setting
        self.spent, self._queues, self._counted_at = 0.0, 0, time.monotonic()

    def blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call the function and return its result. Raises DeadlineError if it took too long."""
        with _watched():
            try:
                result = function(*arguments)
            except asyncio.CancelledError as error:
                raise error if isinstance(error, Interrupted) else self.cancelled() from error
            finally:
                self._count()
        if self.spent > self.seconds:
            raise self.passed()
        return result

    async def awaiting(self, work: Awaitable[T]) -> T:
        """Return the result of the work. If it takes too long, cancels it and raises DeadlineError."""
        token, task, loop = _current.set(self), asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        timeout: asyncio.Timeout | None = None

        def tick() -> None:
            # Runs before the steps that became due while the loop was blocked, so that such time counts for nobody
            # but a call that ends with the step that blocked.
            watch.proceeded_at = time.monotonic()
            self._count(TICK_S)
            if timeout is not None and self.spent >= self.seconds and not self._queues:
                timeout.reschedule(loop.time())
            else:
                self._timer = loop.call_later(self._next_tick(), tick)

        with _watched() as watch:
            self._timer = loop.call_later(self._next_tick(), tick)
            try:
                async with asyncio.timeout(None) as timeout:
                    result = await work
            except TimeoutError as error:
                if timeout is not None and timeout.expired():
                    raise self.passed(error.__context__) from error  # Python before 3.11.5 names no cause
                raise
            except asyncio.CancelledError as error:
                if task.cancelling() or isinstance(error, Interrupted):
                    raise
                raise self.cancelled() from error
            finally:
                self._timer.cancel()
                self._count()
                _current.reset(token)
        if self.spent > self.seconds:
            raise self.passed()
        return result

    def cancelled(self) -> ContractError:
        return ContractError(f"{self.call}: cancelled itself; expected a result.")

    def passed(self, where: BaseException | None = None) -> DeadlineError:
        """Return the error of a call that took too long, with the line that it was at."""
        return DeadlineError(
            f"{self.call}: not done after {self.seconds:g} s{error_location(where) if where else ''}; expected an end "
            f"by then. Bound what it waits for, or raise {self.setting}."
        )

    def _count(self, limit: float = math.inf) -> None:
        """Count the seconds since the last call, `limit` of them at most, unless the call queues."""
        now = time.monotonic()
        if not self._queues:
            self.spent += min(now - self._counted_at, limit)
        self._counted_at = now

    def _next_tick(self) -> float:
        return TICK_S if self._queues else max(0.0, min(TICK_S, self.seconds - self.spent))


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def in_line() -> Iterator[None]:
    """Stop the clock of the caller's deadline while it queues for a shared resource; blocks may overlap."""
    deadline = _current.get()
    if deadline is None:
        yield
        return
    deadline._count()
    deadline._queues += 1
    try:
        yield
    finally:
        deadline._count()
        deadline._queues -= 1


class Interrupted(asyncio.CancelledError):
    """Ctrl-C in the middle of a call, whose task is about to be cancelled."""


# True from Ctrl-C in the middle of a call until the episodes have been cancelled: others would block again meanwhile.
_is_interrupted = False


def interrupt_call(frame: FrameType | None) -> None:
    """Raise Interrupted if a frame belongs to a call of the user's environment, and in those that begin after it."""
    global _is_interrupted
    while frame is not None:
        if frame.f_code in (Deadline.blocking.__code__, Deadline.awaiting.__code__):
            _is_interrupted = True
            raise Interrupted
        frame = frame.f_back


def allow_calls() -> None:
    """Let calls begin again, once the episodes have been cancelled."""
    global _is_interrupted
    _is_interrupted = False


# ---- Calls that block the event loop


@dataclass
class _Watch:
    """The number of running calls of one thread, when it was last seen to proceed, and the seconds logged since."""

    calls: int = 0
    proceeded_at: float = 0.0
    noted: float = 0.0


_watches: dict[int, _Watch] = {}
# The process whose thread looks at the watches: a forked one starts its own.
_watching_process = 0


@contextmanager
def _watched() -> Iterator[_Watch]:
    """Register a call of this thread as running within the block."""
    global _watching_process
    if _watching_process != os.getpid():
        _watching_process = os.getpid()
        _watches.clear()
        threading.Thread(target=_note_blocking_calls, name="cadre-notes", daemon=True).start()
    watch = _watches.setdefault(threading.get_ident(), _Watch())
    watch.proceeded_at = time.monotonic()
    watch.calls += 1
    try:
        yield watch
    finally:
        watch.calls -= 1


def _note_blocking_calls() -> None:
    """Log the line at which a call blocks its thread, after each `NOTE_S`."""
    while True:
        time.sleep(NOTE_S / 12)
        for thread, watch in list(_watches.items()):
            blocked = time.monotonic() - watch.proceeded_at if watch.calls else 0.0
            if blocked < watch.noted + NOTE_S:
                watch.noted = min(watch.noted, blocked)
                continue
            watch.noted = blocked
            if where := describe_frames(traceback.extract_stack(sys._current_frames().get(thread))):
                log.warning(
                    "A call has blocked all episodes for %.0f s%s; expected one that awaits, or returns soon. Bound "
                    "what it waits for, or run it with asyncio.to_thread. Ctrl-C ends it.",
                    blocked,
                    where,
                )


# ---- The wrapper around the user's environment. What happens after a failure is in `cadre.rollout.episodes`


class TimedEnv(Env):
    """One state of an environment; its forks wrap forks of the environment.

    `roles` are those that may act, `spent` the seconds that the calls on the way to this state took. Every method
    raises ContractError if the environment breaks the contract, and DeadlineError.
    """

    def __init__(self, env: Env, roles: tuple[str, ...], limits: EpisodesConfig, spent: float = 0.0) -> None:
        super().__init__(env.task)
        self._env, self._roles, self._limits, self._spent = env, roles, limits, spent
        self._name, self.repeatable = type(env).__name__, env.repeatable
        self.max_decisions, self.takes_failures = env.max_decisions, env.takes_failures

    @classmethod
    def made(cls, make: Callable[[Task], Env], task: Task, roles: tuple[str, ...], limits: EpisodesConfig) -> Self:
        """Return a new episode of the task."""
        validation.raise_first(validation.task_faults("tasks: the task", task))
        deadline = _deadline(f"a new episode of {task.id}", limits, 0.0)
        with _only_errors(deadline.call):
            env = deadline.blocking(make, task)
        return cls(env, roles, limits, deadline.spent)

    def observe(self) -> dict[str, Observation]:
        observations = self._called("observe", self._env.observe)
        validation.raise_first(validation.observation_faults(self._name, observations, self._roles))
        return observations

    async def step(self, actions: dict[str, str]) -> Reward:
        reward = await self._awaited("step", lambda: self._env.step(actions))
        return validation.valid_reward(self._env, reward, actions, self._roles)

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        reward = await self._awaited("step", lambda: self._env.step_samples(samples))
        return validation.valid_reward(self._env, reward, samples, self._roles)

    async def compare(
        self, forks: Sequence[Env], actions: Sequence[Mapping[str, Sample]], rewards: Sequence[Reward]
    ) -> Sequence[Reward]:
        if type(self._env).compare is Env.compare:
            return rewards
        inner = [fork._env if isinstance(fork, TimedEnv) else fork for fork in forks]
        compared = await self._awaited("compare", lambda: self._env.compare(inner, actions, rewards))
        if not isinstance(compared, Sequence) or len(compared) != len(actions):
            raise ContractError(
                f"{self._name}.compare: got {described(compared)}; expected a list of {len(actions)} rewards, one for "
                "each joint action. Return them in the order of the actions."
            )
        return [validation.valid_reward(self._env, reward, actions[0], self._roles) for reward in compared]

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
        return self._text("privileged", self._env.privileged)

    def default_action(self, role: str) -> str:
        return self._text("default_action", lambda: self._env.default_action(role))

    def signature(self) -> str:
        return self._text("signature", self._env.signature)

    def render(self) -> Drawing:
        drawing = self._called("render", self._env.render)
        if drawing is not None and not (isinstance(drawing, dict) and isinstance(drawing.get("kind"), str)):
            raise ContractError(
                f"{self._name}.render: got {described(drawing)}; expected what cadre.envs.drawings makes, or None."
            )
        return drawing

    def _text(self, method: str, function: Callable[[], Any]) -> str:
        """Return the text that a plain method returns."""
        text = self._called(method, function)
        if not isinstance(text, str) or not validation.is_valid_unicode(text):
            raise ContractError(
                f"{self._name}.{method}: got {described(text)}; expected a text of valid Unicode. Use str()."
            )
        return text

    def _called(self, method: str, function: Callable[[], T]) -> T:
        """Return what a plain method returns."""
        deadline = self._deadline(method)
        try:
            with _only_errors(deadline.call):
                return deadline.blocking(function)
        finally:
            self._spent += deadline.spent

    async def _awaited(self, method: str, function: Callable[[], Any]) -> Any:
        """Return what an async method returns."""
        deadline = self._deadline(method)
        try:
            with _only_errors(deadline.call):
                work = deadline.blocking(function)
                if not inspect.isawaitable(work):
                    raise ContractError(f"{deadline.call}: returned without being awaited; write async def {method}.")
                return await deadline.awaiting(work)
        finally:
            self._spent += deadline.spent

    def _deadline(self, method: str) -> Deadline:
        if _is_interrupted and method != "close":
            raise Interrupted
        return _deadline(f"{self._name}.{method}", self._limits, self._spent)


def _deadline(call: str, limits: EpisodesConfig, spent: float) -> Deadline:
    """Return the sooner of the deadlines of the call and of the episode; 0 is none."""
    step, episode = (seconds or math.inf for seconds in (limits.step_seconds, limits.seconds))
    if step <= episode - spent:
        return Deadline(call, step, "episodes.step_seconds")
    return Deadline(call, max(0.0, episode - spent), "episodes.seconds")


@contextmanager
def _only_errors(call: str) -> Iterator[None]:
    """Turn what would end the process (`exit()`, say) into an error; Ctrl-C and cancellation stay what they are."""
    try:
        yield
    except (Exception, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise ContractError(
            f"{call}: raised {describe_error(error)}, which would end the run; expected no exit. Return, or raise an "
            "error."
        ) from error
