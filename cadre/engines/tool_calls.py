"""Tools in chat templates, and tool calls in what a model said.

A template that knows tools writes them itself (`tool_use`). For one that does not they are described in the system
message, and a call is written as Qwen and Hermes models do: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
What cannot be read in the template's form, or calls a tool that was not offered, is text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cadre.engines.control_tokens import map_strings
from cadre.types import Message, Sample, Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
OFFER = (
    "You may call tools. To call one, write a line\n"
    '<tool_call>{"name": "...", "arguments": {...}}</tool_call>\n'
    "and wait for what it returns. The tools:\n"
)


def to_json(value: Any) -> str:
    """Return the value as JSON with its characters as they are; half a surrogate pair, which is none, escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def as_dicts(
    messages: Iterable[Message], arguments_as_text: bool = False, id_of: Callable[[ToolCall, int], str] | None = None
) -> list[dict[str, Any]]:
    """Return the messages as chat templates take them.

    Arguments are values, since most templates write them out as JSON, or their JSON where `arguments_as_text`. A
    result has the name of the tool beside its call's id. `id_of` maps a call and its number in the conversation to the
    id that the template is shown.
    """
    plain, number, known = [], 0, dict[str, tuple[str, str]]()
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            entry["tool_calls"] = []
            for call in message.tool_calls:
                shown = id_of(call, number) if id_of else call.id
                known[call.id] = (shown, call.name)
                number += 1
                arguments = arguments_of(call)
                if arguments_as_text:
                    arguments = call.arguments if isinstance(arguments, str) else to_json(arguments)
                function = {"name": call.name, "arguments": arguments}
                entry["tool_calls"].append({"type": "function", "id": shown, "function": function})
        if message.role == "tool":
            entry["tool_call_id"], name = known.get(message.tool_call_id, (message.tool_call_id, ""))
            if name:
                entry["name"] = name
        plain.append(entry)
    return plain


def arguments_of(call: ToolCall) -> Any:
    """The arguments as a value; as they stand where they are not JSON."""
    try:
        value = json.loads(call.arguments)
        return map_strings(value, _whole_characters)
    except (ValueError, RecursionError):
        return call.arguments


def map_arguments(call: ToolCall, change: Callable[[str], str]) -> str:
    """Return the arguments as JSON with every string in them changed, or changed as they stand where they are none."""
    arguments = arguments_of(call)
    return change(arguments) if isinstance(arguments, str) else to_json(map_strings(arguments, change))


def _whole_characters(text: str) -> str:
    """Return the text with surrogate pairs as the characters that they are, and half of one as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
    told = [call_in_words(result_in_words(message)) for message in messages]
    if not tools:
        return told
    listed = "\n".join(to_json(definition["function"]) for definition in definitions(tools))
    if told and told[0].role == "system":
        return [replace(told[0], content=f"{told[0].content}\n\n{OFFER}{listed}"), *told[1:]]
    return [Message("system", OFFER + listed), *told]


def result_in_words(message: Message) -> Message:
    """Return what a tool returned as said by the user; any other message as it is."""
    if message.role != "tool":
        return message
    return Message("user", f"<tool_response>{message.content}</tool_response>", images=message.images)


def call_in_words(message: Message) -> Message:
    """Return the message with its calls in its text."""
    if not message.tool_calls:
        return message
    calls = [
        f"{OPEN}{to_json({'name': call.name, 'arguments': arguments_of(call)})}{CLOSE}" for call in message.tool_calls
    ]
    return Message(message.role, "\n".join(filter(None, [message.content, *calls])), images=message.images)


def text_before_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with the text beside calls as a message of its own before them."""
    apart: list[Message] = []
    for message in messages:
        if message.tool_calls and message.content:
            apart += [replace(message, tool_calls=()), Message(message.role, "", message.tool_calls)]
        else:
            apart.append(message)
    return apart


def in_sequence(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with one call a message, each followed by its result where there is one."""
    rest, sequence = list(messages), list[Message]()
    while rest:
        message = rest.pop(0)
        if len(message.tool_calls) < 2:
            sequence.append(message)
            continue
        results = []
        while rest and rest[0].role == "tool":
            results.append(rest.pop(0))
        for number, call in enumerate(message.tool_calls):
            text, images = (message.content, message.images) if number == 0 else ("", ())
            sequence.append(Message("assistant", text, (call,), images=images))
            mine = [result for result in results if result.tool_call_id == call.id]
            sequence += mine
            results = [result for result in results if result not in mine]
        sequence += results
    return sequence


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
    return ToolCall(f"call_{number}", str(name), to_json(arguments))


def is_turn(message: Message, sample: Sample) -> bool:
    """Whether a message of a conversation is what was sampled. Programs write arguments out again in their own way,
    number calls as they like, and some drop the text beside a call."""
    said_then = sample.message or Message("assistant", sample.text)
    if not said_then.tool_calls:
        return message in (Message("assistant", said_then.content), Message("assistant", sample.text))
    return message.role == "assistant" and _calls(message) == _calls(said_then)


def _calls(message: Message) -> list[tuple[str, Any]]:
    return [(call.name, arguments_of(call)) for call in message.tool_calls]
