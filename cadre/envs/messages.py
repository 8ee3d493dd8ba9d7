"""Chat messages as users write them: a text, messages as every client writes them, or `Message` records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

from cadre.errors import CadreError, ContractError, nearest
from cadre.types import Message, ToolCall

ROLES = get_args(get_type_hints(Message)["role"])


def to_messages(prompt: Any, where: str, error: type[CadreError] = ContractError) -> tuple[Message, ...]:
    """Return a prompt as messages; a text is one of the user. Raises `error` for anything else."""
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    if isinstance(prompt, Message | Mapping):
        prompt = [prompt]
    if not isinstance(prompt, Sequence) or not prompt:
        raise error(
            f"{where}: got the prompt {prompt!r:.80}; expected a text, or a list of messages "
            '{"role": "user", "content": "..."}. Write one of them.'
        )
    return tuple(to_message(message, where, error) for message in prompt)


def to_message(message: Any, where: str, error: type[CadreError] = ContractError) -> Message:
    """Return one message; its content is a text, or a list of parts that are texts, or none beside calls."""
    if isinstance(message, Message):
        return message
    fault = f"{where}: got the message {message!r:.80}"
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        role = str(message.get("role")) if isinstance(message, Mapping) else ""
        raise error(
            f"{fault}; expected a role, one of {', '.join(ROLES)}, and a content. Fix it.{nearest(role, ROLES)}"
        )
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise error(f"{fault}; expected a text as its content. Images are given as cadre.Message(images=...).")
    calls, raw_calls = [], message.get("tool_calls") or ()
    for number, call in enumerate(raw_calls if isinstance(raw_calls, Sequence) else [raw_calls]):
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        if isinstance(call, ToolCall):
            calls.append(call)
        elif isinstance(function, Mapping) and "name" in function:
            name, call_id = str(function["name"]), str(call.get("id", f"call_{number}"))
            calls.append(ToolCall(call_id, name, function.get("arguments", "{}")))
        else:
            raise error(f"{fault}; expected tool_calls with a function's name and arguments. Fix them.")
    thinking = str(message.get("reasoning_content") or "")
    return Message(message["role"], content, tuple(calls), str(message.get("tool_call_id") or ""), thinking=thinking)
