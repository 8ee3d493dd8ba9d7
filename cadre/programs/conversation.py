"""Which of a role's conversations a call goes on with: a program may hold several with one model."""

from __future__ import annotations

from collections.abc import Sequence

from cadre.programs.instance import Exchange
from cadre.types import Message


def conversation_of(past: Sequence[Exchange], role: str, messages: Sequence[Message]) -> str:
    """The conversation of the latest turn that these messages extend; else that which opened alike, as a program may
    rewrite its history; else a new one."""
    mine = [exchange for exchange in past if exchange.role == role]
    for exchange in reversed(mine):
        if _extends(messages, exchange.asked.call.messages):
            return exchange.conversation
    for exchange in reversed(mine):
        if _opening(messages) == _opening(exchange.asked.call.messages):
            return exchange.conversation
    known = len({exchange.conversation for exchange in mine})
    return str(known) if known else ""


def _extends(messages: Sequence[Message], before: Sequence[Message]) -> bool:
    seen = len(before)
    return len(messages) > seen and tuple(messages[:seen]) == tuple(before) and messages[seen].role == "assistant"


def _opening(messages: Sequence[Message]) -> Sequence[Message]:
    """Up to the first message that is no system's."""
    first = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    return messages[: first + 1]
