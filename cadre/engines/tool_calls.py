"""Tools in chat templates, and tool calls in what a model said.

A template that knows tools writes them itself. For one that does not they are described in the system message, and a
call is written as Qwen and Hermes models do: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Answers are
read by transformers' response templates; what cannot be read, or calls a tool that was not offered, is text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cadre.types import Message, Sample, Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
OFFER = (
    "You may call tools. To call one, write a line\n"
    '<tool_call>{"name": "...", "arguments": {...}}</tool_call>\n'
    "and wait for what it returns. The tools:\n"
)


def hermes(anchor: str) -> dict[str, Any]:
    """The response template of models that write calls so; `anchor` is how an assistant's turn begins."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": anchor,
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
            "tool_calls": {
                "open_pattern": rf"\s*{OPEN}",
                "close": CLOSE,
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"content": "text"},
        },
    }


def as_dicts(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The messages as chat templates take them; arguments as values, since templates write them out as JSON."""
    return [_as_dict(message) for message in messages]


def _as_dict(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments_of(call)}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        plain["tool_call_id"] = message.tool_call_id
    return plain


def arguments_of(call: ToolCall) -> Any:
    """The arguments as a value; as they stand where they are not JSON."""
    try:
        return json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments


def definitions(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """The tools as chat templates and endpoints take them."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in tools
    ]


def in_words(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The conversation for a template that knows no tools: what they are, how they are called, what they returned."""
    told = [_in_words(message) for message in messages]
    if not tools:
        return told
    listed = "\n".join(json.dumps(definition["function"]) for definition in definitions(tools))
    if told and told[0].role == "system":
        return [replace(told[0], content=f"{told[0].content}\n\n{OFFER}{listed}"), *told[1:]]
    return [Message("system", OFFER + listed), *told]


def _in_words(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", f"<tool_response>{message.content}</tool_response>", images=message.images)
    calls = [
        f"{OPEN}{json.dumps({'name': call.name, 'arguments': arguments_of(call)})}{CLOSE}"
        for call in message.tool_calls
    ]
    return Message(message.role, "\n".join(filter(None, [message.content, *calls])), images=message.images)


def said(text: str, parsed: Mapping[str, Any], tools: Sequence[Tool]) -> Message:
    """The message that a response template read out of an answer; the text itself where what it read is no call."""
    calls = [_call(number, raw, tools) for number, raw in enumerate(parsed.get("tool_calls") or [])]
    content = parsed.get("content") or ""
    if None in calls or not isinstance(content, str):
        return Message("assistant", text)
    read = tuple(call for call in calls if call is not None)
    return Message("assistant", content.strip() if read else text, read)


def _call(number: int, raw: Any, tools: Sequence[Tool]) -> ToolCall | None:
    function = raw.get("function") if isinstance(raw, dict) else None
    if not isinstance(function, dict):
        return None
    name, arguments = function.get("name"), function.get("arguments", {})
    if not isinstance(arguments, dict) or name not in [tool.name for tool in tools]:
        return None
    return ToolCall(f"call_{number}", str(name), json.dumps(arguments))


def is_turn(message: Message, sample: Sample) -> bool:
    """Whether a message of a conversation is what was sampled. Programs write arguments out again in their own way,
    number calls as they like, and some drop the text beside a call."""
    said_then = sample.message or Message("assistant", sample.text)
    if not said_then.tool_calls:
        return message == Message("assistant", said_then.content)
    return message.role == "assistant" and _calls(message) == _calls(said_then)


def _calls(message: Message) -> list[tuple[str, Any]]:
    return [(call.name, arguments_of(call)) for call in message.tool_calls]
