"""A team as a function: an environment whose episode is one run of an async function, its roles the parameters.

    async def essay(row, writer, critic):
        draft = await writer(f"Write a paragraph on {row['topic']}.")
        notes = await critic(f"Criticise this paragraph: {draft}")
        return quality(await writer(f"Rewrite it. Notes: {notes}"))

A state is the answers that the roles have given so far. To take a step the function is run again from its start: calls
that were answered get the same answers, and the run ends at the first calls that have none, which are the next
decision. So every state can be copied. A function that asks something else in the second run fails with both prompts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import copy
import ctypes
import functools
import inspect
import random as random_module
import threading
from asyncio import locks, queues, taskgroups
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from cadre import random_keys
from cadre.envs.messages import to_messages
from cadre.envs.rows import RowTasks
from cadre.envs.tools import RunnableTool, answer_calls, run_in_thread, runnable_tools
from cadre.errors import ConfigError, ContractError, ReplayDiverged
from cadre.settings.user_code import describe_errors, plain_scalar
from cadre.types import Message, Observation, Reward, Sample, Task, Tool, ToolCall, answer_text

# Passes of the event loop without activity after which every task of a function waits: a result that is set in one
# reaches the task behind a group of tasks in the next but one.
PASSES = 3
# Passes that tasks have for what they clean up at the end of a run.
CLOSING_PASSES = 100
# Where tasks wait for each other.
MEETING_PLACES = frozenset(str(inspect.getsourcefile(module)) for module in (locks, queues, taskgroups))
CAUSES = (
    "a clock, random numbers (take cadre.random()), ids, the order of a set or of completion, or state outside of it"
)


class EpisodeDiverged(ContractError, ReplayDiverged):
    """A function that asked something else when it was run again."""


class Answer(str):
    """The answer of a role: its text, without thinking.

    message     the completion as a chat message, with thinking and tool calls
    tool_calls  calls of tools that were offered as `cadre.Tool`; calls of functions have been run
    finish      "stop", or "length" if it was cut off
    choice      index of the choice that it is, None if it is none of them, or no choices were given
    """

    message: Message
    tool_calls: tuple[ToolCall, ...]
    finish: str
    choice: int | None

    def __new__(cls, sample: Sample, choices: Sequence[str] = ()) -> Answer:
        text = answer_text(sample)
        plain = [choice.strip().casefold() for choice in choices]
        word = text.strip().strip(".!\"'`*").strip().casefold()
        choice = plain.index(word) if word in plain else None
        answer = super().__new__(cls, text if choice is None else choices[choice])
        answer.message = sample.message or Message("assistant", sample.text)
        answer.tool_calls, answer.finish, answer.choice = answer.message.tool_calls, sample.finish, choice
        return answer


# ---- What the function is given


class Role:
    """A role of the team, as the function calls it: `await writer(prompt)`."""

    def __init__(self, name: str, run: Run) -> None:
        self.name, self._run = name, run

    def __call__(
        self,
        prompt: Any,
        *,
        system: str = "",
        tools: Sequence[Any] = (),
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        choices: Sequence[str] = (),
        conversation: str = "",
    ) -> Any:
        """Return the answer to a prompt, a text or messages.

        system      a system message before it
        tools       functions that the role may call, which are run in between; a `cadre.Tool` is for the caller to run
        max_tokens, stop   narrow the role's sampling for this call
        choices     the answers that count; one that is written otherwise in case or quotes is returned as it is here
        conversation  name of one of several conversations that the role has side by side
        """
        messages = to_messages(prompt, f"{self._run.name}: {self.name}")
        if max_tokens is not None and max_tokens < 1:
            raise ContractError(f"{self.name}: got max_tokens={max_tokens}; expected 1 at least. Change it.")
        if system:
            messages = (Message("system", system), *messages)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        observation = Observation(self.name, messages, (), stops, max_tokens, conversation)
        call = Call(self._answer(observation, tools, choices), self.name)
        if not self._run.env.is_async:
            return self._run.block_on(call)
        self._run.calls.append(call)
        return call

    async def _answer(self, observation: Observation, tools: Sequence[Any], choices: Sequence[str]) -> Answer:
        if not tools:
            return Answer(await self._run.ask(observation), choices)
        env_tools = tuple(tool for tool in tools if isinstance(tool, Tool))
        runnable: Mapping[str, RunnableTool] = {}
        if functions := [tool for tool in tools if not isinstance(tool, Tool)]:
            runnable = runnable_tools(functions)
        offered, env = (*env_tools, *(tool.tool for tool in runnable.values())), self._run.env
        exchange: tuple[Message, ...] = ()
        while True:
            messages = (*observation.messages, *exchange)
            sample = await self._run.ask(replace(observation, messages=messages, tools=offered))
            answered = await answer_calls(
                runnable,
                sample,
                exchange,
                [tool.name for tool in env_tools],
                env.tool_turns,
                env.tool_timeout_s,
                env.tool_max_chars,
            )
            if answered is None:
                return Answer(sample, choices)
            exchange = (*exchange, *answered.messages)
            for name, count in answered.counts.items():
                self._run.counts[name] += count

    def reward(self, value: float, part: str = "") -> None:
        """Add to the role's reward for what it has just done; `part` names it in the logs."""
        try:
            number = float(plain_scalar(value))
        except (TypeError, ValueError):
            raise ContractError(f"{self.name}.reward: got {value!r:.80}; expected a number. Give one.") from None
        if not self._run.is_begun:
            raise ContractError(
                f"{self.name}.reward: called before any role has answered; expected a reward for an answer. Call it "
                "later."
            )
        self._run.is_rewarded = True
        self._run.local[self.name] = self._run.local.get(self.name, 0.0) + number
        if part:
            self._run.counts[part] += number

    def conversation(self, system: str = "") -> Conversation:
        """Return a conversation, whose calls continue each other."""
        self._run.conversations[self.name] += 1
        return Conversation(self, system, str(self._run.conversations[self.name]))


class Conversation:
    """A chat of one role over several calls, with all messages so far in `messages`."""

    def __init__(self, role: Role, system: str, name: str) -> None:
        self._role, self._name = role, name
        self.messages: list[Message] = [Message("system", system)] if system else []

    def __call__(self, prompt: Any, **options: Any) -> Any:
        """Return the answer to a further prompt; options as those of a role."""
        self.messages += to_messages(prompt, self._role.name)
        call = self._role(list(self.messages), conversation=self._name, **options)
        if isinstance(call, Answer):
            self.messages.append(call.message)
            return call
        return Call(self._keep(call), self._role.name)

    async def _keep(self, call: Any) -> Answer:
        answer: Answer = await call
        self.messages.append(answer.message)
        return answer


class _Coroutine(Coroutine[Any, Any, Any]):
    """A coroutine around another one."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self.inner = inner

    def send(self, value: Any) -> Any:
        return self.inner.send(value)

    def throw(self, *error: Any) -> Any:
        return self.inner.throw(*error)

    def close(self) -> None:
        self.inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.inner.__await__()


class Call(_Coroutine):
    """A call of a role that is to be awaited; used as a text by mistake, it raises ContractError."""

    def __init__(self, inner: Coroutine[Any, Any, Any], role: str) -> None:
        super().__init__(inner)
        self.role, self.is_awaited = role, False

    def send(self, value: Any) -> Any:
        self.is_awaited = True
        return super().send(value)

    def __await__(self) -> Generator[Any, Any, Any]:
        self.is_awaited = True
        return super().__await__()

    def __str__(self) -> str:
        self.inner.close()
        raise ContractError(f"{self.role}: its answer is used before it is there; expected await {self.role}(...).")

    def __format__(self, form: str) -> str:
        return str(self)

    def __getattr__(self, name: str) -> Any:
        if hasattr(str, name):
            str(self)
        raise AttributeError(name)


def random() -> random_module.Random:
    """Return the random numbers of the running episode: equal in every run of it, so that it can branch. Raises
    ContractError outside of an episode."""
    run = _run.get()
    if run is None:
        raise ContractError("cadre.random: called outside of an episode; expected a call in a team's function.")
    return run.random


# ---- A run of the function

_run: contextvars.ContextVar[Run | None] = contextvars.ContextVar("run", default=None)


class TrackedTask(_Coroutine):
    """The coroutine of a task of a run, which notes what the task waits for."""

    def __init__(self, inner: Coroutine[Any, Any, Any], run: Run, parent: TrackedTask | None) -> None:
        super().__init__(inner)
        self.run, self.waits_for, self.is_done, self.is_abandoned = run, None, False, False
        self.children: list[TrackedTask] = []
        if parent is not None:
            parent.children.append(self)

    def send(self, value: Any) -> Any:
        return self._step(self.inner.send, value)

    def throw(self, *error: Any) -> Any:
        try:
            return self._step(self.inner.throw, *error)
        finally:
            del error  # its traceback has this frame: without the circle it goes at once, as in `close` of a run

    def _step(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.waits_for = None
        try:
            self.waits_for = function(*arguments)
            if self.is_abandoned:
                # A coroutine that caught even its end is never lost: Python would end it once more, at its own end too.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.inner))
                raise asyncio.CancelledError
            return self.waits_for
        except BaseException:
            self.is_done = True
            raise
        finally:
            del arguments
            self.run.note_activity()

    @property
    def waits_for_an_answer(self) -> bool:
        """Return True if the task is done, or waits for an answer itself, so that nothing else can wake it."""
        future: Any = self.waits_for
        return self.is_done or (future in self.run.asked and not future.done())

    @property
    def waits_for_others(self) -> bool:
        """Return True if the task is done, or waits for an answer or for other tasks of the run: those that it has
        started, or those that it meets at a lock, an event or a queue."""
        future = self.waits_for
        if self.is_done:
            return True
        if future is None or future.done():
            return False
        if future in self.run.asked or future in self.run.tasks or any(not child.is_done for child in self.children):
            return True
        coroutine: Any = self.inner
        while hasattr(inner := getattr(coroutine, "cr_await", None), "cr_code"):
            coroutine = inner
        code = getattr(coroutine, "cr_code", None)
        return code is not None and code.co_filename in MEETING_PLACES


class TaskFactory:
    """Makes the tasks of an event loop, and tracks those of a run."""

    def __init__(self, inner: Callable[..., Any] | None) -> None:
        self.inner = inner

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        make = self.inner or (lambda loop, coroutine, **options: asyncio.Task(coroutine, loop=loop, **options))
        context = options.get("context")
        run = _run.get() if context is None else context.get(_run)
        if run is None:
            return make(loop, coroutine, **options)
        current = asyncio.current_task()
        tracked = TrackedTask(coroutine, run, run.tasks.get(current, run.main) if current else run.main)
        run.main = run.main or tracked
        task = make(loop, tracked, **options)
        run.tasks[task] = tracked
        return task


class Step(NamedTuple):
    """What the roles were asked at one decision, and their completions."""

    observations: Mapping[str, Observation]
    samples: Mapping[str, Sample]


@dataclass
class Run:
    """One run of the function, up to the first decision without answers. Owned by the step that makes it.

    position  number of the decisions so far that the episode has answers for
    asked     the calls that wait for an answer, in the order in which they were made
    tasks     the tasks of the function, the first is the function itself (`main`)
    local, counts   rewards by role and numbers by part since the last answers
    calls     of an async function; all have to be awaited
    thread    in which a plain function runs
    """

    env: Episode
    loop: asyncio.AbstractEventLoop
    position: int = 0
    asked: dict[asyncio.Future[Sample], Observation] = field(default_factory=dict)
    tasks: dict[asyncio.Task[Any], TrackedTask] = field(default_factory=dict)
    main: TrackedTask | None = None
    conversations: Counter[str] = field(default_factory=Counter)
    local: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: list[Call] = field(default_factory=list)
    thread: int = 0
    is_begun: bool = False
    is_rewarded: bool = False
    is_closed: bool = False
    _activity: int = 0
    _changed: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        return type(self.env).__name__

    @functools.cached_property
    def random(self) -> random_module.Random:
        """The random numbers of the episode, the same in each of its runs."""
        return random_module.Random(random_keys.key("episode", self.env.task.id))

    @property
    def recorded(self) -> Step | None:
        """The decision of the earlier run that comes next, None once this run is beyond them."""
        return self.env.steps[self.position] if self.position < len(self.env.steps) else None

    async def ask(self, observation: Observation) -> Sample:
        """Return the completion of a call. Called in a task of the function; never returns once the run has ended."""
        step, is_alone = self.recorded, self.main is not None and not self.main.children and not self.is_closed
        # Where the function has no other task, nobody else can ask at this decision: it is answered without a wait.
        if step is not None and is_alone and step.observations == {observation.role: observation}:
            self.answer(step.samples)
            return step.samples[observation.role]
        future: asyncio.Future[Sample] = self.loop.create_future()
        if not self.is_closed:
            self.asked[future] = observation
        try:
            return await future
        finally:
            self.asked.pop(future, None)

    def block_on(self, call: Call) -> Answer:
        """Return the answer of a call that a plain function makes in its thread."""
        if threading.get_ident() != self.thread:
            call.close()
            raise ContractError(
                f"{call.role}: called from another thread than that of {self.name}, so that the order of calls may "
                "change; expected calls one after the other. Write async def and asyncio.gather for several at once."
            )
        try:
            if not self.is_closed:
                return asyncio.run_coroutine_threadsafe(call, self.loop).result()  # type: ignore[no-any-return]
        except concurrent.futures.CancelledError:
            call.close()
            raise SystemExit from None  # the run has ended, and with it the thread
        call.close()
        threading.Event().wait()  # a function that catches even this would go on for ever
        raise AssertionError

    def note_activity(self) -> None:
        self._activity += 1
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def settle(self) -> None:
        """Wait until the function has ended, or every task of it waits for answers: those recorded next, if any."""
        while self.main is not None and not self.main.is_done:
            if self.asked and all(task.waits_for_an_answer for task in self.tasks.values()):
                return
            if not all(task.waits_for_others for task in self.tasks.values()):
                self._changed = self.loop.create_future()
                await self._changed
                continue
            if self.recorded is not None and self.pending() == self.recorded.observations:
                return
            activity = self._activity
            for _ in range(PASSES):
                await asyncio.sleep(0)
            if activity == self._activity and all(task.waits_for_others for task in self.tasks.values()):
                if not self.asked:
                    raise ContractError(
                        f"{self.name}: all of its tasks wait for each other and none for a role, so that it would "
                        "never end; expected an end. Release the lock, set the event, or fill the queue."
                    )
                return

    def pending(self) -> dict[str, Observation]:
        """Return the first call of each role that waits, in the order of the roles."""
        first: dict[str, Observation] = {}
        for observation in self.asked.values():
            first.setdefault(observation.role, observation)
        return {role: first[role] for role in self.env.roles if role in first}

    def answer(self, samples: Mapping[str, Sample]) -> None:
        """Answer the first call of each role at the recorded decision; what was rewarded before is left behind."""
        self.position += 1
        self.local, self.counts, self.is_begun = {}, defaultdict(float), True
        unanswered = dict(samples)
        for future, observation in self.asked.items():
            if (sample := unanswered.pop(observation.role, None)) is not None:
                future.set_result(sample)

    async def close(self) -> None:
        """End the tasks of the function, which run what they clean up."""
        self.is_closed = True
        for call in self.calls:
            if not call.is_awaited:
                call.close()  # it was to be awaited later
        for task in self.tasks:
            task.cancel()
        passes = 0
        while unfinished := [task for task in self.tasks if not task.done()]:
            if (passes := passes + 1) > CLOSING_PASSES:
                for task in unfinished:
                    self.tasks[task].is_abandoned = True
                    task.cancel()
            await asyncio.sleep(0)
        for task in self.tasks:
            if not task.cancelled():
                task.exception()  # which nobody else may ask for
        # Without references in a circle all of it goes at once, and not with the collector of garbage.
        self.tasks, self.calls, self.main = {}, [], None


def check_equal(name: str, first_run: Mapping[str, Observation], second_run: Mapping[str, Observation]) -> None:
    """Raise EpisodeDiverged, with both prompts, if a second run asks something else than the first did."""
    for role in dict.fromkeys([*first_run, *second_run]):
        if (first := first_run.get(role)) != (second := second_run.get(role)):
            raise EpisodeDiverged(
                f"{name}: asked {role} {_shown(first, second)!r} in its first run and {_shown(second, first)!r} in the "
                f"second, with equal answers before; expected the same, as every branch runs it again. What usually "
                f"differs is {CAUSES}."
            )


def _shown(observation: Observation | None, other: Observation | None, width: int = 160) -> str:
    """Return the part of a prompt from shortly before the first difference to another one."""
    if observation is None:
        return "nothing"
    text, second = ("\n".join(m.content for m in it.messages) if it else "" for it in (observation, other))
    if text == second:
        return f"{text[:width]} [{len(observation.messages)} messages, {len(observation.tools)} tools]"
    start = next((i for i, (a, b) in enumerate(zip(text, second, strict=False)) if a != b), min(len(text), len(second)))
    start = max(0, start - width // 4)
    return f"{'...' if start else ''}{text[start : start + width]}{'...' if len(text) > start + width else ''}"


# ---- The environment


class Episode(RowTasks):
    """A state of a team's function: the answers so far, and what the roles are asked next. Made by `episode`."""

    function: ClassVar[Callable[..., Any]]
    is_async: ClassVar[bool]
    rewards_absent = True

    def __init__(self, task: Task, success_at: float = 1.0, max_decisions: int = 200, **settings: Any) -> None:
        super().__init__(task)
        self.success_at, self.max_decisions, self.settings = success_at, max_decisions, settings
        self.steps: tuple[Step, ...] = ()
        self.observations: Mapping[str, Observation] | None = None
        self.is_solved = False

    async def until_ready(self) -> None:
        if self.observations is None:
            await self._run()

    def observe(self) -> dict[str, Observation]:
        assert self.observations is not None
        return dict(self.observations)

    async def step(self, actions: dict[str, str]) -> Reward:
        samples = {role: Sample(role, "", text, (), (), (), "stop", 0) for role, text in actions.items()}
        return await self.step_samples(samples)

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        assert self.observations is not None
        self.steps = (*self.steps, Step(self.observations, samples))
        return await self._run()

    @property
    def success(self) -> bool:
        return self.is_solved

    async def _run(self) -> Reward:
        """Run the function up to the next decision, and return the reward since the last one."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop.get_task_factory(), TaskFactory):
            loop.set_task_factory(TaskFactory(loop.get_task_factory()))
        run = Run(self, loop)
        context = contextvars.copy_context()
        context.run(_run.set, run)
        task = loop.create_task(self._call(run), context=context)
        try:
            await asyncio.sleep(0)  # in which the function runs up to the first call that is not answered at once
            await run.settle()
            while (step := run.recorded) is not None:
                check_equal(run.name, step.observations, run.pending())
                run.answer(step.samples)
                await run.settle()
            reward = Reward(0.0, run.local, dict(run.counts))
            if run.main is not None and not run.main.is_done:
                self.observations = run.pending()
                return reward
            result = await task
            if run.asked:
                raise ContractError(
                    f"{run.name}: ended while {', '.join(run.pending())} was asked; expected await for every call. "
                    "Add it."
                )
            if forgotten := [call.role for call in run.calls if not call.is_awaited]:
                raise ContractError(
                    f"{run.name}: called {forgotten[0]} without await; expected await {forgotten[0]}(...)."
                )
            if result is None and not run.is_rewarded:
                raise ContractError(
                    f"{run.name}: returned nothing and rewarded nobody; expected a reward. Return a number, a "
                    "cadre.Reward, or numbers by role."
                )
            self.observations = {}
            return self._final(result, reward)
        finally:
            await run.close()

    async def _call(self, run: Run) -> Any:
        row, roles = copy.deepcopy(dict(self.task.data)), [Role(name, run) for name in self.roles]
        with describe_errors(run.name):
            if self.is_async:
                try:
                    return await self.function(row, *roles, **self.settings)
                except BaseExceptionGroup as group:  # of asyncio.TaskGroup: the first of its errors has the line
                    error: BaseException = group
                    while isinstance(error, BaseExceptionGroup):
                        error = error.exceptions[0]
                    raise error from None

            def call(**settings: Any) -> Any:
                run.thread = threading.get_ident()
                return self.function(row, *roles, **settings)

            return await run_in_thread(call, self.settings)

    def _final(self, result: Any, so_far: Reward) -> Reward:
        """Return the reward of the last step from what the function returned, and note whether the task is solved."""
        own = result if isinstance(result, Reward) else Reward(0.0 if result is None else result)
        if isinstance(result, Mapping):
            own = Reward(0.0, {role: plain_scalar(number) for role, number in result.items()})
        for number in (own.team, *own.local.values()):
            if not isinstance(plain_scalar(number), int | float):
                raise ContractError(
                    f"{type(self).__name__}: returned {result!r:.80}, in which {number!r:.80} is no number; expected a "
                    "number, a cadre.Reward of numbers, a mapping of roles to numbers, or None after rewards on the "
                    "way. Return one of them."
                )
        # Of numbers by role the mean counts.
        total, count = (sum(own.local.values()), len(own.local)) if isinstance(result, Mapping) else (own.team, 1)
        self.is_solved = bool(count and total >= self.success_at * count if own.success is None else own.success)
        local = {role: so_far.local.get(role, 0.0) + own.local.get(role, 0.0) for role in {**so_far.local, **own.local}}
        return Reward(own.team, local, {**so_far.parts, **own.parts})


@functools.lru_cache(maxsize=256)
def episode(function: Callable[..., Any]) -> type[Episode]:
    """Return the environment whose episodes are runs of a team's function, `async def f(row, role, ...)` or a plain
    one.

    The parameters after the row are the roles; one with a default is a setting. The function returns the reward: a
    number for the team, a `cadre.Reward`, or numbers by role. Raises ConfigError for a function without roles.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"episode: got {function!r:.80}; expected a function of a row and the roles. Write one.")
    parameters = list(inspect.signature(function).parameters.values())
    arguments = parameters[1:]
    roles = [p.name for p in arguments if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    settings = [p for p in arguments if p.name not in roles]
    reserved = ("success_at", "max_decisions", "tasks", "held_out", "columns", "reward")
    if not roles or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in arguments):
        raise ConfigError(
            f"{name}: got the parameters {inspect.signature(function)}; expected a row and then the roles, by name, as "
            f"in async def {name}(row, writer, critic). Settings have a default. Change them."
        )
    if invalid := [p.name for p in settings if p.name in reserved or p.default is p.empty]:
        raise ConfigError(
            f"{name}: got the setting {invalid[0]!r}; expected one with a default, and none of {', '.join(reserved)}. "
            "Rename it, or give it one."
        )

    def __init__(self: Episode, task: Task, **given: Any) -> None:
        Episode.__init__(self, task, **given)

    plain = inspect.signature(Episode.__init__)
    first = [p for p in plain.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = [p.replace(kind=p.KEYWORD_ONLY) for p in settings]
    __init__.__signature__ = plain.replace(parameters=[*first, *keywords])  # type: ignore[attr-defined]
    __init__.__annotations__ = {
        "success_at": float,
        "max_decisions": Annotated[int, Field(ge=1, le=100_000)],
        **{p.name: p.annotation for p in settings if p.annotation is not p.empty},
    }
    names = {
        "function": staticmethod(function),
        # An async function, or an object whose call is one.
        "is_async": any(map(inspect.iscoroutinefunction, (function, type(function).__call__))),
        "roles": tuple(roles),
        "__init__": __init__,
        "__module__": function.__module__,
        "__qualname__": getattr(function, "__qualname__", name),
        "__doc__": function.__doc__,
    }
    return type(name, (Episode,), names)
