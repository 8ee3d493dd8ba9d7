"""Conversations with the answer that a model should have given, as token ids: what supervised learning is told."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AutoConfig, AutoTokenizer

from cadre.engines.chat_template import Template
from cadre.engines.context import context_of
from cadre.types import Message


class AnswerEncoder:
    """The tokenizer and chat template of one model. `model` is a folder or a hub name that is known to be there.
    `context` is the longest sequence that it takes, None where it does not say."""

    def __init__(self, model: str, enable_thinking: bool | None = None, trust_remote_code: bool = False) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
        self._template = Template(self._tokenizer, enable_thinking)
        self.context = context_of(AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code))

    def encode(self, prompt: Sequence[Message], answer: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(ids of the prompt, ids of the answer with the token that ends its turn): as sampling would have them."""
        answered = tuple(self._tokenizer(answer, add_special_tokens=False).input_ids)
        end = self._template.end_of_turn
        return self._template.prompt_ids(prompt, None, ()), (
            *answered,
            self._tokenizer.eos_token_id if end is None else end,
        )
