"""Deadlines for the user's code: a call of an environment ends in time, whether it waits or blocks.

`TimedEnv` wraps an environment: its calls have deadlines, and what they return is validated.

Async code that waits is cancelled. Code that blocks the event loop (`time.sleep`, `while True`) runs under an alarm
between two awaits, which raises an exception in the middle of it. Signals reach the main thread alone: in an event loop
elsewhere only waiting code is ended. Nothing here ends C code that never returns to Python, code that catches every
exception and continues, or code that uses SIGALRM itself.

The time during which other calls block the loop does not count, nor the time that a call queues for a shared resource
within `in_line`. Clocks are monotonic: a change of the system's time has no effect.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
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
from cadre.settings.user_code import describe_error
from cadre.types import Drawing, Observation, Reward, Sample, Task

T = TypeVar("T")

# Seconds for a cancelled call to clean up before it is closed, and for a blocking stretch after `hurry`.
GRACE_S = 2.0
# Seconds until the alarm is repeated, should the code have caught it and continued.
AGAIN_S = 1.0
MOST_CLOSES = 10
# A call is logged after so many seconds, and again after as many more.
NOTE_S = 60.0

log = logging.getLogger("cadre.rollout")


class Overrun(BaseException):
    """Raised by the alarm inside the code that blocks. Not an Exception, which such code may well catch."""


class _Alarm:
    """Over a stretch of blocking code in the main thread: SIGALRM raises Overrun in it after so many seconds.

    A timer that was running before is restored with its remaining time; one that is due sooner is left alone. `off` may
    be called more than once, and is: the alarm may sound in the middle of it.
    """

    active = False

    def __init__(self, seconds: float) -> None:
        self._seconds = 0.0 if seconds == math.inf else max(seconds, 1e-6)
        self._armed = self.sounded = False

    def on(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        due, self._interval = signal.getitimer(signal.ITIMER_REAL)
        if due and (self._seconds == 0.0 or due <= self._seconds):
            return
        self._due, self._began = due, time.monotonic()
        self._handler = signal.signal(signal.SIGALRM, self._sound)
        self._armed = _Alarm.active = True
        signal.setitimer(signal.ITIMER_REAL, self._seconds, AGAIN_S)

    def off(self) -> None:
        if not self._armed:
            return
        _Alarm.active = False
        remaining = max(1e-6, self._due - (time.monotonic() - self._began)) if self._due else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, self._handler or signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, remaining, self._interval)
        self._armed = False

    def _sound(self, *_: object) -> None:
        if _Alarm.active:
            self.sounded = True
            raise Overrun


def hurry() -> None:
    """Give the code that blocks the loop now `GRACE_S` more seconds. For signal handlers."""
    if _Alarm.active:
        signal.setitimer(signal.ITIMER_REAL, GRACE_S, AGAIN_S)


class _Held:
    """The total seconds for which calls have blocked the loop so far, and the call that blocks it now."""

    seconds = 0.0
    by: Deadline | None = None


class _Notes:
    """Logs calls that take long, before their time is over.

    A thread does so, as a call may block the loop; it is started with the first call, and anew in a forked process.
    """

    calls: set[Deadline] = set()
    process = 0

    @classmethod
    @contextmanager
    def of(cls, deadline: Deadline) -> Iterator[None]:
        """Register the call as running within the block."""
        if cls.process != os.getpid():
            cls.process, cls.calls = os.getpid(), set()
            threading.Thread(target=cls._run, name="cadre-notes", daemon=True).start()
        cls.calls.add(deadline)
        try:
            yield
        finally:
            cls.calls.discard(deadline)

    @classmethod
    def _run(cls) -> None:
        while True:
            time.sleep(NOTE_S / 12)
            # While one call blocks the loop, the others are not slow but wait for it.
            blocking = _Held.by
            for deadline in [blocking] if blocking is not None else list(cls.calls):
                if deadline.spent >= deadline.noted + NOTE_S:
                    deadline.noted = deadline.spent
                    limit = f"{deadline.seconds:g} s" if deadline.seconds < math.inf else "any time"
                    log.warning(
                        "%s: not done after %.0f s; it may take %s (%s).",
                        deadline.what,
                        deadline.noted,
                        limit,
                        deadline.setting,
                    )


class Deadline:
    """The time limit of one call, from when this is made. `setting` is the name of the setting that it comes from.

    Infinite `seconds` are no limit. While it is `cleaning_up`, a stretch may take `GRACE_S`.
    """

    def __init__(self, what: str, seconds: float, setting: str) -> None:
        self.what, self.seconds, self.setting = what, seconds, setting
        self._began, self._others = time.monotonic(), -_Held.seconds
        self.cleaning_up, self.noted = False, 0.0
        self._lines, self._waited, self._waits_since = 0, 0.0, 0.0

    @property
    def spent(self) -> float:
        """Return the seconds so far that count."""
        now = time.monotonic()
        waited = self._waited + (now - self._waits_since if self._lines else 0.0)
        return max(0.0, now - self._began - waited - (_Held.seconds + self._others))

    @property
    def left(self) -> float:
        return self.seconds - self.spent

    def blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call the function and return its result. Raises DeadlineError if it takes too long."""
        if self in _Notes.calls:  # a stretch of a call that is awaited
            return self._blocking(function, *arguments)
        with _Notes.of(self):
            return self._blocking(function, *arguments)

    def _blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        alarm, began = _Alarm(GRACE_S if self.cleaning_up else self.left), time.monotonic()
        held_by, _Held.by = _Held.by, self
        try:
            try:
                alarm.on()
                result = function(*arguments)
            finally:
                alarm.off()
        except (Exception, Overrun) as error:
            if alarm.sounded:
                raise self.passed(error) from error
            raise
        finally:
            alarm.off()
            _Held.by = held_by
            took = time.monotonic() - began
            _Held.seconds += took
            self._others -= took
        if alarm.sounded:  # the code caught it, so its result cannot be trusted
            raise self.passed()
        return result

    async def awaiting(self, work: Awaitable[T]) -> T:
        """Return the result of the work. If it takes too long, cancels it and raises DeadlineError."""
        token = _current.set(self)
        try:
            with _Notes.of(self):
                return await _Driven(work, self)
        finally:
            _current.reset(token)

    def passed(self, where: BaseException | None = None) -> DeadlineError:
        """Return the error of a call that took too long, with the line that it was at."""
        from cadre.settings.user_code import error_location  # late: the sandbox runs on the standard library alone

        return DeadlineError(
            f"{self.what}: not done after {self.seconds:g} s{error_location(where) if where else ''}; expected an end "
            f"by then. Bound what it waits for, or raise {self.setting}."
        )

    def stand_in_line(self, change: int) -> None:
        """Enter (1) or leave (-1) a queue; the clock stops while the call is in any."""
        if self._lines == 0:
            self._waits_since = time.monotonic()
        self._lines += change
        if self._lines == 0:
            self._waited += time.monotonic() - self._waits_since


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def in_line() -> Iterator[None]:
    """Stop the clock of the caller's deadline while it queues for a shared resource."""
    deadline = _current.get()
    if deadline is None:
        yield
        return
    deadline.stand_in_line(1)
    try:
        yield
    finally:
        deadline.stand_in_line(-1)


class _Driven(Awaitable[T]):
    """Awaits some work on behalf of the task that awaits this, each stretch between two awaits under the alarm.

    When the deadline passes the task is cancelled, and the work may clean up; if it does not end then, it is closed.
    `cancels` counts our own cancellations, which are undone before the task continues.
    """

    def __init__(self, work: Awaitable[T], deadline: Deadline) -> None:
        self._deadline, self.cancels = deadline, 0
        self._iterator: Any = work.__await__()
        self._timer: asyncio.TimerHandle | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        task = asyncio.current_task()
        assert task is not None
        try:
            result = yield from self._stretches(task)
        except BaseException as error:
            self._close()
            if self._late(task):
                raise self._deadline.passed() from error
            if isinstance(error, asyncio.CancelledError) and not task.cancelling():
                raise ContractError(f"{self._deadline.what}: cancelled itself; expected a result.") from error
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if self._late(task):
            raise self._deadline.passed()
        return result

    def _stretches(self, task: asyncio.Task[Any]) -> Generator[Any, Any, T]:
        function, argument = self._iterator.send, None
        while True:
            try:
                future = self._deadline.blocking(self._next, function, argument)
            except _Done as done:
                return done.result
            if self._timer is None and self._deadline.seconds < math.inf:
                self._rearm(task)
            try:
                function, argument = self._iterator.send, (yield future)
            except BaseException as error:
                if self.cancels > 1:
                    raise
                function, argument = self._iterator.throw, error

    def _next(self, function: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return function(argument)
        except StopIteration as stop:
            raise _Done(stop.value) from None

    def _rearm(self, task: asyncio.Task[Any]) -> None:
        wait = GRACE_S if self.cancels else max(0.01, self._deadline.left)
        self._timer = asyncio.get_running_loop().call_later(wait, self._due, task)

    def _due(self, task: asyncio.Task[Any]) -> None:
        if self.cancels or self._deadline.left <= 0.0:
            self.cancels += 1
            self._deadline.cleaning_up = True
            task.cancel()
        if self.cancels < 2:
            self._rearm(task)

    def _late(self, task: asyncio.Task[Any]) -> bool:
        """Return True if the deadline has passed and nobody else cancels the task."""
        for _ in range(self.cancels):
            task.uncancel()
        return self.cancels > 0 and not task.cancelling()

    def _close(self) -> None:
        """Close the work if it has not ended after it was cancelled."""
        self._deadline.cleaning_up = True
        for _ in range(MOST_CLOSES):  # each await in a `finally` takes one more
            with suppress(RuntimeError, DeadlineError):
                self._deadline.blocking(self._iterator.close)
                return


class _Done(Exception):
    """The work has returned; StopIteration itself may not pass through a generator."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


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
