"""Anthropic's interface, `/v1/messages`: requests to calls, answers to bodies and events, as in `protocol`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cadre.files import to_json
from cadre.types import Image, Message, ToolCall
from cadre_programs.calls import Answer, ModelCall, RequestError, merge_messages, number_tool_calls
from cadre_programs.protocol import (
    MAX_STOPS,
    ReplyFormat,
    describe_ignored,
    describe_value,
    parse_agent,
    parse_count,
    parse_flag,
    parse_image,
    parse_list,
    parse_object,
    parse_parts,
    parse_schema,
    parse_text,
    parse_tools,
    reject_prefill,
)

CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def parse_messages_call(body: dict[str, Any]) -> ModelCall:
    """Return the call of a request to `/v1/messages`. Raises RequestError."""
    raw_messages = parse_list(body.get("messages"), "messages")
    messages = [message for i, raw in enumerate(raw_messages) for message in _parse_message(raw, f"messages[{i}]")]
    if not messages:
        raise RequestError(400, "messages: got none; expected one or more with content.", "messages")
    reject_prefill(body, by_place=True)
    system, _ = parse_parts(body.get("system"), "system")
    opening = [Message("system", system)] if system else []
    numbered, tool_call_ids = number_tool_calls(merge_messages([*opening, *messages]))
    choice_entry = parse_object(body.get("tool_choice"), "tool_choice")
    kind = choice_entry.get("type", "auto")
    choice = parse_text(choice_entry.get("name"), "tool_choice.name") if kind == "tool" else CHOICES.get(str(kind))
    if choice is None:
        raise RequestError(
            400, f"tool_choice.type: got {describe_value(kind)}; expected auto, any, tool or none.", "tool_choice"
        )
    stops = parse_list(body.get("stop_sequences"), "stop_sequences", MAX_STOPS)
    output_format = parse_object(body.get("output_config"), "output_config").get("format") or body.get("output_format")
    return ModelCall(
        role=parse_text(body.get("model"), "model"),
        messages=numbered,
        tools=() if choice == "none" else parse_tools(body.get("tools"), "custom", "input_schema"),
        choice=choice,
        # Earlier clients send the format by itself.
        schema=parse_schema(output_format, "output_config.format"),
        stop=tuple(text for stop in stops if (text := parse_text(stop, "stop_sequences"))),
        max_tokens=parse_count(body, ("max_tokens",)),
        agent=parse_agent(body),
        tool_call_ids=tool_call_ids,
    )


def parse_messages_format(body: dict[str, Any]) -> ReplyFormat:
    """Return the form of the answer to a request to `/v1/messages`."""
    return ReplyFormat("messages", parse_flag(body.get("stream"), "stream"), True, describe_ignored(body, "messages"))


def _parse_message(raw: Any, where: str) -> Iterator[Message]:
    """Yield the messages of one entry: results of tools are messages of their own, before the user's text."""
    entry = parse_object(raw, where)
    role = entry.get("role")
    if role not in ("user", "assistant", "system"):
        raise RequestError(
            400, f"{where}.role: got {describe_value(role)}; expected user or assistant.", f"{where}.role"
        )
    content = entry.get("content")
    if isinstance(content, str):
        yield Message(role, parse_text(content, f"{where}.content"))
        return
    texts: list[str] = []
    thoughts: list[str] = []
    images: list[Image] = []
    tool_calls: list[ToolCall] = []
    for index, raw_block in enumerate(parse_list(content, f"{where}.content")):
        block_where = f"{where}.content[{index}]"
        block = parse_object(raw_block, block_where)
        kind = block.get("type")
        if kind == "text":
            texts.append(parse_text(block.get("text"), f"{block_where}.text"))
        elif kind == "image" and role == "user":
            images.append(parse_image(block.get("source"), f"{block_where}.source"))
        elif kind == "tool_use" and role == "assistant":
            arguments = json.dumps(parse_object(block.get("input"), f"{block_where}.input"))
            name = parse_text(block.get("name"), f"{block_where}.name")
            tool_calls.append(ToolCall(parse_text(block.get("id"), f"{block_where}.id"), name, arguments))
        elif kind == "tool_result" and role == "user":
            result, result_images = parse_parts(block.get("content"), f"{block_where}.content")
            call_id = parse_text(block.get("tool_use_id"), f"{block_where}.tool_use_id")
            # Chat templates have no place for this flag.
            if block.get("is_error") and not result.lower().startswith("error"):
                result = f"Error: {result}"
            yield Message("tool", result, tool_call_id=call_id, images=result_images)
        elif kind == "thinking" and role == "assistant":
            thoughts.append(parse_text(block.get("thinking"), f"{block_where}.thinking").strip())
        elif kind not in ("thinking", "redacted_thinking"):
            expected = "expected text, image, tool_use, tool_result or thinking"
            raise RequestError(
                400, f"{block_where}.type: got {describe_value(kind)} of {role}; {expected}.", block_where
            )
    if texts or images or tool_calls or thoughts:
        thinking = "\n".join(filter(None, thoughts))
        yield Message(role, "\n".join(texts), tuple(tool_calls), images=tuple(images), thinking=thinking)


def message_body(call: ModelCall, answer: Answer, call_id: str) -> dict[str, Any]:
    """Return the body of an answer that is sent in one piece."""
    return {
        **_message_head(call, call_id),
        "content": _content_blocks(answer),
        "stop_reason": _stop_reason(answer),
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens},
    }


def _content_blocks(answer: Answer) -> list[dict[str, Any]]:
    message = answer.message
    blocks: list[dict[str, Any]] = []
    if message.thinking:
        blocks.append({"type": "thinking", "thinking": message.thinking, "signature": ""})
    if message.content or not message.tool_calls:
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        # The interface has no place for arguments that are no object: the program sees them under one name.
        arguments = arguments if isinstance(arguments, dict) else {"arguments": call.arguments}
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _stop_reason(answer: Answer) -> str:
    if answer.finish == "length":
        return "max_tokens"
    return "tool_use" if answer.message.tool_calls else "end_turn"


def _message_head(call: ModelCall, call_id: str) -> dict[str, Any]:
    return {
        "id": f"msg_{call_id}",
        "type": "message",
        "role": "assistant",
        "model": call.role,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def error_body(error: RequestError) -> dict[str, Any]:
    """Return the JSON body of an error in the form of this interface."""
    kind = str(error.body["error"]["type"])
    return {
        "type": "error",
        "error": {"type": "api_error" if kind == "server_error" else kind, "message": error.message},
    }


class MessageStream:
    """Writes the server-sent events of one streamed message."""

    content_type = "text/event-stream"

    def __init__(self, call: ModelCall, call_id: str) -> None:
        self._head = _message_head(call, call_id)

    def opening(self) -> Iterable[bytes]:
        return [_event("message_start", message=self._head)]

    def keep_alive(self) -> bytes:
        return _event("ping")

    def closing(self, answers: Sequence[Answer]) -> Iterator[bytes]:
        (answer,) = answers
        for index, block in enumerate(_content_blocks(answer)):
            kind = block["type"]
            field = "input" if kind == "tool_use" else kind
            empty: dict[str, Any] = {**block, field: {} if kind == "tool_use" else ""}
            yield _event("content_block_start", index=index, content_block=empty)
            delta = {"type": f"{kind}_delta", kind: block[field]}
            if kind == "tool_use":
                delta = {"type": "input_json_delta", "partial_json": to_json(block["input"])}
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        usage = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens}
        yield _event("message_delta", delta={"stop_reason": _stop_reason(answer), "stop_sequence": None}, usage=usage)
        yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {to_json({'type': kind, **fields})}\n\n".encode()
