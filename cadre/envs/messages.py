"""Chat messages as users write them: a text, messages as every client writes them, or `Message` records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

from cadre.errors import ContractError, nearest
from cadre.types import Message, ToolCall

ROLES = get_args(get_type_hints(Message)["role"])


def to_messages(prompt: Any, where: str) -> tuple[Message, ...]:
    """Return a prompt as messages; a text is one of the user. Raises ContractError for anything else."""
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    if isinstance(prompt, Message | Mapping):
        prompt = [prompt]
    if not isinstance(prompt, Sequence) or not prompt:
        raise ContractError(
            f"{where}: got {prompt!r:.80}; expected a text, or a list of messages "
            '{"role": "user", "content": "..."}. Write one of them.'
        )
    return tuple(to_message(message, where) for message in prompt)


def to_message(message: Any, where: str) -> Message:
    """Return one message; its content is a text, or a list of parts of which all are texts."""
    if isinstance(message, Message):
        return message
    fault = f"{where}: got the message {message!r:.80}"
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        role = str(message.get("role")) if isinstance(message, Mapping) else ""
        raise ContractError(
            f"{fault}; expected a role, one of {', '.join(ROLES)}, and a content. Fix it.{nearest(role, ROLES)}"
        )
    content = message.get("content") or ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise ContractError(f"{fault}; expected a text as its content. Images are given as cadre.Message(images=...).")
    calls = []
    for number, call in enumerate(message.get("tool_calls") or ()):
        if isinstance(call, ToolCall):
            calls.append(call)
            continue
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        if not isinstance(function, Mapping) or "name" not in function:
            raise ContractError(f"{fault}; expected tool_calls with a function's name and arguments. Fix them.")
        calls.append(
            ToolCall(str(call.get("id", f"call_{number}")), str(function["name"]), function.get("arguments", "{}"))
        )
    return Message(message["role"], content, tuple(calls), str(message.get("tool_call_id") or ""))
