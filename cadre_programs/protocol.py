"""OpenAI's two interfaces, `/v1/chat/completions` and `/v1/responses`: requests to calls, answers to bodies and events.

Every field of a request is checked before it is used, and an error names the field. What a client cannot choose here,
such as the temperature, is not an error but a note on the response: how completions are sampled is the training's
configuration. No body holds a time: a program that is replayed must read the same bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cadre.envs.images import image
from cadre.errors import CadreError
from cadre.types import Image, Message, Tool, ToolCall
from cadre_programs.calls import Answer, ModelCall, RequestError, merge_messages, number_tool_calls

MAX_TOOLS = 256
MAX_STOPS = 16
MAX_COMPLETIONS = 16
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
Api = Literal["chat", "responses", "messages"]
# Fields of a request that are followed or rejected, or do not concern the answer. Others are named in a note, and so
# are those of another interface, as `system` beside the messages of a chat.
COMMON_FIELDS = frozenset(
    "model tools tool_choice stream stream_options metadata user store service_tier safety_identifier prompt_cache_key "
    "prompt_cache_retention cache_control betas".split()
)
MESSAGE_FIELDS = COMMON_FIELDS | {"messages", "max_tokens", "continue_final_message", "add_generation_prompt"}
KNOWN_FIELDS: dict[Api, frozenset[str]] = {
    "chat": MESSAGE_FIELDS
    | set(
        "response_format stop max_completion_tokens n logprobs top_logprobs modalities functions function_call "
        "audio".split()
    ),
    "responses": COMMON_FIELDS
    | set(
        "input instructions previous_response_id text max_output_tokens top_logprobs background conversation prompt "
        "include".split()
    ),
    "messages": MESSAGE_FIELDS | {"system", "stop_sequences", "output_config", "output_format"},
}
MAX_NOTED = 16
# Fields of a request's metadata that hold the name of the agent.
AGENT_FIELDS = ("agent_name", "agent", "lc_agent_name", "langgraph_node", "name")
# The conversation up to a response, by the response's id.
StoredResponses = Mapping[str, tuple[Message, ...]]


@dataclass(frozen=True)
class ReplyFormat:
    """The form in which a client wants the answer.

    usage   whether a stream ends with the numbers of tokens
    note    what the request asks for and does not get
    extra   fields of the request that clients expect back
    count   completions of one request
    logprobs  whether it has the log-probability of every token
    """

    api: Api
    stream: bool = False
    usage: bool = False
    note: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1
    logprobs: bool = False


# Fields


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a request. Raises RequestError."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise RequestError(400, "The body is not JSON; expected an object.") from None
    if not isinstance(body, dict):
        raise RequestError(400, f"The body is {describe_value(body)}; expected an object.")
    return body


def parse_text(value: Any, where: str) -> str:
    """Return a text that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise RequestError(400, f"{where}: got {describe_value(value)}; expected a text.", where)
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise RequestError(400, f"{where}: holds half a surrogate pair; expected valid Unicode.", where)
    return value


def parse_optional_text(value: Any, where: str) -> str:
    """Return a text, "" for null."""
    return "" if value is None else parse_text(value, where)


def parse_list(value: Any, where: str, max_length: int | None = None) -> list[Any]:
    """Return a list, [] for null."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise RequestError(400, f"{where}: got {describe_value(value)}; expected a list.", where)
    if max_length is not None and len(value) > max_length:
        raise RequestError(400, f"{where}: got {len(value)} entries; expected at most {max_length}.", where)
    return value


def parse_object(value: Any, where: str) -> dict[str, Any]:
    """Return an object, {} for null."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(400, f"{where}: got {describe_value(value)}; expected an object.", where)
    return value


def parse_flag(value: Any, where: str) -> bool:
    """Return true or false, false for null."""
    if value is not None and not isinstance(value, bool):
        raise RequestError(400, f"{where}: got {describe_value(value)}; expected true or false.", where)
    return bool(value)


def parse_count(body: dict[str, Any], names: Sequence[str]) -> int | None:
    """Return the first of these fields that is set, a whole number above 0."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RequestError(400, f"{name}: got {describe_value(value)}; expected a whole number above 0.", name)
        return value
    return None


def parse_image(value: Any, where: str) -> Image:
    """Return the image of a `data:` URL. Raises RequestError for any other URL, which would be fetched from elsewhere,
    and for what is no image."""
    if isinstance(value, dict) and value.get("type") == "base64":  # Anthropic's form
        value = f"data:{value.get('media_type')};base64,{value.get('data')}"
    url = parse_text(value.get("url") if isinstance(value, dict) else value, where)
    head, _, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64"):
        raise RequestError(
            400, f"{where}: got the URL {url[:60]!r}; expected data:image/png;base64,... Send the image itself.", where
        )
    try:
        return image(base64.b64decode(data, validate=True))
    except (ValueError, CadreError) as error:
        raise RequestError(400, f"{where}: {error}", where) from None


def parse_parts(value: Any, where: str) -> tuple[str, tuple[Image, ...]]:
    """Return the text and the images of a message's content: a text, or a list of parts."""
    if value is None or isinstance(value, str):
        return parse_optional_text(value, where), ()
    if not isinstance(value, list):
        raise RequestError(
            400,
            f"{where}: got {describe_value(value)}; expected a text, or a list of parts. Write JSON as text.",
            where,
        )
    texts, images = [], []
    for number, part in enumerate(value):
        part_where = f"{where}[{number}]"
        entry = {"text": part} if isinstance(part, str) else parse_object(part, part_where)
        if (kind := entry.get("type")) in ("image_url", "input_image", "image"):
            name = "source" if kind == "image" else "image_url"
            images.append(parse_image(entry.get(name), f"{part_where}.{name}"))
            continue
        if "text" not in entry and "refusal" not in entry:
            raise RequestError(
                400,
                f"{part_where}: got a part of type {describe_value(entry.get('type'))}; expected text or an image.",
                part_where,
            )
        texts.append(parse_text(entry.get("text", entry.get("refusal")), part_where))
    return "\n".join(texts), tuple(images)


def describe_value(value: Any) -> str:
    """Return the type and the beginning of a value, for an error message."""
    words = repr(value)
    return f"{type(value).__name__} {words[:60]}{'...' if len(words) > 60 else ''}"


def parse_tools(value: Any, kind: str = "function", schema: str = "parameters") -> tuple[Tool, ...]:
    """Return the tools of a request: nested in `function` in chat completions, flat in responses and messages."""
    tools = []
    for number, raw in enumerate(parse_list(value, "tools", MAX_TOOLS)):
        where = f"tools[{number}]"
        entry = parse_object(raw, where)
        if entry.get("type", kind) != kind:
            raise RequestError(
                400, f"{where}.type: got {describe_value(entry['type'])}; expected {kind}.", f"{where}.type"
            )
        function = parse_object(entry["function"], f"{where}.function") if "function" in entry else entry
        tools.append(
            Tool(
                parse_text(function.get("name"), f"{where}.name"),
                parse_optional_text(function.get("description"), f"{where}.description"),
                parse_object(function.get(schema), f"{where}.{schema}"),
            )
        )
    return tuple(tools)


def parse_offer(body: dict[str, Any]) -> tuple[str, tuple[Tool, ...]]:
    """Return how tools are chosen, "auto", "none", "required" or the name of one, and the tools that may be called."""
    value, where = body.get("tool_choice"), "tool_choice"
    allowed: set[str] | None = None
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        entry = parse_object(value.get("allowed_tools", value), where)
        allowed = {_parse_tool_name(raw, f"{where}.tools") for raw in parse_list(entry.get("tools"), f"{where}.tools")}
        value = entry.get("mode")
    if value is None or value in ("auto", "none", "required"):
        choice = value or "auto"
    elif isinstance(value, str):
        raise RequestError(
            400, f"{where}: got {value[:80]!r}; expected auto, none, required, or an object that names a tool.", where
        )
    else:
        choice = _parse_tool_name(value, where)
    tools = () if choice == "none" else parse_tools(body.get("tools"))
    return choice, tuple(tool for tool in tools if allowed is None or tool.name in allowed)


def _parse_tool_name(value: Any, where: str) -> str:
    entry = parse_object(value, where)
    return parse_text(parse_object(entry.get("function", entry), where).get("name"), f"{where}.name")


def parse_schema(value: Any, where: str) -> dict[str, Any] | None:
    """Return the JSON schema of the answer, {} for any JSON object, None for free text."""
    entry = parse_object(value, where)
    kind = entry.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        expected = "expected text, json_object or json_schema"
        raise RequestError(400, f"{where}.type: got {describe_value(kind)}; {expected}.", f"{where}.type")
    nested = parse_object(entry.get("json_schema", entry), where)
    return parse_object(nested.get("schema"), f"{where}.schema")


def parse_agent(body: dict[str, Any]) -> str:
    """Return the name of the agent that calls, from the metadata of a request; "" if it has none."""
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        return ""
    names = (metadata.get(name) for name in AGENT_FIELDS)
    return next((name for name in names if isinstance(name, str) and name), "")


def describe_ignored(body: dict[str, Any], api: Api) -> str:
    """Return sentences that name the fields of a request that are not followed; "" if there are none."""
    names = [name for name, value in body.items() if value is not None and name not in KNOWN_FIELDS[api]]
    names = [name for name in names if name.isidentifier() and name.isascii() and len(name) <= 64][:MAX_NOTED]
    notes = [f"{', '.join(names)} not followed: answers are drawn as Cadre is set to."] if names else []
    messages = body.get("messages")
    if isinstance(messages, list) and any(isinstance(message, dict) and message.get("name") for message in messages):
        notes.append("name of messages not told: chat templates have no place for it; write it into the content.")
    return " ".join(notes)


def reject_prefill(body: dict[str, Any], by_place: bool = False) -> None:
    """Raise RequestError if the answer is to continue the last message: that is rendered as a turn that has ended.

    `by_place` is set for interfaces where an assistant's message asks for this by being the last.
    """
    last = parse_list(body.get("messages"), "messages")[-1]
    is_answer = isinstance(last, dict) and last.get("role") == "assistant"
    requests = {
        "continue_final_message": body.get("continue_final_message"),
        "add_generation_prompt": is_answer and body.get("add_generation_prompt") is False,
        "prefix": is_answer and last.get("prefix"),
        "messages": is_answer and by_place,
    }
    if where := next((name for name, is_set in requests.items() if is_set), ""):
        raise RequestError(
            400, f"{where}: the answer would continue the last message; expected a last message by user or tool.", where
        )


# /v1/chat/completions


def parse_chat_call(body: dict[str, Any]) -> ModelCall:
    """Return the call of a request to `/v1/chat/completions`. Raises RequestError."""
    for name in ("functions", "function_call", "audio"):
        if body.get(name) is not None:
            raise RequestError(400, f"{name}: not supported; expected tools, and text.", name)
    if (parse_count(body, ("n",)) or 1) > MAX_COMPLETIONS:
        raise RequestError(400, f"n: got {body['n']}; expected at most {MAX_COMPLETIONS}.", "n")
    if any(modality != "text" for modality in parse_list(body.get("modalities"), "modalities")):
        raise RequestError(400, f"modalities: got {describe_value(body['modalities'])}; expected text.", "modalities")
    messages = parse_list(body.get("messages"), "messages")
    if not messages:
        raise RequestError(400, "messages: got none; expected one or more.", "messages")
    reject_prefill(body)
    choice, tools = parse_offer(body)
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else parse_list(stop, "stop", MAX_STOPS)
    parsed = merge_messages(_parse_chat_message(raw, f"messages[{number}]") for number, raw in enumerate(messages))
    numbered, tool_call_ids = number_tool_calls(parsed)
    return ModelCall(
        role=parse_text(body.get("model"), "model"),
        messages=numbered,
        agent=parse_agent(body),
        tool_call_ids=tool_call_ids,
        tools=tools,
        choice=choice,
        schema=parse_schema(body.get("response_format"), "response_format"),
        stop=tuple(text for text in (parse_text(value, "stop") for value in stops) if text),
        max_tokens=parse_count(body, ("max_completion_tokens", "max_tokens")),
    )


def _parse_chat_message(raw: Any, where: str) -> Message:
    entry = parse_object(raw, where)
    role = ROLES.get(str(entry.get("role")))
    if role is None:
        got = describe_value(entry.get("role"))
        raise RequestError(400, f"{where}.role: got {got}; expected one of {', '.join(ROLES)}.", f"{where}.role")
    raw_calls = parse_list(entry.get("tool_calls"), f"{where}.tool_calls") if role == "assistant" else []
    content, images = parse_parts(entry.get("content"), f"{where}.content")
    tool_calls = []
    for number, raw_call in enumerate(raw_calls):
        call_where = f"{where}.tool_calls[{number}]"
        call = parse_object(raw_call, call_where)
        function = parse_object(call.get("function"), f"{call_where}.function")
        tool_calls.append(
            ToolCall(
                parse_text(call.get("id"), f"{call_where}.id"),
                parse_text(function.get("name"), f"{call_where}.function.name"),
                parse_optional_text(function.get("arguments"), f"{call_where}.function.arguments"),
            )
        )
    # Qwen-Agent names it `id`.
    raw_id = entry.get("tool_call_id") or entry.get("id")
    tool_call_id = parse_text(raw_id, f"{where}.tool_call_id") if role == "tool" else ""
    # The thinking of an assistant's message has several names.
    names = [name for name in ("reasoning_content", "reasoning") if isinstance(entry.get(name), str)]
    thinking = parse_text(entry[names[0]], f"{where}.{names[0]}").strip() if role == "assistant" and names else ""
    return Message(role, content, tuple(tool_calls), tool_call_id, images, thinking=thinking)  # type: ignore[arg-type]


def parse_chat_format(body: dict[str, Any]) -> ReplyFormat:
    """Return the form of the answer to a request to `/v1/chat/completions`."""
    options = parse_object(body.get("stream_options"), "stream_options")
    usage = parse_flag(options.get("include_usage"), "include_usage")
    return ReplyFormat(
        "chat",
        parse_flag(body.get("stream"), "stream"),
        usage,
        describe_ignored(body, "chat"),
        count=parse_count(body, ("n",)) or 1,
        logprobs=bool(body.get("logprobs") or body.get("top_logprobs")),
    )


def chat_body(call: ModelCall, answers: Sequence[Answer], call_id: str, logprobs: bool = False) -> dict[str, Any]:
    """Return the body of answers that are sent in one piece."""
    choices = []
    for index, answer in enumerate(answers):
        content, tool_calls = answer.message.content, _chat_tool_calls(answer)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if answer.message.thinking:
            message["reasoning_content"] = answer.message.thinking
        if tool_calls:
            message |= {"content": content or None, "tool_calls": tool_calls}
        entries = _chat_logprobs(answer) if logprobs else None
        choices.append({"index": index, "message": message, "finish_reason": _chat_finish(answer), "logprobs": entries})
    return {**_chat_head(call, call_id, "chat.completion"), "choices": choices, "usage": _chat_usage(answers)}


def _chat_logprobs(answer: Answer) -> dict[str, Any]:
    """Return the log-probabilities of a completion. Tokens are named by their ids, as the endpoint has no tokenizer."""
    tokens: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "bytes": None, "logprob": logprob, "top_logprobs": []}
        for token, logprob in zip(answer.token_ids, answer.logprobs, strict=True)
    ]
    return {"content": tokens, "refusal": None}


def _chat_tool_calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.message.tool_calls
    ]


def _chat_finish(answer: Answer) -> str:
    return "tool_calls" if answer.message.tool_calls and answer.finish != "length" else answer.finish


def _chat_usage(answers: Sequence[Answer]) -> dict[str, int]:
    prompt, completion = answers[0].prompt_tokens, sum(answer.completion_tokens for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _chat_head(call: ModelCall, call_id: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{call_id}", "object": kind, "created": 0, "model": call.role}


class ChatStream:
    """Writes the server-sent events of one streamed chat completion."""

    content_type = "text/event-stream"

    def __init__(self, call: ModelCall, call_id: str, reply_format: ReplyFormat) -> None:
        self._head = _chat_head(call, call_id, "chat.completion.chunk")
        self._format = reply_format

    def opening(self) -> Iterable[bytes]:
        return [self._event({"role": "assistant", "content": ""}, index=index) for index in range(self._format.count)]

    def keep_alive(self) -> bytes:
        return self._event({})

    def closing(self, answers: Sequence[Answer]) -> Iterator[bytes]:
        for index, answer in enumerate(answers):
            logprobs = _chat_logprobs(answer) if self._format.logprobs else None
            if answer.message.thinking:
                yield self._event({"reasoning_content": answer.message.thinking}, index=index)
            if answer.message.content or logprobs:
                yield self._event({"content": answer.message.content}, index=index, logprobs=logprobs)
            if answer.message.tool_calls:
                calls = [{"index": n, **call} for n, call in enumerate(_chat_tool_calls(answer))]
                yield self._event({"tool_calls": calls}, index=index)
            yield self._event({}, _chat_finish(answer), index)
        if self._format.usage:
            yield _data_line({**self._head, "choices": [], "usage": _chat_usage(answers)})
        yield b"data: [DONE]\n\n"

    def _event(
        self, delta: dict[str, Any], finish: str | None = None, index: int = 0, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return _data_line({**self._head, "choices": [choice]})


def _data_line(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


# /v1/responses


def parse_responses_call(body: dict[str, Any], stored: StoredResponses) -> tuple[ModelCall, tuple[Message, ...]]:
    """Return the call of a request to `/v1/responses`, and the conversation that a later request may continue. The
    conversation leaves the instructions out: they hold for one request. Raises RequestError."""
    for name in ("background", "conversation", "prompt"):
        if body.get(name):
            raise RequestError(400, f"{name}: not supported; expected input.", name)
    included = [str(name) for name in parse_list(body.get("include"), "include")]
    if body.get("top_logprobs") or any("logprobs" in name for name in included):
        raise RequestError(400, "logprobs: not supported here. Take chat completions.", "include")
    earlier: tuple[Message, ...] = ()
    previous_id = body.get("previous_response_id")
    if previous_id is not None:
        previous = stored.get(parse_text(previous_id, "previous_response_id"))
        if previous is None:
            raise RequestError(
                400,
                f"previous_response_id: this session has no response {previous_id[:80]!r}.",
                "previous_response_id",
                "previous_response_not_found",
            )
        earlier = previous
    conversation = (*earlier, *_parse_responses_input(body.get("input")))
    if not conversation:
        raise RequestError(400, "input: got none; expected a text or a list of items.", "input")
    instructions = parse_optional_text(body.get("instructions"), "instructions")
    choice, tools = parse_offer(body)
    merged = merge_messages((Message("system", instructions), *conversation) if instructions else conversation)
    numbered, tool_call_ids = number_tool_calls(merged)
    call = ModelCall(
        role=parse_text(body.get("model"), "model"),
        messages=numbered,
        agent=parse_agent(body),
        tool_call_ids=tool_call_ids,
        tools=tools,
        choice=choice,
        schema=parse_schema(parse_object(body.get("text"), "text").get("format"), "text.format"),
        max_tokens=parse_count(body, ("max_output_tokens",)),
    )
    return call, conversation


def _parse_responses_input(value: Any) -> Iterator[Message]:
    if isinstance(value, str):
        yield Message("user", parse_text(value, "input"))
        return
    for number, raw in enumerate(parse_list(value, "input")):
        where = f"input[{number}]"
        entry = parse_object(raw, where)
        kind = entry.get("type", "message")
        if kind == "reasoning":
            parts = parse_list(entry.get("content"), where) or parse_list(entry.get("summary"), where)
            texts = [parse_text(parse_object(part, where).get("text"), where) for part in parts]
            if thinking := "\n".join(texts).strip():
                yield Message("assistant", "", thinking=thinking)
            continue
        if kind == "function_call":
            call = ToolCall(
                parse_text(entry.get("call_id"), f"{where}.call_id"),
                parse_text(entry.get("name"), f"{where}.name"),
                parse_optional_text(entry.get("arguments"), f"{where}.arguments"),
            )
            yield Message("assistant", "", (call,))
        elif kind == "function_call_output":
            call_id = parse_text(entry.get("call_id"), f"{where}.call_id")
            text, images = parse_parts(entry.get("output"), f"{where}.output")
            yield Message("tool", text, tool_call_id=call_id, images=images)
        else:
            role = ROLES.get(str(entry.get("role")))
            if kind != "message" or role is None or role == "tool":
                got = describe_value(kind if kind != "message" else entry.get("role"))
                expected = "expected a message, a function_call or its output"
                raise RequestError(400, f"{where}: got {got}; {expected}.", where)
            text, images = parse_parts(entry.get("content"), f"{where}.content")
            yield Message(role, text, images=images)  # type: ignore[arg-type]


def parse_responses_format(body: dict[str, Any]) -> ReplyFormat:
    """Return the form of the answer to a request to `/v1/responses`."""
    extra: dict[str, Any] = {
        name: body[name] for name in ("instructions", "previous_response_id", "metadata") if name in body
    }
    extra |= {"tools": body.get("tools") or [], "tool_choice": body.get("tool_choice") or "auto"}
    return ReplyFormat(
        "responses", parse_flag(body.get("stream"), "stream"), True, describe_ignored(body, "responses"), extra
    )


def responses_body(call: ModelCall, answer: Answer, call_id: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of an answer that is sent in one piece: the items are thinking, the text, then the tool calls."""
    items: list[dict[str, Any]] = []
    if answer.message.thinking:
        part: dict[str, Any] = {"type": "reasoning_text", "text": answer.message.thinking}
        items.append(
            {"id": f"rs_{call_id}", "type": "reasoning", "status": "completed", "summary": [], "content": [part]}
        )
    if answer.message.content or not answer.message.tool_calls:
        part = {"type": "output_text", "text": answer.message.content, "annotations": [], "logprobs": []}
        items.append(
            {"id": f"msg_{call_id}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        )
    for tool_call in answer.message.tool_calls:
        items.append(
            {
                "id": f"fc_{tool_call.id}",
                "type": "function_call",
                "status": "completed",
                "call_id": tool_call.id,
                "name": tool_call.name,
                "arguments": tool_call.arguments,
            }
        )
    is_truncated = answer.finish == "length"
    return {
        **_responses_head(call, call_id, extra),
        "status": "incomplete" if is_truncated else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_truncated else None,
        "output": items,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        },
    }


def _responses_head(call: ModelCall, call_id: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"resp_{call_id}",
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


class ResponsesStream:
    """Writes the server-sent events of one streamed response, which are numbered."""

    content_type = "text/event-stream"

    def __init__(self, call: ModelCall, call_id: str, extra: Mapping[str, Any]) -> None:
        self._call, self._call_id, self._extra, self._sequence_number = call, call_id, extra, 0
        self._head = _responses_head(call, call_id, extra)

    def opening(self) -> Iterable[bytes]:
        created = self._event("response.created", response=self._head)
        return [created, self._event("response.in_progress", response=self._head)]

    def keep_alive(self) -> bytes:
        return self._event("response.in_progress", response=self._head)

    def closing(self, answers: Sequence[Answer]) -> Iterator[bytes]:
        (answer,) = answers
        body = responses_body(self._call, answer, self._call_id, self._extra)
        for index, item in enumerate(body["output"]):
            position = {"item_id": item["id"], "output_index": index}
            empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
            unfinished = {**item, **empty, "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=index, item=unfinished)
            if item["type"] == "message":
                (part,) = item["content"]
                position["content_index"] = 0
                yield self._event("response.content_part.added", **position, part={**part, "text": ""})
                yield self._event("response.output_text.delta", **position, delta=part["text"], logprobs=[])
                yield self._event("response.output_text.done", **position, text=part["text"], logprobs=[])
                yield self._event("response.content_part.done", **position, part=part)
            elif item["type"] == "reasoning":
                position["content_index"], text = 0, item["content"][0]["text"]
                yield self._event("response.reasoning_text.delta", **position, delta=text)
                yield self._event("response.reasoning_text.done", **position, text=text)
            else:
                arguments, name = item["arguments"], item["name"]
                yield self._event("response.function_call_arguments.delta", **position, delta=arguments)
                yield self._event("response.function_call_arguments.done", **position, arguments=arguments, name=name)
            yield self._event("response.output_item.done", output_index=index, item=item)
        kind = "response.incomplete" if body["status"] == "incomplete" else "response.completed"
        yield self._event(kind, response=body)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return f"event: {kind}\ndata: {json.dumps(body)}\n\n".encode()
