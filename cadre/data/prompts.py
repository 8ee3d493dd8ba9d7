"""Prompts in files that users write: a text, which is what the user says, or chat messages."""

from __future__ import annotations

from typing import Any

from cadre.errors import DataError
from cadre.types import Message, Observation

SPEAKERS = ("system", "user", "assistant", "tool")
FIELDS = {"role", "content"}


def prompt_of(raw: Any, where: str) -> tuple[Message, ...]:
    """`"2 + 2?"` or `[{"role": "user", "content": "2 + 2?"}]` as messages. Raises DataError for anything else, and
    for one that says nothing."""
    if isinstance(raw, str):
        raw = [{"role": "user", "content": raw}]
    if not isinstance(raw, list) or not raw or not all(map(_is_message, raw)):
        raise DataError(
            f"{where}: got the prompt {str(raw)[:80]!r}; expected a text, or a list of messages "
            f'{{"role": one of {", ".join(SPEAKERS)}, "content": text}}. Fix the line.'
        )
    if not any(message["content"].strip() for message in raw):
        raise DataError(f"{where}: got a blank prompt; expected one that says something. Fix or remove the line.")
    return tuple(Message(message["role"], message["content"]) for message in raw)


def refuse_more_than_text(seen: Observation, what: str) -> None:
    """Raises DataError where a prompt holds what such a file cannot: tools, calls of them, or pictures."""
    if seen.tools or any(message.tool_calls or message.tool_call_id or message.images for message in seen.messages):
        raise DataError(
            f"{what}: got a prompt of {seen.role} with tools, calls of them or pictures, which a file of texts cannot "
            "hold; expected texts alone. Take an environment without them, or write the file yourself."
        )


def _is_message(raw: Any) -> bool:
    return (
        isinstance(raw, dict)
        and set(raw) == FIELDS
        and isinstance(raw["role"], str)
        and raw["role"] in SPEAKERS
        and isinstance(raw["content"], str)
    )
