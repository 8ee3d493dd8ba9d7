"""Preference pairs, the training data of a reward model, and prompts in files that users write. Needs no torch.

A pair is one line of JSON: `{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}`. The prompt may also be a list of
chat messages. Pairs are made of trees in `cadre.advantages.preferences`; the model itself is
`cadre.engines.torch.reward_model`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cadre.errors import DataError, nearest
from cadre.rows import read_json_lines
from cadre.types import Message, Observation

FIELDS = ("prompt", "chosen", "rejected")
EXPECTED = 'expected {"prompt": text or messages, "chosen": text, "rejected": text}'
MESSAGE_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to one conversation, the first preferred; `where` is the file and line it was read from."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    where: str = field(default="", compare=False)

    @property
    def opposite(self) -> PreferencePair:
        """The pair that prefers the other answer."""
        return PreferencePair(self.prompt, self.rejected, self.chosen)


def read_pairs(path: Path) -> list[PreferencePair]:
    """Return the pairs of a file; repeated ones count once. Raises DataError that names the first bad line."""
    if not path.is_file():
        raise DataError(f"pairs: there is no file {path}; expected one JSON object a line. Fix the path.")
    pairs: dict[PreferencePair, None] = {}
    for number, raw in read_json_lines(path):
        where = f"pairs: {path}, line {number}"
        for key in raw:
            if key not in FIELDS:
                raise DataError(f"{where}: unknown key {key!r}; {EXPECTED}. Remove it.{nearest(key, FIELDS)}")
        for key in FIELDS:
            if key not in raw:
                raise DataError(f"{where}: {key!r} is missing; {EXPECTED}. Add it.")
        for key in ("chosen", "rejected"):
            if not isinstance(raw[key], str):
                raise DataError(f"{where}: {key} is {type(raw[key]).__name__}; expected a text. Fix the line.")
        if raw["chosen"] == raw["rejected"]:
            raise DataError(f"{where}: chosen and rejected are equal; expected two answers. Remove the line.")
        if not raw["chosen"].strip():
            raise DataError(f"{where}: chosen is blank; expected an answer. Fix or remove the line.")
        pairs.setdefault(PreferencePair(parse_prompt(raw["prompt"], where), raw["chosen"], raw["rejected"], where))
    if not pairs:
        raise DataError(f"pairs: {path} is empty; expected one JSON object a line.")
    return list(pairs)


def pair_to_json(pair: PreferencePair) -> str:
    """Return a pair as a line that `read_pairs` reads."""
    prompt = [{"role": message.role, "content": message.content} for message in pair.prompt]
    return json.dumps({"prompt": prompt, "chosen": pair.chosen, "rejected": pair.rejected})


def parse_prompt(raw: Any, where: str) -> tuple[Message, ...]:
    """Return `"2 + 2?"` or `[{"role": "user", "content": "2 + 2?"}]` as messages.

    Raises DataError for anything else, and for a prompt without text.
    """

    def is_message(value: Any) -> bool:
        if not isinstance(value, dict) or set(value) != {"role", "content"}:
            return False
        role, content = value["role"], value["content"]
        return isinstance(role, str) and role in MESSAGE_ROLES and isinstance(content, str)

    if isinstance(raw, str):
        raw = [{"role": "user", "content": raw}]
    if not isinstance(raw, list) or not raw or not all(map(is_message, raw)):
        raise DataError(
            f"{where}: got the prompt {str(raw)[:80]!r}; expected a text, or a list of messages "
            f'{{"role": one of {", ".join(MESSAGE_ROLES)}, "content": text}}. Fix the line.'
        )
    if not any(message["content"].strip() for message in raw):
        raise DataError(f"{where}: got a blank prompt; expected one that says something. Fix or remove the line.")
    return tuple(Message(message["role"], message["content"]) for message in raw)


def require_text_only(observation: Observation, where: str) -> None:
    """Raise DataError for a prompt with tools, tool calls or pictures, which a file of texts cannot hold."""
    has_more = any(
        message.tool_calls or message.tool_call_id or message.images or message.sounds
        for message in observation.messages
    )
    if observation.tools or has_more:
        raise DataError(
            f"{where}: got a prompt of {observation.role} with tools, calls of them or pictures, which a file of texts "
            "cannot hold; expected texts alone. Take an environment without them, or write the file yourself."
        )
