"""Tools that roles call in the middle of a turn: functions, objects and MCP servers, run in the step.

    class Sums(Env):
        roles = ("solver",)
        tools = {"solver": [calculate, Notebook(), McpServer(["mcp-server-time"], stateless=True)]}

`with_tools` is what makes `tools` work. A completion that calls them is answered by their results, in the same
conversation, and only the completion that calls none reaches `step`. Calls come from a model: arguments are validated,
and whatever goes wrong is a text for the model. Functions are stateless, objects are copied with the state (`fork`),
MCP servers are replayed.
"""

from __future__ import annotations

import asyncio
import copy
import ctypes
import inspect
import json
import re
import threading
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Optional, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning
from pydantic_core import SchemaError, to_jsonable_python

from cadre.concurrency import one_thread
from cadre.env import Env
from cadre.errors import ConfigError, ReplayDiverged, first_line
from cadre.types import Message, Observation, Reward, Sample, Task, Tool, ToolCall

NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)
# Calls of one completion that are run.
MAX_CALLS = 16
LAST_TURN = "\n[This was the last call that is allowed. Answer now.]"
DOCSTRING_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*$", re.MULTILINE
)


class ServerLost(OSError):
    """A tool's server is gone: a failure of the machine, which says nothing about the call."""


@dataclass(frozen=True)
class RunnableTool:
    """A tool with the function that runs it, made by `tool`.

    validate   (JSON text) -> arguments by name. Raises ValueError with a message for the model
    prepare    (time limit of a call) -> None, awaited before the call, whose time it does not take
    """

    tool: Tool
    function: Callable[..., Any]
    validate: Callable[[str], dict[str, Any]]
    prepare: Callable[[float], Awaitable[None]] | None = None

    def __call__(self, *arguments: Any, **named_arguments: Any) -> Any:
        return self.function(*arguments, **named_arguments)


def tool(function: Callable[..., Any], name: str = "", description: str = "") -> RunnableTool:
    """Return a function with type hints as a tool. Its docstring describes it, with `Args:` as Google writes them.

    Works as a decorator, and is needed only for another name or description. Raises ConfigError for a function whose
    arguments have no JSON schema.
    """
    if isinstance(function, RunnableTool):
        original = function.tool
        renamed = replace(original, name=name or original.name, description=description or original.description)
        return replace(function, tool=renamed)
    # A bound method has the specification of its function, which is made once.
    method = getattr(function, "__func__", None)
    specification, model = _specification(method or function, method is not None)
    names = {field: info.alias or field for field, info in model.model_fields.items()}

    def validate(text: str) -> dict[str, Any]:
        try:
            arguments = model.model_validate_json(text)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False)[:3]
            texts = (": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"]))) for fault in faults)
            raise ValueError("; ".join(texts)) from None
        # What the model left out keeps the default of the function itself.
        return {names[field]: getattr(arguments, field) for field in arguments.model_fields_set}

    made = replace(specification, name=name or specification.name, description=description or specification.description)
    if not NAME.fullmatch(made.name):
        expected = "expected letters, digits and underscores, 64 at most. Name it: tool(function, name=...)."
        raise ConfigError(f"tools: got a function named {made.name!r}; {expected}")
    return RunnableTool(made, function, validate)


@lru_cache(maxsize=1024)
def _specification(function: Callable[..., Any], is_method: bool) -> tuple[Tool, type[BaseModel]]:
    """Return the tool that a function is, and the model of its arguments, without the first one of a method."""
    name = getattr(function, "__name__", type(function).__name__)
    description, argument_docs = _split_docstring(inspect.getdoc(function) or "")
    model = _arguments_model(function, name, argument_docs, is_method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)  # a default that is no JSON value is left out
        return Tool(name, description, _without_titles(model.model_json_schema())), model


def _arguments_model(
    function: Callable[..., Any], name: str, argument_docs: Mapping[str, str], is_method: bool
) -> type[BaseModel]:
    """Return the model of a function's arguments; fields have aliases, as any name may be an argument's."""
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())[is_method:]
    except (ValueError, TypeError, NameError) as error:
        expected = "expected a function with type hints. Write one around it."
        raise ConfigError(f"tools: the arguments of {name} cannot be read ({error}); {expected}") from None
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tools: {name} takes {parameter}; expected arguments by name. Name each of them.")
        if parameter.annotation is parameter.empty:
            got = f"the argument {parameter.name} of {name} has no type hint"
            raise ConfigError(f"tools: {got}; expected one. Write {parameter.name}: str, or what it is.")
        details: dict[str, Any] = {"alias": parameter.name}
        if parameter.name in argument_docs:
            details["description"] = argument_docs[parameter.name]
        default = ... if parameter.default is parameter.empty else parameter.default
        # `text: str = None` takes null, which its schema names as the default.
        annotation = Optional[parameter.annotation] if default is None else parameter.annotation  # noqa: UP045
        fields[f"argument_{number}"] = (Annotated[annotation, Field(**details)], default)
    try:
        settings = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
        model = create_model(name, __config__=settings, **fields)
        model.model_json_schema()
    except (PydanticUserError, SchemaError, TypeError) as error:
        got = f"the arguments of {name} have no JSON schema ({first_line(error)})"
        expected = "expected types such as str, int, list[str], Literal or a pydantic model. Change its type hints."
        raise ConfigError(f"tools: {got}; {expected}") from None
    return model


def _split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's description, up to its first section, and the descriptions under `Args:`."""
    sections = list(DOCSTRING_SECTION.finditer(text))
    if not sections:
        return text.strip(), {}
    argument_docs: dict[str, str] = {}
    for section, following in zip(sections, [*sections[1:], None], strict=True):
        if section[1] not in ("Args", "Arguments", "Parameters"):
            continue
        body = inspect.cleandoc(text[section.end() : following.start() if following else len(text)])
        for entry in re.finditer(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*(?:\n[ \t]+.*)*)", body, re.MULTILINE):
            argument_docs[entry[1]] = " ".join(entry[2].split())
    return text[: sections[0].start()].strip(), argument_docs


def _without_titles(schema: Any, names: bool = False) -> Any:
    """Return a JSON schema without the titles that pydantic makes of names; `names` if its keys are names."""
    if isinstance(schema, list):
        return [_without_titles(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    stripped = {}
    for key, value in schema.items():
        if names:
            stripped[key] = _without_titles(value)
        elif key in ("default", "const", "enum", "examples"):
            stripped[key] = value
        elif key != "title" or not isinstance(value, str):
            stripped[key] = _without_titles(value, key in ("properties", "$defs"))
    return stripped


def runnable_tools(entries: Sequence[Any], env: Any = None) -> dict[str, RunnableTool]:
    """Return the tools of an environment's entries by name.

    An entry is a function, the result of `tool`, an object (its public methods), or something with `runnable_tools`,
    such as an MCP server. A method of the class of `env` is bound to it. Raises ConfigError for equal names.
    """
    tools: dict[str, RunnableTool] = {}
    for entry in entries:
        for entry_tool in _tools_of(entry, env):
            if entry_tool.tool.name in tools:
                advice = "Rename one: tool(function, name=...)."
                raise ConfigError(f"tools: got two named {entry_tool.tool.name}; expected different names. {advice}")
            tools[entry_tool.tool.name] = entry_tool
    return tools


def _tools_of(entry: Any, env: Any) -> Iterator[RunnableTool]:
    if isinstance(entry, RunnableTool):
        yield entry
    elif isinstance(entry, type | str | Tool | None):
        advice = "Write it with parentheses." if isinstance(entry, type) else "Give what is to be called."
        raise ConfigError(f"tools: got {entry!r}; expected a function, an object, or an McpServer. {advice}")
    elif hasattr(entry, "runnable_tools"):
        yield from entry.runnable_tools()
    elif inspect.isroutine(entry):
        name = getattr(entry, "__name__", "")
        if inspect.getattr_static(type(env), name, None) is entry:
            entry = getattr(env, name)
        yield tool(entry)
    else:
        # In the order of their definition, those of base classes first.
        names = dict.fromkeys(name for kind in reversed(type(entry).__mro__[:-1]) for name in vars(kind))
        methods = [name for name in names if not name.startswith("_") and inspect.isroutine(getattr(entry, name))]
        if not methods:
            advice = "Write its methods without a leading underscore."
            raise ConfigError(f"tools: got {entry!r}, which has no public methods; expected some. {advice}")
        yield from (tool(getattr(entry, name)) for name in methods)


# Running a call


async def run_call(
    tools: Mapping[str, RunnableTool], call: ToolCall, timeout_s: float, max_chars: int
) -> tuple[str, bool]:
    """Return the result of a call as text, and whether it succeeded.

    A call that is invalid, fails, or takes longer than `timeout_s` has a text that says so. Raises ServerLost,
    MemoryError and ReplayDiverged, which are failures of the machine.
    """
    runnable = tools.get(call.name)
    if runnable is None:
        return clean_text(f"Error: there is no tool {call.name}; there are {', '.join(tools)}.", max_chars), False
    try:
        arguments = runnable.validate(call.arguments.strip() or "{}")  # some endpoints send no text for none
    except ValueError as error:
        return clean_text(f"Error: wrong arguments of {call.name}: {error}", max_chars), False
    limit: asyncio.Timeout | None = None
    try:
        if runnable.prepare is not None:
            await runnable.prepare(timeout_s)
        async with asyncio.timeout(timeout_s) as limit:
            if inspect.iscoroutinefunction(runnable.function):
                result = await runnable.function(**arguments)
            else:
                result = await run_in_thread(runnable.function, arguments)
                result = await result if inspect.isawaitable(result) else result  # of a decorated coroutine function
            text = as_text(result)
    except (ServerLost, MemoryError, ReplayDiverged):
        raise
    except Exception as error:  # noqa: BLE001 - the tool is the user's, its arguments a model's
        if limit is not None and limit.expired():
            return f"Error: {call.name} did not end within {timeout_s:g} s.", False
        return clean_text(f"Error: {call.name}: {first_line(error)}", max_chars), False
    return clean_text(text, max_chars), not text.startswith("Error: ")


class _Stopped(SystemExit):
    """Raised in the thread of a call that takes too long. A thread that ends by a SystemExit prints nothing."""


async def run_in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Return the result of a function. If this is cancelled, Python code is stopped and C code left alone."""
    future: Future[Any] = Future()

    def work() -> None:
        result, fault = None, None
        try:
            with one_thread():
                result = function(**arguments)
        except _Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - sys.exit and panics of Rust libraries end the call alone
            is_plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            fault = error if is_plain else RuntimeError(repr(error))
        with suppress(InvalidStateError):  # it was cancelled
            future.set_exception(fault) if fault else future.set_result(result)

    thread = threading.Thread(target=copy_context().run, args=(work,), name="cadre-tool", daemon=True)
    thread.start()
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stopped))
        raise


def as_text(value: Any) -> str:
    """Return a tool's result as text: a text as it is, anything else as JSON with its characters as they are."""
    return value if isinstance(value, str) else json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)


def clean_text(text: str, max_chars: int) -> str:
    """Return the text with at most `max_chars` of its characters, and U+FFFD for lone surrogates."""
    left_out = len(text) - max_chars
    if left_out > 0:
        text = f"{text[:max_chars]}\n[{left_out:,} more characters are left out.]"
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True)
class AnsweredCalls:
    """A completion with its calls and their results as messages, and how many calls were run, failed or unreadable."""

    messages: tuple[Message, ...]
    counts: Mapping[str, int]


async def answer_calls(
    tools: Mapping[str, RunnableTool],
    sample: Sample,
    exchange: Sequence[Message],
    env_tools: Collection[str],
    tool_turns: int,
    timeout_s: float,
    max_chars: int,
) -> AnsweredCalls | None:
    """Run the calls of a completion; None if it ends the turn.

    `exchange` are the messages of the turn so far, in which `tool_turns` completions may call tools. Calls of the
    tools `env_tools` are for the environment itself, and end the turn.
    """
    turns = sum(message.role == "assistant" for message in exchange)
    called = sample.message.tool_calls if sample.message is not None and sample.failure is None else ()
    if turns >= tool_turns or any(call.name in env_tools for call in called) or not (called or sample.call_error):
        return None
    is_last = turns + 1 == tool_turns
    if not called:  # a call that is none of these tools', or that cannot be read
        error = clean_text(f"Error: {sample.call_error}", max_chars) + (LAST_TURN if is_last else "")
        completion = sample.message or Message("assistant", sample.text)
        counts = {"tools/calls": 1, "tools/errors": 1, "tools/malformed": 1}
        return AnsweredCalls((completion, Message("user", error)), counts)

    # Ids are numbered through the conversation, as those of a sample begin at 0 in every completion.
    number = sum(len(message.tool_calls) for message in exchange)
    called = tuple(replace(call, id=f"call_{number + index}") for index, call in enumerate(called))
    results, errors = [], 0
    for index, call in enumerate(called):
        text, succeeded = f"Error: {MAX_CALLS} calls at once are run at most.", False
        if index < MAX_CALLS:
            text, succeeded = await run_call(tools, call, timeout_s, max_chars)
        errors += not succeeded
        results.append(Message("tool", text, tool_call_id=call.id))
    if is_last:
        results[-1] = replace(results[-1], content=results[-1].content + LAST_TURN)
    assert sample.message is not None
    counts = {"tools/calls": len(called), "tools/errors": errors, "tools/malformed": 0}
    return AnsweredCalls((replace(sample.message, tool_calls=called), *results), counts)


# The environment with tools


def check_tools(env: type[Env], roles: Sequence[str]) -> None:
    """Raise ConfigError for tools of unknown roles, entries that are no tools, and objects that cannot be copied.
    Starts no server."""
    for role, entries in _entries_by_role(env).items():
        if role not in (*roles, ""):
            expected = f"expected roles of it: {', '.join(roles)}"
            raise ConfigError(f"{env.__name__}.tools: got {role!r}; {expected}. Fix the name.")
        for entry in entries:
            if hasattr(entry, "check"):
                entry.check()
            try:
                copy.deepcopy(entry)
            except Exception as error:  # noqa: BLE001 - __deepcopy__ is the user's
                got = f"got {entry!r}, which copy.deepcopy cannot copy ({error}), for forks"
                advice = "Give functions, or write a method __deepcopy__ that leaves out connections and locks."
                raise ConfigError(f"{env.__name__}.tools: {got}; expected one that it can. {advice}") from None
        runnable_tools([entry for entry in entries if not hasattr(entry, "check")], object.__new__(env))


def _entries_by_role(env: type[Env]) -> dict[str, Sequence[Any]]:
    """Return the entries of an environment's tools by role, those for all roles under ""."""
    return dict(env.tools) if isinstance(env.tools, Mapping) else {"": env.tools}


def with_tools(env_class: type[Env]) -> type[Env]:
    """Return the environment class whose tools are offered and run; the class itself if it declares none."""
    if not env_class.tools or issubclass(env_class, WithTools):
        return env_class
    names = {"__module__": env_class.__module__, "__qualname__": env_class.__qualname__, "__doc__": env_class.__doc__}
    return type(env_class.__name__, (WithTools, env_class), names)


class WithTools(Env):
    """Comes before an environment class among the bases. All of its state is replaced and never changed in place.

    _entries      the tools by role, copied with the state
    _exchanges    calls and results of a role's present turn
    _past         earlier exchanges by (role, conversation), each with the conversation that it followed
    _answers      samples of roles that wait for the tools of others that act at once
    """

    # The step that ends a turn may reward roles whose answers came earlier.
    rewards_absent = True

    def __init__(self, task: Task, *arguments: Any, **settings: Any) -> None:
        super().__init__(task, *arguments, **settings)
        self._entries = copy.deepcopy(_entries_by_role(type(self)))
        for entry in (entry for entries in self._entries.values() for entry in entries):
            if hasattr(entry, "begin"):
                entry.begin(task)
        self._exchanges: dict[str, tuple[Message, ...]] = {}
        self._past: dict[tuple[str, str], tuple[tuple[tuple[Message, ...], tuple[Message, ...]], ...]] = {}
        self._answers: dict[str, Sample] = {}

    def _runnable(self, role: str) -> dict[str, RunnableTool]:
        return runnable_tools([*self._entries.get(role, ()), *self._entries.get("", ())], self)

    def observe(self) -> dict[str, Observation]:
        shown = {}
        for role, observation in super().observe().items():
            if role in self._answers:
                continue
            messages = self._with_past(observation)
            offered = tuple(runnable.tool for runnable in self._runnable(role).values())
            messages = (*messages, *self._exchanges.get(role, ()))
            shown[role] = replace(observation, messages=messages, tools=(*observation.tools, *offered))
        return shown

    def _with_past(self, observation: Observation) -> tuple[Message, ...]:
        """Return the messages of a conversation with the calls of earlier turns that it continues."""
        messages = observation.messages
        for prefix, exchange in reversed(self._past.get((observation.role, observation.conversation), ())):
            if len(messages) > len(prefix) and messages[: len(prefix)] == prefix:
                messages = (*prefix, *exchange, *messages[len(prefix) :])
        return messages

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        counts: Counter[str] = Counter()
        offered = super().observe()
        answers, exchanges = dict(self._answers), dict(self._exchanges)
        for role, sample in samples.items():
            names = [tool.name for tool in offered[role].tools] if role in offered else []
            exchange = exchanges.get(role, ())
            answered = await answer_calls(
                self._runnable(role), sample, exchange, names, self.tool_turns, self.tool_timeout_s, self.tool_max_chars
            )
            if answered is None:
                answers[role] = sample
            else:
                exchanges[role] = (*exchange, *answered.messages)
                counts.update(answered.counts)
        if counts:
            self._answers, self._exchanges = answers, exchanges
            return Reward(parts={name: float(number) for name, number in counts.items()})

        past = dict(self._past)
        for role, exchange in exchanges.items():
            key = (role, offered[role].conversation)
            past[key] = (*past.get(key, ()), (offered[role].messages, exchange))
        self._past, self._answers, self._exchanges = past, {}, {}
        return await super().step_samples({role: answers[role] for role in offered if role in answers})

    def fork(self) -> Self:
        twin = super().fork()
        if twin._entries is self._entries:  # the environment's own fork is a shallow copy
            twin._entries = copy.deepcopy(self._entries)
        return twin

    def close(self) -> None:
        super().close()
        for entry in (entry for entries in self._entries.values() for entry in entries):
            if hasattr(entry, "runnable_tools"):
                entry.close()
