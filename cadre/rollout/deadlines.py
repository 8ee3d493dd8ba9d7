"""Deadlines for the user's code: a call of an environment that waits too long is cancelled, one that blocks is named.

`TimedEnv` wraps an environment: its calls have deadlines, and what they return is validated.

A call that awaits is cancelled by `asyncio.timeout`. A call that blocks the event loop (`time.sleep`, `while True`)
holds up every other one and is not interrupted: a thread logs the line that it is at, Ctrl-C ends it, and it has taken
too long once it returns. The time during which the loop is blocked does not count for a call that awaits, nor the time
that it queues for a shared resource within `in_line`. A change of the system's time has no effect.
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
from types import FrameType
from typing import Any, Self, TypeVar

from cadre.env import Env
from cadre.envs.validation import (
    described,
    is_valid_unicode,
    observation_faults,
    raise_first,
    task_faults,
    valid_reward,
)
from cadre.errors import ContractError, DeadlineError
from cadre.settings.run import EpisodesConfig
from cadre.settings.user_code import describe_error, describe_frames, error_location
from cadre.types import Drawing, Observation, Reward, Sample, Task

T = TypeVar("T")

# Seconds between two looks at whether the event loop is blocked.
TICK_S = 0.25
# A call that blocks the loop is logged after so many seconds, and again after as many more.
NOTE_S = 60.0

log = logging.getLogger("cadre.rollout")


class Deadline:
    """The time limit of one call, from when this is made. `setting` is the name of the setting that it comes from.

    Infinite `seconds` are no limit.
    """

    def __init__(self, what: str, seconds: float, setting: str) -> None:
        self.what, self.seconds, self.setting = what, seconds, setting
        # What does not count: seconds in which the loop was blocked, and those in the queues that the call is in.
        self._uncounted, self._queues, self._queued_at = 0.0, 0, 0.0
        self._began = time.monotonic()
        self._timeout: asyncio.Timeout | None = None

    @property
    def spent(self) -> float:
        """Return the seconds so far that count."""
        now = self._queued_at if self._queues else time.monotonic()
        return max(0.0, now - self._began - self._uncounted)

    @property
    def left(self) -> float:
        return self.seconds - self.spent

    def blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call the function and return its result. Raises DeadlineError if it took too long."""
        with _watch().calling(self):
            result = function(*arguments)
        if self.left < 0.0:
            raise self.passed()
        return result

    async def awaiting(self, work: Awaitable[T]) -> T:
        """Return the result of the work. If it takes too long, cancels it and raises DeadlineError."""
        token, watch, task = _current.set(self), _watch(), asyncio.current_task()
        assert task is not None
        watch.tick_in(asyncio.get_running_loop())
        try:
            async with asyncio.timeout(None) as self._timeout:
                self._reschedule()
                with watch.calling(self):
                    result = await work
        except TimeoutError as error:
            if self._timeout is not None and self._timeout.expired():
                raise self.passed(error.__cause__) from error
            raise
        except asyncio.CancelledError as error:
            if task.cancelling() or isinstance(error, Interrupted):
                raise
            raise ContractError(f"{self.what}: cancelled itself; expected a result.") from error
        finally:
            self._timeout = None
            _current.reset(token)
        if self.left < 0.0:
            raise self.passed()
        return result

    def passed(self, where: BaseException | None = None) -> DeadlineError:
        """Return the error of a call that took too long, with the line that it was at."""
        return DeadlineError(
            f"{self.what}: not done after {self.seconds:g} s{error_location(where) if where else ''}; expected an end "
            f"by then. Bound what it waits for, or raise {self.setting}."
        )

    def leave_out(self, seconds: float) -> None:
        """Leave out the seconds until now in which the loop was blocked, as nothing could be awaited."""
        if not self._queues:
            self._uncounted += min(seconds, self.spent)
            self._reschedule()

    @contextmanager
    def queueing(self) -> Iterator[None]:
        """Stop the clock within the block; blocks may overlap."""
        if self._queues == 0:
            self._queued_at = time.monotonic()
        self._queues += 1
        self._reschedule()
        try:
            yield
        finally:
            self._queues -= 1
            if self._queues == 0:
                self._uncounted += time.monotonic() - self._queued_at
            self._reschedule()

    def _reschedule(self) -> None:
        if self._timeout is not None and not self._timeout.expired():
            rests = self._queues or self.seconds == math.inf
            self._timeout.reschedule(None if rests else asyncio.get_running_loop().time() + self.left)


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def in_line() -> Iterator[None]:
    """Stop the clock of the caller's deadline while it queues for a shared resource."""
    deadline = _current.get()
    if deadline is None:
        yield
        return
    with deadline.queueing():
        yield


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


class _Watch:
    """The running calls of one thread, and when its event loop, or its last call, was last seen to proceed."""

    def __init__(self) -> None:
        self.calls: set[Deadline] = set()
        self.proceeded_at, self.noted = time.monotonic(), 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def calling(self, deadline: Deadline) -> Iterator[None]:
        """Register the call as running within the block."""
        self.proceeded_at = time.monotonic()
        self.calls.add(deadline)
        try:
            yield
        finally:
            self.calls.discard(deadline)

    def tick_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note every `TICK_S` that the loop proceeds, while calls run."""
        if self._loop is not loop:
            self._loop = loop
            loop.call_later(TICK_S, self._tick, time.monotonic() + TICK_S)

    def _tick(self, due: float) -> None:
        self.proceeded_at = now = time.monotonic()
        # Due timeouts of this pass of the loop are put off by this, as they come after it.
        if now - due > TICK_S:
            for deadline in self.calls:
                deadline.leave_out(now - due)
        if self.calls and self._loop is not None:
            self._loop.call_later(TICK_S, self._tick, now + TICK_S)
        else:
            self._loop = None

    def note_blocking(self, thread: int) -> None:
        """Log the line at which a call blocks the thread, after each `NOTE_S`."""
        blocked = time.monotonic() - self.proceeded_at if self.calls else 0.0
        if blocked < self.noted + NOTE_S:
            self.noted = min(self.noted, blocked)
            return
        self.noted = blocked
        if where := describe_frames(traceback.extract_stack(sys._current_frames().get(thread))):
            log.warning(
                "A call has blocked all episodes for %.0f s%s; expected one that awaits, or returns soon. Bound what "
                "it waits for, or run it with asyncio.to_thread. Ctrl-C ends it.",
                blocked,
                where,
            )


_watches: dict[int, _Watch] = {}
# The process whose thread looks at the watches: a forked one starts its own.
_watching_process = 0


def _watch() -> _Watch:
    """Return the watch of this thread."""
    global _watching_process
    if _watching_process != os.getpid():
        _watching_process = os.getpid()
        _watches.clear()
        threading.Thread(target=_note_blocking_calls, name="cadre-notes", daemon=True).start()
    return _watches.setdefault(threading.get_ident(), _Watch())


def _note_blocking_calls() -> None:
    while True:
        time.sleep(NOTE_S / 12)
        for thread, watch in list(_watches.items()):
            watch.note_blocking(thread)


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
        reward = await self._awaited("step", lambda: self._env.step(actions))
        return valid_reward(self._env, reward, actions, self._roles)

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        reward = await self._awaited("step", lambda: self._env.step_samples(samples))
        return valid_reward(self._env, reward, samples, self._roles)

    async def compare(self, actions: Sequence[Mapping[str, Sample]], rewards: Sequence[Reward]) -> Sequence[Reward]:
        if type(self._env).compare is Env.compare:
            return rewards
        compared = await self._awaited("compare", lambda: self._env.compare(actions, rewards))
        if not isinstance(compared, Sequence) or len(compared) != len(actions):
            raise ContractError(
                f"{self._name}.compare: got {described(compared)}; expected a list of {len(actions)} rewards, one for "
                "each joint action. Return them in the order of the actions."
            )
        return [valid_reward(self._env, reward, actions[0], self._roles) for reward in compared]

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
        if not isinstance(text, str) or not is_valid_unicode(text):
            raise ContractError(
                f"{self._name}.{method}: got {described(text)}; expected a text of valid Unicode. Use str()."
            )
        return text

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

    def _deadline(self, method: str) -> Deadline:
        if _is_interrupted and method != "close":
            raise Interrupted
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
