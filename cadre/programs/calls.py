"""A model call of a program, whichever interface it came through, and what answers it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from cadre.types import Finish, Message, Tool


@dataclass(frozen=True)
class Call:
    """What a program asks of a model.

    role      the model that it names
    tools     those that the model may call, none where `choice` is "none"
    choice    "auto", "none", "required", or the name of the tool that has to be called
    schema    the JSON schema that the answer has to keep, {} for any JSON; None where it is free
    """

    role: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
    schema: Mapping[str, Any] | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None

    @cached_property
    def content(self) -> str:
        """A hash of all that the model is asked: equal calls have equal ones."""
        return hashlib.blake2b(canonical(asdict(self)).encode(), digest_size=10).hexdigest()


@dataclass(frozen=True)
class Answer:
    """What a program is answered: the model's message, and how many tokens went in and came out."""

    message: Message
    finish: Finish = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def named(self, name: str) -> Answer:
        """With calls of tools that are named after the call which this answers, the same in every run."""
        calls = (replace(call, id=f"call_{name}{number}") for number, call in enumerate(self.message.tool_calls))
        return replace(self, message=replace(self.message, tool_calls=tuple(calls)))


@dataclass(frozen=True)
class Envelope:
    """How the answer to a call is to be written. `note` tells what the call asked for and does not get."""

    api: Literal["chat", "responses"]
    stream: bool = False
    usage: bool = False
    note: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def canonical(value: Any) -> str:
    """JSON of which equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The conversation as chat templates expect it: leading system texts in one message, later ones said by the user,
    and what an assistant said and called in one go in one message."""
    whole: list[Message] = []
    for message in messages:
        last = whole[-1] if whole else None
        if message.role == "system" and last is not None and any(other.role != "system" for other in whole):
            whole.append(Message("user", message.content))
        elif message.role == "system" and last is not None:
            whole[-1] = Message("system", f"{last.content}\n\n{message.content}")
        elif message.role == "assistant" and last is not None and last.role == "assistant" and message.tool_calls:
            said = "\n".join(filter(None, (last.content, message.content)))
            whole[-1] = Message("assistant", said, last.tool_calls + message.tool_calls)
        else:
            whole.append(message)
    return tuple(whole)
