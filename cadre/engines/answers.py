"""Conversations with the answer that a model should have given, as token ids: what supervised learning and reward
models are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from transformers import AutoConfig, AutoTokenizer

from cadre.engines.chat_template import Template
from cadre.engines.context import context_of
from cadre.types import Message


class AnswerEncoder:
    """How answers to conversations are written for one model. `context` is the longest sequence that it takes, None
    where it does not say."""

    def __init__(self, tokenizer: Any, context: int | None, enable_thinking: bool | None = None) -> None:
        self._tokenizer, self.context = tokenizer, context
        self._template = Template(tokenizer, enable_thinking)

    @classmethod
    def of(cls, model: str, enable_thinking: bool | None = None, trust_remote_code: bool = False) -> Self:
        """That of a folder, or of a hub name that is known to be there; no weights are read."""
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
        config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
        return cls(tokenizer, context_of(config), enable_thinking)

    def turn_token(self, answer: str) -> str:
        """The first token spelled out in the answer that begins or ends turns or texts; "" for none. It has to be left
        out of an answer that is encoded: sampling would have ended there."""
        return self._template.turn_token(answer)

    def encode(self, prompt: Sequence[Message], answer: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(ids of the prompt, ids of the answer with the token that ends its turn): as sampling would have them."""
        self._template.check_kept(prompt)
        end = self._template.end_of_turn
        ended = self._tokenizer.eos_token_id if end is None else end
        said = self._tokenizer(answer, add_special_tokens=False).input_ids
        return self._template.prompt_ids(prompt, None, ()), (*said, ended)

    def scored(self, prompt: Sequence[Message], answer: str) -> tuple[int, ...]:
        """The ids of both as one sequence, with the token that ends a turn where the template has one. What the answer
        says is text throughout: an end of turn that it spells out ends nothing, and no added token comes of it."""
        self._template.check_kept(prompt)
        end = self._template.end_of_turn
        closed = () if end is None else (end,)
        said = self._template.plain_ids(answer)
        return (*self._template.prompt_ids(prompt, None, ()), *said, *closed)
