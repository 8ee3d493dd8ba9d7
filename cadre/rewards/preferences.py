"""Preference pairs, what a reward model learns from: how they are read and written. Needs no torch.

A pair is one line of JSON: `{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}`, where the prompt may also be a list
of chat messages. Pairs are made of trees in `cadre.advantages.preferences`; the model itself is
`cadre.engines.torch.reward_model`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cadre.errors import ConfigError, nearest
from cadre.types import Message

FIELDS = ("prompt", "chosen", "rejected")
SPEAKERS = ("system", "user", "assistant")


@dataclass(frozen=True)
class Pair:
    """Two answers to one conversation, of which the first is preferred."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file, all of them checked. Raises ConfigError that names the first bad line."""
    if not path.is_file():
        raise ConfigError(f"pairs: there is no file {path}; expected one JSON object a line. Mend the path.")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"pairs: {path} is not UTF-8 text ({error.reason}); expected JSON lines.") from None
    pairs = [_pair(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not pairs:
        raise ConfigError(f"pairs: {path} is empty; expected one JSON object a line.")
    return pairs


def _pair(line: str, where: str) -> Pair:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"pairs: {where}: not JSON ({error}); expected an object. Mend the line.") from None
    form = 'expected {"prompt": text or messages, "chosen": text, "rejected": text}'
    if not isinstance(raw, dict):
        raise ConfigError(f"pairs: {where}: got {type(raw).__name__}; {form}. Mend the line.")
    for key in raw:
        if key not in FIELDS:
            raise ConfigError(f"pairs: {where}: unknown key {key!r}; {form}. Remove it.{nearest(key, FIELDS)}")
    for key in FIELDS:
        if key not in raw:
            raise ConfigError(f"pairs: {where}: {key!r} is missing; {form}. Add it.")
    for key in ("chosen", "rejected"):
        if not isinstance(raw[key], str):
            raise ConfigError(f"pairs: {where}: {key} is {type(raw[key]).__name__}; expected a text. Mend the line.")
    if raw["chosen"] == raw["rejected"]:
        raise ConfigError(f"pairs: {where}: chosen and rejected are equal; expected two answers. Remove the line.")
    return Pair(_messages(raw["prompt"], where), raw["chosen"], raw["rejected"])


def _messages(raw: Any, where: str) -> tuple[Message, ...]:
    """A prompt as messages; a plain text is what the user says."""
    if isinstance(raw, str):
        return (Message("user", raw),)
    sound = isinstance(raw, list) and bool(raw)
    for message in raw if sound else []:
        sound = sound and isinstance(message, dict) and set(message) == {"role", "content"}
        sound = sound and message["role"] in SPEAKERS and isinstance(message["content"], str)
    if not sound:
        raise ConfigError(
            f"pairs: {where}: got the prompt {str(raw)[:80]!r}; expected a text, or a list of messages "
            '{"role": "system", "user" or "assistant", "content": text}. Mend the line.'
        )
    return tuple(Message(message["role"], message["content"]) for message in raw)


def line_of(pair: Pair) -> str:
    """A pair as `read_pairs` reads it."""
    return json.dumps({**asdict(pair), "prompt": [{"role": m.role, "content": m.content} for m in pair.prompt]})
