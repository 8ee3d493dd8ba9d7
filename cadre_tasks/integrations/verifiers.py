"""Tasksets and environments of the package `verifiers` (its v1 interface, 0.4) as environments.

The environment's own `run` and `finalize` are executed, and the task's own hooks, tools and rewards; an agent of it is
a role. Only the harness is replaced: instead of a program that calls an endpoint, a chat loop in this process asks for
a completion, which is the observation, and our step answers it. A fork is a second episode that is given the recorded
answers, so the environment must be deterministic.
"""

from __future__ import annotations

import asyncio
import copy
import ctypes
import inspect
import itertools
import json
import math
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Self, TypeVar

from cadre.env import Env, GeneratedTasks, Split
from cadre.envs.tools import RunnableTool, run_call, tool
from cadre.errors import ConfigError, ContractError
from cadre.plugins import package
from cadre.settings.user_code import describe_error
from cadre.types import Message, Observation, Reward, Sample, Task, ToolCall
from cadre_tasks.integrations import expect_equal

T = TypeVar("T")
# Tasks that are read of a taskset that never ends.
INFINITE_TASKS = 1000
# Seconds in which a loop that is not blocked answers.
ANSWER_S = 0.3


class Blocked(BaseException):
    """Raised in code that blocks the event loop of the episodes."""


@cache
def episode_thread() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """Return the event loop in which all episodes run, so that `observe` can wait for one, and its thread."""
    loop = asyncio.new_event_loop()

    def run() -> None:
        while True:
            with suppress(BaseException):  # a task that raises SystemExit has ended, the others have not
                loop.run_forever()

    thread = threading.Thread(target=run, name="cadre-verifiers", daemon=True)
    thread.start()
    return loop, thread


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(work, episode_thread()[0])


@contextmanager
def unblocked(future: Future[Any]) -> Iterator[None]:
    """If the block is ended before the future, raise `Blocked` in what blocks the loop, if something does. Where that
    does not end it, as `time.sleep`, other episodes get another thread."""
    try:
        yield
    except BaseException:
        if not future.done() or future.cancelled():
            _end_blocking(*episode_thread())
        raise


def _end_blocking(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    for _ in range(2):
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        if answered.wait(ANSWER_S):
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Blocked))
    episode_thread.cache_clear()


async def wait_for(future: Future[T]) -> T:
    with unblocked(future):
        return await asyncio.wrap_future(future)


@lru_cache(maxsize=16)
def load_environment(names: str) -> Any:
    """Return the environment of the JSON text {id, env, args, env_args}. Raises ConfigError."""
    settings = json.loads(names)
    loaders = package("verifiers.v1.utils.loaders", "verifiers")
    config = {"id": settings["env"], **settings["env_args"], "taskset": {"id": settings["id"], **settings["args"]}}
    try:
        env = loaders.load_environment(loaders.resolve_env_config(config))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"settings.id: verifiers cannot load {settings['id']!r} with {settings['args']!r}: {reason}; expected the "
            "name of an installed package of a taskset, with arguments that its config has. Install it, or fix them."
        ) from None
    kind = type(env.taskset).task_type()
    if kind.NEEDS_CONTAINER:
        raise ConfigError(f"settings.id: the tasks of {settings['id']!r} need a container. Take another taskset.")
    if type(env.taskset).toolsets(env.taskset.config):
        raise ConfigError(
            f"settings.id: {settings['id']!r} has tools that all of its tasks share; expected Task.toolsets."
        )
    return env


@lru_cache(maxsize=16)
def load_tasks(names: str) -> tuple[Any, ...]:
    """Return the tasks of a taskset, the first `INFINITE_TASKS` of one that does not end."""
    taskset = load_environment(names).taskset
    tasks = tuple(itertools.islice(taskset, None if taskset.bounded else INFINITE_TASKS))
    if tasks:
        task = tasks[0]
        decorators = package("verifiers.v1.utils.decorators", "verifiers")
        kinds = {"reward": task.hooks("reward"), "metric": task.hooks("metric")}
        needing = [hook.__name__ for hooks in kinds.values() for hook in hooks if _requires(hook, "runtime")]
        needing += [hook.__name__ for hook in decorators.discover_decorated(task, "intercept")]
        needing += [hook.__name__ for hook in task.hooks("stop") if "trace" not in inspect.signature(hook).parameters]
        if needing:
            raise ConfigError(
                f"settings.id: {', '.join(needing)} of {type(task).__name__} need the runtime or the requests of a "
                "harness. Take another taskset."
            )
    return tasks


def _requires(function: Any, name: str) -> bool:
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


@dataclass
class PendingCall:
    """A completion that a chat loop waits for."""

    role: str
    conversation: str
    messages: tuple[Message, ...]
    tools: Mapping[str, RunnableTool]
    answer: asyncio.Future[Sample]


class Episode:
    """One execution of an environment's `run` and `finalize`. Its methods are awaited in the loop of the episodes."""

    def __init__(self, env: Any, task: Any, tool_limits: tuple[float, int, int]) -> None:
        self.env, self.task = env, copy.deepcopy(task)
        self.tool_timeout_s, self.tool_max_chars, self.tool_turns = tool_limits
        self.calls: asyncio.Queue[PendingCall] = asyncio.Queue()
        self.pending: PendingCall | None = None
        self.traces: list[Any] = []
        self.conversations = itertools.count()
        self.running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            await self._play()
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise ContractError(
                f"env: verifiers: the task's code raised {describe_error(error)}; expected no exit, and no call that "
                "blocks. Return, raise an error, or await."
            ) from error

    async def _play(self) -> None:
        agents = package("verifiers.v1.agent", "verifiers").Agents(
            self.env.config, lambda name, config: ChatAgent(name, config, self)
        )
        await self.env.setup(agents)
        await self.env.run(self.task, agents)
        module = package("verifiers.v1.episode", "verifiers")
        info = module.EnvInfo(id=self.env.config.env_id)
        episode = module.Episode(env=info, task=trace_task(self.task))
        episode.traces = self.traces
        await self.env.finalize(self.task, episode)

    async def advance(self, answers: Sequence[Sample]) -> PendingCall | None:
        """Give the answers in order, and return the call that waits then; None if the episode has ended."""
        if self.pending is None:
            await self._wait()
        for answer in answers:
            if self.pending is None:
                raise RuntimeError("verifiers: a fork ended earlier than the episode that it repeats")
            self.pending.answer.set_result(answer)
            await self._wait()
        return self.pending

    async def _wait(self) -> None:
        """Wait for the next call or the end. Raises what the environment raises."""
        following = asyncio.ensure_future(self.calls.get())
        await asyncio.wait((following, self.running), return_when=asyncio.FIRST_COMPLETED)
        self.pending = None
        if following.done():
            self.pending = following.result()
        else:
            following.cancel()
            self.running.result()


def trace_task(task: Any) -> Any:
    module = package("verifiers.v1.trace", "verifiers")
    return module.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)


class ChatAgent:
    """An agent of an environment: its `run` and `interaction`, as verifiers' own `Agent` has them."""

    def __init__(self, name: str, config: Any, episode: Episode) -> None:
        self.name, self.config, self.episode, self.trainable = name, config, episode, True

    async def run(self, task: Any, **options: Any) -> Any:
        """Return the trace of one conversation without a user."""
        async with self.interaction(task) as chat:
            if chat.trace.stop_condition is None:
                await chat.turn()
            chat.trace.stop("agent_completed")  # unless a limit or a `@stop` came first
        return chat.trace

    @asynccontextmanager
    async def interaction(self, task: Any, **options: Any) -> AsyncIterator[Chat]:
        """Hold a conversation open, whose user is the caller. It is scored at its end."""
        decorators = package("verifiers.v1.utils.decorators", "verifiers")
        chat = Chat(self, task)
        scope = {"trace": chat.trace, "runtime": None}
        await decorators.invoke(task.setup, scope)
        for toolset in chat.toolsets:
            await toolset.setup()
            await toolset.setup_task(task.data)
        yield chat
        chat.trace.stop("user_closed")
        await decorators.invoke(task.finalize, scope)
        await task.score(chat.trace, None)
        chat.trace.is_completed = chat.trace.ok = True
        self.episode.traces.append(chat.trace)


class Chat:
    """A conversation of one agent: each `turn` asks for completions until one calls no tool."""

    def __init__(self, agent: ChatAgent, task: Any) -> None:
        trace, state = package("verifiers.v1.trace", "verifiers"), package("verifiers.v1.state", "verifiers")
        self.agent, self.task = agent, task
        self.types = package("verifiers.v1.types", "verifiers")
        self.conversation = str(next(agent.episode.conversations))
        info = trace.AgentInfo(config=agent.config, name=agent.name, trainable=agent.trainable)
        self.trace = trace.Trace(task=trace_task(task), agent=info, state=state.state_cls(type(task))())
        self.toolsets = task.toolsets(task.config)
        decorators = package("verifiers.v1.utils.decorators", "verifiers")
        self.tools: dict[str, RunnableTool] = {}
        for toolset in self.toolsets:
            toolset._inert_state = self.trace.state  # what `Toolset.state` returns outside of a server
            prefix = f"{toolset.server_name}_" if toolset.server_name else ""
            for function in decorators.discover_decorated(toolset, "tool"):
                name = prefix + (getattr(function, "tool_name", None) or function.__name__)
                self.tools[name] = tool(function, name=name)
        prompt = task.data.prompt
        system = [self.types.SystemMessage(content=task.data.system_prompt)] if task.data.system_prompt else []
        opening = [self.types.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or ())
        self.messages = [*system, *opening]
        self.prompted, self.call_error = prompt is not None, ""

    async def turn(self, message: Any = None) -> Any:
        """Return the segment that answers a message of the user, or the task's prompt."""
        segment = package("verifiers.v1.agent", "verifiers").Segment
        if message is None and not self.prompted:
            raise ValueError("turn() without a message: the task's prompt is answered, or it has none")
        self.prompted = False
        if isinstance(message, str):
            self.messages.append(self.types.UserMessage(content=message))
        elif message is not None:
            parse = package("verifiers.v1.dialects", "verifiers").parse_message
            self.messages.extend(parse(entry) if isinstance(entry, dict) else entry for entry in message)
        beginning = len(self.messages)
        for number in itertools.count(1):
            decorators = package("verifiers.v1.utils.decorators", "verifiers")
            limit = self.agent.config.max_turns
            if self.trace.stop_condition is None and limit is not None and self.trace.num_turns >= limit:
                self.trace.stop("max_turns")
            for hook in self.task.hooks("stop"):
                if self.trace.stop_condition is None and await decorators.invoke(hook, {"trace": self.trace}):
                    self.trace.stop(hook.__name__)
            if self.trace.stop_condition is not None:
                return segment(messages=self.messages[beginning:], terminated=len(self.messages) == beginning)
            answer = await self._ask()
            calls = answer.tool_calls or ()
            if self.call_error and number <= self.agent.episode.tool_turns:
                self.messages.append(self.types.UserMessage(content=f"Error: {self.call_error}"))
                continue
            if not calls or number > self.agent.episode.tool_turns:
                return segment(messages=self.messages[beginning:])
            for call in calls:
                text, _ = await run_call(
                    self.tools,
                    ToolCall(call.id, call.name, call.arguments),
                    self.agent.episode.tool_timeout_s,
                    self.agent.episode.tool_max_chars,
                )
                self.messages.append(self.types.ToolMessage(tool_call_id=call.id, content=text, name=call.name))

    async def _ask(self) -> Any:
        """Return the completion of the conversation as a message, which is appended and committed to the trace."""
        graph = package("verifiers.v1.graph", "verifiers")
        offered = [
            self.types.Tool(name=name, description=entry.tool.description, parameters=dict(entry.tool.parameters))
            for name, entry in self.tools.items()
        ]
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        shown = tuple(map(to_message, self.messages))
        self.agent.episode.calls.put_nowait(PendingCall(self.agent.name, self.conversation, shown, self.tools, future))
        sample = await future
        self.call_error = sample.call_error if self.tools else ""
        called = sample.message.tool_calls if sample.message is not None else ()
        # Ids are numbered through the conversation, as those of a sample begin at 0 in every completion.
        first = sum(len(getattr(message, "tool_calls", None) or ()) for message in self.messages)
        calls = [
            self.types.ToolCall(id=f"call_{first + index}", name=call.name, arguments=call.arguments)
            for index, call in enumerate(called)
        ]
        text, thinking = sample.text, None
        if sample.message is not None:
            text, thinking = sample.message.content, sample.message.thinking or None
        message = self.types.AssistantMessage(content=text, reasoning_content=thinking, tool_calls=calls or None)
        usage = None  # a remote policy does not say what it sampled
        if sample.token_ids:
            usage = self.types.Usage(prompt_tokens=len(sample.prompt_ids), completion_tokens=len(sample.token_ids))
        response = self.types.Response(
            id=f"{self.conversation}-{self.trace.num_turns}",
            created=0,
            model=sample.policy,
            message=message,
            finish_reason="tool_calls" if calls else sample.finish,
            usage=usage,
        )
        node = graph.prepare_turn(self.trace, list(self.messages), offered).commit(response)
        # As verifiers' server records it: `trace.is_truncated` and the numbers of tokens are read off the calls.
        record = package("verifiers.v1.trace", "verifiers").ModelCall
        self.trace.calls.append(
            record(node=node, model=sample.policy, finish_reason=response.finish_reason, usage=usage)
        )
        self.messages.append(message)
        return message


def to_message(message: Any) -> Message:
    """Return a message of verifiers as one of Cadre. Raises ConfigError for content that is not text."""
    content = message.content
    if isinstance(content, list):
        if any(part.type != "text" for part in content):
            raise ConfigError("env: verifiers: a message has images; expected text alone. Take another taskset.")
        content = "\n".join(part.text for part in content)
    calls = tuple(ToolCall(c.id, c.name, c.arguments) for c in getattr(message, "tool_calls", None) or ())
    thinking = getattr(message, "reasoning_content", None) or ""
    return Message(message.role, content or "", calls, getattr(message, "tool_call_id", "") or "", thinking=thinking)


class Verifiers(Env):
    """Settings:

    id        the installed package of a taskset, as verifiers names it
    args      settings of its config, such as {split: train}
    env       another environment that plays its tasks, such as best-of-n or user-sim; else its own
    env_args  settings of the environment's config
    test      `args` of the test split; without them, `held_out` of the tasks are kept for it
    solved    reward of the first role from which an episode is a success

    The reward of a single agent is the team's, those of several are each role's own, the mean of its conversations.
    """

    rewards_absent = True

    def __init__(
        self,
        task: Task,
        id: str,
        args: dict[str, Any] | None = None,
        env: str = "",
        env_args: dict[str, Any] | None = None,
        solved: float = 1.0,
    ) -> None:
        super().__init__(task)
        self.names = settings_text(id, task.data["args"], env, env_args)
        self.solved, self.total = solved, 0.0
        self.history: tuple[Sample, ...] = ()
        self.episode: Episode | None = None
        self.call: PendingCall | None = None

    async def _advance(self) -> None:
        """Bring the episode to the call after the history; a fork, or a state of a thread that was left, starts a new
        one."""
        if self.episode is None or self.episode.running.get_loop() is not asyncio.get_running_loop():
            limits = (self.tool_timeout_s, self.tool_max_chars, self.tool_turns)
            source = load_tasks(self.names)[self.task.data["index"]]
            self.episode = Episode(load_environment(self.names), source, limits)
            # A state that is dropped without `close` leaves no coroutine behind.
            loop, running = asyncio.get_running_loop(), self.episode.running
            cancel = weakref.finalize(self, lambda: loop.call_soon_threadsafe(running.cancel))
            cancel.atexit = False
            before, self.call = self.call, await self.episode.advance(self.history)
            if self.history:
                waited, waiting = (call and (call.role, call.messages) for call in (before, self.call))
                expect_equal("verifiers", waited, waiting, "Take a taskset that draws from its task alone.")

    async def until_ready(self) -> None:
        await wait_for(submit(self._advance()))

    def observe(self) -> dict[str, Observation]:
        future = submit(self._advance())
        with unblocked(future):
            future.result()
        if self.call is None:
            return {}
        tools = tuple(entry.tool for entry in self.call.tools.values())
        role = self.call.role
        return {role: Observation(role, self.call.messages, tools, conversation=self.call.conversation)}

    async def step(self, actions: dict[str, str]) -> Reward:
        return await self.step_samples(
            {role: Sample(role, "", text, (), (), (), "stop", 0) for role, text in actions.items()}
        )

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        (sample,) = samples.values()
        await self.until_ready()
        assert self.episode is not None
        self.history = (*self.history, sample)
        self.call = await wait_for(submit(self.episode.advance((sample,))))
        return Reward() if self.call is not None else self._reward(self.episode.traces)

    def _reward(self, traces: Sequence[Any]) -> Reward:
        """Return the rewards of the conversations, with the weighted rewards and the metrics as parts."""
        roles = self.roles_of(**json.loads(self.names))
        by_role = {role: [trace for trace in traces if trace.agent.name == role] for role in roles}
        rewards = {role: sum(t.reward for t in traces) / len(traces) for role, traces in by_role.items() if traces}
        parts: dict[str, float] = {}
        for role, role_traces in by_role.items():
            prefix = "" if len(roles) == 1 else f"{role}/"
            for trace in role_traces:
                scores = {name: entry.value for name, entry in trace.rewards.items() if entry is not None}
                scores |= {name: value for name, value in trace.metrics.items() if value is not None}
                for name, value in scores.items():
                    parts[prefix + name] = parts.get(prefix + name, 0.0) + float(value) / len(role_traces)
        self.total = rewards.get(roles[0], 0.0)
        return Reward(self.total, parts=parts) if len(roles) == 1 else Reward(local=rewards, parts=parts)

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin.episode = None
        return twin

    def close(self) -> None:
        if self.episode is not None:
            running = self.episode.running
            running.get_loop().call_soon_threadsafe(running.cancel)

    @property
    def success(self) -> bool:
        return self.episode is not None and self.call is None and self.total >= self.solved

    @classmethod
    def roles_of(
        cls,
        id: str = "",
        args: dict[str, Any] | None = None,
        env: str = "",
        env_args: dict[str, Any] | None = None,
        **settings: Any,
    ) -> tuple[str, ...]:
        if not id:
            return ("agent",)
        fields = package("verifiers.v1.configs.agent", "verifiers").agent_config_fields
        return tuple(fields(load_environment(settings_text(id, args, env, env_args)).config))

    @classmethod
    def tasks(
        cls,
        split: Split,
        id: str = "",
        args: dict[str, Any] | None = None,
        env: str = "",
        env_args: dict[str, Any] | None = None,
        test: dict[str, Any] | None = None,
        held_out: float = 0.1,
        **settings: Any,
    ) -> Sequence[Task]:
        chosen = dict((test if test is not None and split == "test" else args) or {})
        count = len(load_tasks(settings_text(id, chosen, env, env_args)))
        # Spread over the taskset, which may be sorted.
        is_test = [math.floor((index + 1) * held_out) > math.floor(index * held_out) for index in range(count)]
        indices = [index for index in range(count) if test is not None or is_test[index] == (split == "test")]
        return GeneratedTasks(
            len(indices), lambda number: {"args": chosen, "index": indices[number]}, f"{id}-{split}", read=True
        )


def settings_text(id: str, args: Mapping[str, Any] | None, env: str, env_args: Mapping[str, Any] | None) -> str:
    """Return the settings that determine an environment as JSON text, by which it is loaded once."""
    names = {"id": id, "args": dict(args or {}), "env": env, "env_args": dict(env_args or {})}
    return json.dumps(names, sort_keys=True)
