"""`/v1/responses`: the same calls in OpenAI's newer form, with earlier responses by name, whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cadre.programs import chat, fields
from cadre.programs.calls import Answer, Call, Envelope, joined
from cadre.programs.notes import note_of
from cadre.programs.refusal import Refused
from cadre.types import Message, ToolCall

# What was said up to a response, by the response's name.
Stored = Mapping[str, tuple[Message, ...]]


def call_of(body: dict[str, Any], stored: Stored) -> tuple[Call, tuple[Message, ...]]:
    """The call that a request makes, and the conversation that a later request may go on from. Raises Refused."""
    for name in ("background", "conversation", "prompt"):
        if body.get(name):
            raise Refused(400, f"{name}: not supported; expected input.", name)
    wanted = [str(name) for name in fields.listed(body.get("include"), "include")]
    if body.get("top_logprobs") or any("logprobs" in name for name in wanted):
        raise Refused(400, "logprobs: not supported; expected neither top_logprobs nor logprobs in include.", "include")
    past = () if body.get("previous_response_id") is None else _past(body["previous_response_id"], stored)
    said = (*past, *_input(body.get("input")))
    if not said:
        raise Refused(400, "input: got none; expected a text or a list of items.", "input")
    told = fields.optional_text(body.get("instructions"), "instructions")
    choice = chat.choice_of(body.get("tool_choice"))
    call = Call(
        role=fields.text(body.get("model"), "model"),
        messages=joined((Message("system", told), *said) if told else said),
        tools=() if choice == "none" else chat.tools_of(body.get("tools")),
        choice=choice,
        schema=chat.schema_of(fields.table(body.get("text"), "text").get("format"), "text.format"),
        max_tokens=fields.count(body, ("max_output_tokens",)),
    )
    return call, said


def envelope_of(body: dict[str, Any]) -> Envelope:
    """How the answer is to be written; clients expect some of what they asked back."""
    asked: dict[str, Any] = {
        name: body[name] for name in ("instructions", "previous_response_id", "metadata") if name in body
    }
    tools = {"tools": body.get("tools") or [], "tool_choice": body.get("tool_choice") or "auto"}
    return Envelope("responses", fields.flag(body.get("stream"), "stream"), True, note_of(body), {**asked, **tools})


def _past(name: Any, stored: Stored) -> tuple[Message, ...]:
    known = stored.get(fields.text(name, "previous_response_id"))
    if known is None:
        raise Refused(
            400,
            f"previous_response_id: this session has no response {name[:80]!r}; expected one that it was given.",
            "previous_response_id",
            "previous_response_not_found",
        )
    return known


def _input(value: Any) -> Iterator[Message]:
    if isinstance(value, str):
        yield Message("user", fields.text(value, "input"))
        return
    for number, raw in enumerate(fields.listed(value, "input")):
        where = f"input[{number}]"
        entry = fields.table(raw, where)
        if entry.get("type") != "reasoning":
            yield _item(entry, where)


def _item(entry: dict[str, Any], where: str) -> Message:
    kind = entry.get("type", "message")
    if kind == "function_call":
        call = ToolCall(
            fields.text(entry.get("call_id"), f"{where}.call_id"),
            fields.text(entry.get("name"), f"{where}.name"),
            fields.optional_text(entry.get("arguments"), f"{where}.arguments"),
        )
        return Message("assistant", "", (call,))
    if kind == "function_call_output":
        name = fields.text(entry.get("call_id"), f"{where}.call_id")
        return Message("tool", fields.parts(entry.get("output"), f"{where}.output"), tool_call_id=name)
    role = chat.ROLES.get(str(entry.get("role")))
    if kind != "message" or role is None or role == "tool":
        got = fields.shown(kind if kind != "message" else entry.get("role"))
        raise Refused(400, f"{where}: got {got}; expected a message, a function_call or its output.", where)
    return Message(role, fields.parts(entry.get("content"), f"{where}.content"))  # type: ignore[arg-type]


def whole(call: Call, answer: Answer, name: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer that is sent in one piece; `name` is unique to the call."""
    cut = answer.finish == "length"
    return {
        **_head(call, name, extra),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _output(answer, name),
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        },
    }


def _output(answer: Answer, name: str) -> list[dict[str, Any]]:
    """The items of an answer: what was said, then the calls."""
    items: list[dict[str, Any]] = []
    if answer.message.content or not answer.message.tool_calls:
        part = {"type": "output_text", "text": answer.message.content, "annotations": [], "logprobs": []}
        items.append(
            {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        )
    for call in answer.message.tool_calls:
        items.append(
            {
                "id": f"fc_{call.id}",
                "type": "function_call",
                "status": "completed",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
        )
    return items


def _head(call: Call, name: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    # No clock: a program that is played again has to read the same.
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": 0,
        "model": call.role,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "tools": [],
        "tool_choice": "auto",
        **extra,
    }


class Stream:
    """The events of one streamed response, numbered as they are written."""

    kind = "text/event-stream"

    def __init__(self, call: Call, name: str, extra: Mapping[str, Any]) -> None:
        self._call, self._name, self._extra, self._number = call, name, extra, 0

    def opening(self) -> list[bytes]:
        """The first events of a stream."""
        head = _head(self._call, self._name, self._extra)
        return [self._event("response.created", response=head), self._event("response.in_progress", response=head)]

    def waiting(self) -> bytes:
        """An event that says nothing new, sent while the answer is waited for."""
        return self._event("response.in_progress", response=_head(self._call, self._name, self._extra))

    def closing(self, answer: Answer) -> Iterator[bytes]:
        """The events that hold the answer."""
        body = whole(self._call, answer, self._name, self._extra)
        for index, item in enumerate(body["output"]):
            yield from self._said(index, item) if item["type"] == "message" else self._called(index, item)
        kind = "response.incomplete" if body["status"] == "incomplete" else "response.completed"
        yield self._event(kind, response=body)

    def _said(self, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        (part,) = item["content"]
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        empty = {**item, "content": [], "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=empty)
        yield self._event("response.content_part.added", **place, part={**part, "text": ""})
        yield self._event("response.output_text.delta", **place, delta=part["text"], logprobs=[])
        yield self._event("response.output_text.done", **place, text=part["text"], logprobs=[])
        yield self._event("response.content_part.done", **place, part=part)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _called(self, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        place = {"item_id": item["id"], "output_index": index}
        empty = {**item, "arguments": "", "status": "in_progress"}
        arguments, name = item["arguments"], item["name"]
        yield self._event("response.output_item.added", output_index=index, item=empty)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event("response.function_call_arguments.done", **place, arguments=arguments, name=name)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(body)}\n\n".encode()
