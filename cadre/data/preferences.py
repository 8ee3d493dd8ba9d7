"""Preference pairs, what a reward model learns from: how they are read and written. Needs no torch.

A pair is one line of JSON: `{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}`, where the prompt may also be a list
of chat messages. Pairs are made of trees in `cadre.advantages.preferences`; the model itself is
`cadre.engines.torch.reward_model`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cadre.data.jsonl import rows_of
from cadre.data.prompts import prompt_of
from cadre.errors import DataError, nearest
from cadre.types import Message

log = logging.getLogger("cadre.data")
FIELDS = ("prompt", "chosen", "rejected")


@dataclass(frozen=True)
class Pair:
    """Two answers to one conversation, the first preferred; `where` is the file and line it was read from."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    where: str = field(default="", compare=False)

    @property
    def opposite(self) -> Pair:
        """The pair that prefers the other answer."""
        return Pair(self.prompt, self.rejected, self.chosen)


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file, all of them checked; repeated ones count once. Raises DataError that names the first bad
    line, or two lines that prefer the opposite."""
    if not path.is_file():
        raise DataError(f"pairs: there is no file {path}; expected one JSON object a line. Fix the path.")
    lines: dict[Pair, int] = {}
    repeated = 0
    for number, raw in rows_of(path):
        pair = _pair(raw, f"pairs: {path}, line {number}")
        if before := lines.get(pair.opposite):
            raise DataError(
                f"pairs: {path}, line {number}: prefers the answer that line {before} rejects to the one that it "
                "chooses, of one prompt; expected one order. Remove one of the two lines."
            )
        repeated += pair in lines
        lines.setdefault(pair, number)
    if not lines:
        raise DataError(f"pairs: {path} is empty; expected one JSON object a line.")
    if repeated:
        log.warning("pairs: %s repeats %d of its pairs; each counts once.", path, repeated)
    return list(lines)


def _pair(raw: Mapping[str, Any], where: str) -> Pair:
    form = 'expected {"prompt": text or messages, "chosen": text, "rejected": text}'
    for key in raw:
        if key not in FIELDS:
            raise DataError(f"{where}: unknown key {key!r}; {form}. Remove it.{nearest(key, FIELDS)}")
    for key in FIELDS:
        if key not in raw:
            raise DataError(f"{where}: {key!r} is missing; {form}. Add it.")
    for key in ("chosen", "rejected"):
        if not isinstance(raw[key], str):
            raise DataError(f"{where}: {key} is {type(raw[key]).__name__}; expected a text. Fix the line.")
    if raw["chosen"] == raw["rejected"]:
        raise DataError(f"{where}: chosen and rejected are equal; expected two answers. Remove the line.")
    if not raw["chosen"].strip():
        raise DataError(f"{where}: chosen is blank; expected an answer. Fix or remove the line.")
    return Pair(prompt_of(raw["prompt"], where), raw["chosen"], raw["rejected"], where)


def line_of(pair: Pair) -> str:
    """A pair as `read_pairs` reads it."""
    prompt = [{"role": message.role, "content": message.content} for message in pair.prompt]
    return json.dumps({"prompt": prompt, "chosen": pair.chosen, "rejected": pair.rejected})
