"""`/v1/chat/completions`: what is asked there, and answers as its clients expect them, whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cadre.programs import fields
from cadre.programs.calls import Answer, Call, Envelope, joined
from cadre.programs.notes import note_of
from cadre.programs.refusal import Refused
from cadre.types import Message, Tool, ToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def call_of(body: dict[str, Any]) -> Call:
    """The call that a request makes. Raises Refused."""
    for name in ("functions", "function_call", "audio"):
        if body.get(name) is not None:
            raise Refused(400, f"{name}: not supported; expected tools, and text.", name)
    if body.get("n") not in (None, 1):
        raise Refused(400, f"n: got {fields.shown(body['n'])}; expected 1.", "n")
    if body.get("logprobs") or body.get("top_logprobs"):
        raise Refused(400, "logprobs: not supported; expected false.", "logprobs")
    if any(one != "text" for one in fields.listed(body.get("modalities"), "modalities")):
        raise Refused(400, f"modalities: got {fields.shown(body['modalities'])}; expected text.", "modalities")
    messages = fields.listed(body.get("messages"), "messages")
    if not messages:
        raise Refused(400, "messages: got none; expected one or more.", "messages")
    choice = choice_of(body.get("tool_choice"))
    return Call(
        role=fields.text(body.get("model"), "model"),
        messages=joined(_message(raw, f"messages[{number}]") for number, raw in enumerate(messages)),
        tools=() if choice == "none" else tools_of(body.get("tools")),
        choice=choice,
        schema=schema_of(body.get("response_format"), "response_format"),
        stop=fields.stops(body.get("stop")),
        max_tokens=fields.count(body, ("max_completion_tokens", "max_tokens")),
    )


def envelope_of(body: dict[str, Any]) -> Envelope:
    """How the answer is to be written."""
    usage = fields.flag(
        fields.table(body.get("stream_options"), "stream_options").get("include_usage"), "include_usage"
    )
    return Envelope("chat", fields.flag(body.get("stream"), "stream"), usage, note_of(body))


def _message(raw: Any, where: str) -> Message:
    entry = fields.table(raw, where)
    role = ROLES.get(str(entry.get("role")))
    if role is None:
        got = fields.shown(entry.get("role"))
        raise Refused(400, f"{where}.role: got {got}; expected one of {', '.join(ROLES)}.", f"{where}.role")
    calls = fields.listed(entry.get("tool_calls"), f"{where}.tool_calls") if role == "assistant" else []
    return Message(
        role,  # type: ignore[arg-type]
        fields.parts(entry.get("content"), f"{where}.content"),
        tuple(_tool_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)),
        fields.text(entry.get("tool_call_id"), f"{where}.tool_call_id") if role == "tool" else "",
    )


def _tool_call(raw: Any, where: str) -> ToolCall:
    entry = fields.table(raw, where)
    function = fields.table(entry.get("function"), f"{where}.function")
    return ToolCall(
        fields.text(entry.get("id"), f"{where}.id"),
        fields.text(function.get("name"), f"{where}.function.name"),
        fields.optional_text(function.get("arguments"), f"{where}.function.arguments"),
    )


def tools_of(value: Any) -> tuple[Tool, ...]:
    """The tools that a request offers, nested in `function` as here or flat as in `/v1/responses`."""
    return tuple(
        _tool(fields.table(raw, f"tools[{number}]"), f"tools[{number}]")
        for number, raw in enumerate(fields.listed(value, "tools", fields.MAX_TOOLS))
    )


def _tool(entry: dict[str, Any], where: str) -> Tool:
    if entry.get("type", "function") != "function":
        raise Refused(400, f"{where}.type: got {fields.shown(entry['type'])}; expected function.", f"{where}.type")
    function = fields.table(entry["function"], f"{where}.function") if "function" in entry else entry
    return Tool(
        fields.text(function.get("name"), f"{where}.name"),
        fields.optional_text(function.get("description"), f"{where}.description"),
        fields.table(function.get("parameters"), f"{where}.parameters"),
    )


def choice_of(value: Any) -> str:
    """ "auto", "none", "required", or the name of a tool."""
    if value is None or value in ("auto", "none", "required"):
        return value or "auto"
    entry = fields.table(value, "tool_choice")
    return fields.text(fields.table(entry.get("function", entry), "tool_choice").get("name"), "tool_choice.name")


def schema_of(value: Any, where: str) -> dict[str, Any] | None:
    """The JSON schema that an answer has to keep, {} for any JSON, None where it may be any text."""
    entry = fields.table(value, where)
    kind = entry.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        expected = "expected text, json_object or json_schema"
        raise Refused(400, f"{where}.type: got {fields.shown(kind)}; {expected}.", f"{where}.type")
    nested = fields.table(entry.get("json_schema", entry), where)
    return fields.table(nested.get("schema"), f"{where}.schema")


def whole(call: Call, answer: Answer, name: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer that is sent in one piece; `name` is unique to the call."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.message.content or None, "refusal": None}
    if answer.message.tool_calls:
        message["tool_calls"] = _calls(answer)
    else:
        message["content"] = answer.message.content
    choice = {"index": 0, "message": message, "finish_reason": finish_of(answer), "logprobs": None}
    return {**_head(call, name, "chat.completion"), "choices": [choice], "usage": usage_of(answer), **extra}


class Stream:
    """The events of one streamed answer."""

    kind = "text/event-stream"

    def __init__(self, call: Call, name: str, usage: bool) -> None:
        self._call, self._name, self._usage = call, name, usage

    def opening(self) -> list[bytes]:
        """The first events."""
        return [self._event({"role": "assistant", "content": ""})]

    def waiting(self) -> bytes:
        """An event that says nothing, sent while the answer is waited for."""
        return self._event({})

    def closing(self, answer: Answer) -> Iterator[bytes]:
        """The events that hold the answer."""
        if answer.message.content:
            yield self._event({"content": answer.message.content})
        if answer.message.tool_calls:
            yield self._event({"tool_calls": [{"index": n, **call} for n, call in enumerate(_calls(answer))]})
        yield self._event({}, finish_of(answer))
        if self._usage:
            head = _head(self._call, self._name, "chat.completion.chunk")
            yield _line({**head, "choices": [], "usage": usage_of(answer)})
        yield b"data: [DONE]\n\n"

    def _event(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return _line({**_head(self._call, self._name, "chat.completion.chunk"), "choices": [choice]})


def finish_of(answer: Answer) -> str:
    """Why the answer ended, as this interface says it."""
    return "tool_calls" if answer.message.tool_calls else answer.finish


def usage_of(answer: Answer) -> dict[str, int]:
    """Tokens in and out."""
    total = answer.prompt_tokens + answer.completion_tokens
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": total,
    }


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.message.tool_calls
    ]


def _head(call: Call, name: str, kind: str) -> dict[str, Any]:
    # No clock: a program that is played again has to read the same.
    return {"id": f"chatcmpl-{name}", "object": kind, "created": 0, "model": call.role}


def _line(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()
