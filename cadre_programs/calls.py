"""Model calls of agent programs and their answers, whichever of OpenAI's interfaces they come through.

A call may constrain its answer: to a JSON schema, or to a call of a tool. The model is told so in its prompt and the
answer is checked afterwards. Sampling itself is not constrained, so that the tokens that were sampled are the ones that
are trained on; an answer that breaks a constraint is passed on as it is, and counted. The form of both interfaces is in
`cadre_programs.protocol`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from cadre.envs import schemas
from cadre.plugins import package
from cadre.types import Finish, Message, Tool

# Characters of a JSON schema, as many as OpenAI takes. It is in the prompt, and its validator is kept.
MAX_SCHEMA = 120_000
ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 410: "session_ended_error"}


@dataclass(eq=False)  # not frozen: code that passes an exception on may set its traceback
class RequestError(Exception):
    """An HTTP error in the words of OpenAI's API: `RequestError(400, "messages: expected a list.", "messages")`.

    `status` is the HTTP status and `param` the wrong field. Clients retry 408, 409, 429 and 5xx, so these are used only
    where a retry can succeed.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body of the HTTP response."""
        kind = ERROR_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class ModelCall:
    """A request for a completion. The names of the fields go into its hash, and so into the ids of its answers.

    role           the model that the program names
    messages       with numbered ids of tool calls (`number_tool_calls`)
    tools          the tools that the model may call, none where `choice` is "none"
    choice         "auto", "none", "required", or the name of the tool that must be called
    schema         JSON schema of the answer, {} for any JSON object; None for free text
    agent          the name of the agent that calls, where its framework sends it; for the choice of a role alone
    tool_call_ids  the ids that the program has for the numbered ones; not part of the hash
    """

    role: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
    schema: dict[str, Any] | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    agent: str = field(default="", compare=False)
    tool_call_ids: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def content(self) -> str:
        """A hash of the whole call; equal calls have equal hashes."""
        fields = asdict(self)
        del fields["agent"], fields["tool_call_ids"]
        for message in fields["messages"]:  # images by their digests
            message["images"] = [image["digest"] for image in message["images"]]
            if not message["thinking"]:
                del message["thinking"]
        return hashlib.blake2b(canonical_json(fields).encode(), digest_size=10).hexdigest()


@dataclass(frozen=True)
class ProgramCall:
    """A call within one run of a program: `occurrence` counts the equal calls before it, from 0.

    Calls are identified by content, not by order: a program that calls concurrently sends them in another order each
    time it runs. `delay_s` is how long after the answer before it the call came.
    """

    call: ModelCall
    occurrence: int
    delay_s: float = field(default=0.0, compare=False)

    @property
    def key(self) -> tuple[str, int]:
        return self.call.content, self.occurrence


@dataclass(frozen=True)
class Answer:
    """The model's message, and the numbers of tokens of prompt and completion; or the error that the call gets."""

    message: Message
    finish: Finish = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0

    error: RequestError | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()

    def with_tool_call_ids(self, prefix: str) -> Answer:
        """Return the answer with ids of its tool calls that follow from the id of the call, the same in every run."""
        calls = (replace(call, id=f"call_{prefix}{number}") for number, call in enumerate(self.message.tool_calls))
        return replace(self, message=replace(self.message, tool_calls=tuple(calls)))


@dataclass(frozen=True)
class AnsweredCall(ProgramCall):
    """A call of a role with its answer, which an instance that is started again receives too.

    `waiting` has the calls that waited beside it when it was answered.
    """

    role: str = ""
    answer: Answer = field(default_factory=lambda: Answer(Message("assistant", "")))
    conversation: str = ""
    waiting: tuple[ProgramCall, ...] = field(default=(), compare=False, repr=False)


def canonical_json(value: Any) -> str:
    """Return the value as JSON; equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def merge_messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return the conversation in the form that chat templates expect.

    Leading system messages become one, later ones become user messages. The thinking, the text and the tool calls of
    one assistant turn, which `/v1/responses` has as separate items, become one message.
    """
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if message.role == "system" and last is not None and any(earlier.role != "system" for earlier in merged):
            merged.append(Message("user", message.content))
        elif message.role == "system" and last is not None:
            merged[-1] = Message("system", f"{last.content}\n\n{message.content}")
        elif (
            last is not None
            and last.role == message.role == "assistant"
            and (message.tool_calls or (last.thinking and not last.content and not last.tool_calls))
        ):
            text, thinking = (
                "\n".join(filter(None, parts))
                for parts in ((last.content, message.content), (last.thinking, message.thinking))
            )
            merged[-1] = Message("assistant", text, last.tool_calls + message.tool_calls, thinking=thinking)
        else:
            merged.append(message)
    return tuple(merged)


def number_tool_calls(messages: Iterable[Message]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Return the messages with the ids of tool calls numbered by their first appearance, and the ids that they had.

    Frameworks draw ids at random, for hand-offs and where an answer without a call stands for one. Numbered, equal
    conversations have equal hashes and equal prompts, and one that is continued keeps the numbers that it had.
    """
    numbers: dict[str, str] = {}

    def number(call_id: str) -> str:
        return numbers.setdefault(call_id, f"call_{len(numbers)}")

    numbered = tuple(
        replace(
            message,
            tool_calls=tuple(replace(call, id=number(call.id)) for call in message.tool_calls),
            tool_call_id=number(message.tool_call_id) if message.tool_call_id else "",
        )
        for message in messages
    )
    return numbered, tuple(numbers)


# Constraints on answers


def add_constraints_to_prompt(call: ModelCall) -> ModelCall:
    """Return the call with its constraints in words at the end of the system message."""
    sentences = []
    if call.schema is not None:
        kind = "object" if call.schema.get("type", "object") == "object" else "value"
        sentences.append(f"Answer with one JSON {kind} and nothing else.")
    if call.schema:
        schema = json.dumps(call.schema, ensure_ascii=False).encode(errors="replace").decode()
        sentences.append(f"It must match this JSON schema: {schema}")
    required_tool = tuple(tool for tool in call.tools if tool.name == call.choice)
    if call.tools and (required_tool or call.choice == "required"):
        sentences.append(f"Call the tool {call.choice} now." if required_tool else "Call one of the tools now.")
    if not sentences:
        return call
    words, first = " ".join(sentences), call.messages[0]
    if first.role == "system":
        messages = (Message("system", f"{first.content}\n\n{words}"), *call.messages[1:])
    else:
        messages = (Message("system", words), *call.messages)
    return replace(call, messages=messages, tools=required_tool or call.tools)


def validate_constraints(call: ModelCall) -> None:
    """Raise RequestError if no answer could satisfy the constraints of the call."""
    if call.choice not in ("auto", "none", "required", *(tool.name for tool in call.tools)):
        raise RequestError(400, f"tool_choice: got {call.choice[:80]!r}, which is none of the tools.", "tool_choice")
    if call.choice == "required" and not call.tools:
        raise RequestError(400, "tool_choice: got required, and no tools; expected some to call.", "tool_choice")
    if not call.schema:
        return
    schema = canonical_json(call.schema)
    if len(schema) > MAX_SCHEMA:
        raise RequestError(
            400, f"The JSON schema of the answer has {len(schema):,} characters; expected at most {MAX_SCHEMA:,}."
        )
    make_validator(schema)


def has_constraints(call: ModelCall) -> bool:
    """Return True if the call demands more of its answer than to be one."""
    return call.schema is not None or call.choice not in ("auto", "none")


def is_satisfied(call: ModelCall, message: Message) -> bool:
    """Return True if the answer keeps to the constraints of the call. A tool call stands for JSON text."""
    called_tools = [tool_call.name for tool_call in message.tool_calls]
    if call.choice == "required" and not called_tools:
        return False
    if call.choice not in ("auto", "none", "required") and call.choice not in called_tools:
        return False
    if call.schema is None or called_tools:
        return True

    Unresolvable = package("referencing.exceptions", "programs").Unresolvable

    try:
        value = json.loads(message.content)
        if not call.schema:
            return isinstance(value, dict)
        return bool(make_validator(canonical_json(call.schema)).is_valid(value))
    except (ValueError, OverflowError, RecursionError, TimeoutError, re.error, Unresolvable):
        return False


@lru_cache(maxsize=64)
def make_validator(schema: str) -> Any:
    """Return the validator of a JSON schema (draft 2020-12). Raises RequestError for text that is no schema."""
    jsonschema = package("jsonschema", "programs")
    try:
        jsonschema.Draft202012Validator.check_schema(json.loads(schema), format_checker=jsonschema.FormatChecker(()))
    except (jsonschema.SchemaError, RecursionError):
        raise RequestError(400, "The JSON schema of the answer is none; expected one of draft 2020-12.") from None
    return schemas.make_validator(json.loads(schema))
