"""How a model would read conversations: its chat template and its tokenizer, without its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer

from cadre.engines import hub, pictures
from cadre.engines.chat_template import Template
from cadre.engines.context import context_of
from cadre.engines.model_folder import reading
from cadre.types import Message, Tool


@dataclass(frozen=True)
class Preview:
    """A prompt as the model reads it. `left_out` are the places (from 0) of messages that the template drops."""

    text: str
    tokens: int
    left_out: tuple[int, ...]


class Previewer:
    """Owns the tokenizer of one model. `context` is the longest sequence that the model takes, None where unsaid."""

    def __init__(self, source: str) -> None:
        source = source if Path(source).is_dir() else hub.available(source)
        with reading(source, "tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(source)
            config = AutoConfig.from_pretrained(source)
        self.tokenizer, self.template = tokenizer, Template(tokenizer, pictures=pictures.of_model(source, tokenizer))
        self.context = context_of(config)

    def preview(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Preview:
        """The prompt that the model would go on from. Raises EngineError where the template refuses the messages, or
        leaves out parts of conversations with tools."""
        text = self.template.render(messages, generation=True, tools=tools)
        shown = [self.template.break_tokens(message.content, message.role).strip() for message in messages]
        left_out = [place for place, content in enumerate(shown) if content not in text]
        return Preview(text, len(self.template.prompt(messages, None, (), tools).ids), tuple(left_out))
