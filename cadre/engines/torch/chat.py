"""From chat messages to token ids and back, by the tokenizer's own chat template.

What a model sampled is never tokenised again: where a conversation extends one that it spoke in, the ids go on from
the sampled ones. Where the template rewrites what was said (it strips thinking, say), a fresh rendering starts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from cadre.errors import EngineError
from cadre.types import Message, Said

# For tokenizers without a template: every turn under a heading, an assistant's turn ended by the end-of-sequence token.
PLAIN = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{{ message.role | capitalize }}:\n{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)

PROBE = "qzx"

log = logging.getLogger(__name__)


class Template:
    """The chat template of one tokenizer; built once per model, and immutable.

    `takes_system` tells whether it has a place for a system message; where it has none the system text is put before
    the first user message. `end_of_turn` is the id of the token that closes an assistant's turn, None where the
    template closes it with ordinary text. `extends` tells whether a plain answer stays in a later prompt as it was
    sampled; where it does not, every turn starts a new sequence, and the log says so once.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        if tokenizer.chat_template is None:
            tokenizer.chat_template = PLAIN
        self._options = {"enable_thinking": False} if "enable_thinking" in tokenizer.get_chat_template() else {}
        self.takes_system = self._takes_system()
        self.end_of_turn = self._end_of_turn()
        self.extends = self._extends()
        if not self.extends:
            log.warning(
                "The chat template of %s rewrites earlier answers, so a later turn is a new training sequence.",
                tokenizer.name_or_path or "this model",
            )

    def render(self, messages: Sequence[Message], generation: bool) -> str:
        """The conversation as text, with the opening of an assistant's turn where `generation`."""
        plain = [{"role": message.role, "content": message.content} for message in self._merged(messages)]
        try:
            return self._tokenizer.apply_chat_template(
                plain, tokenize=False, add_generation_prompt=generation, **self._options
            )
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise EngineError(
                f"The model's chat template refuses the conversation: {error}. Got messages by {roles}; most templates "
                "expect an optional system message, then user and assistant in turn. Change what observe() returns."
            ) from error

    def prompt_ids(self, messages: Sequence[Message], said: Said | None, stops: Sequence[int]) -> tuple[int, ...]:
        """The ids that the model continues. Goes on from the ids of `said` where the conversation extends it."""
        text = self.render(messages, generation=True)
        rest = None if said is None else self._after(text, messages, said)
        if said is None or rest is None:
            return self._encode(text)
        more = self._encode(rest)
        ended = said.sample.finish == "stop"
        if ended and more and more[0] in stops:
            more = more[1:]
        return said.sample.prompt_ids + said.sample.token_ids + more

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a completion, without special tokens."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _after(self, text: str, messages: Sequence[Message], said: Said) -> str | None:
        """What `text` has after the turn that was sampled, or None where it does not extend that turn."""
        seen = len(said.messages)
        extends = (
            tuple(messages[:seen]) == said.messages
            and len(messages) > seen + 1
            and messages[seen] == Message("assistant", said.sample.text)
        )
        if not (extends and self.extends):
            return None
        before = self.render(said.messages, generation=True)
        # Many templates trim what was said; the ids keep it as it was sampled.
        for content in (said.sample.text, said.sample.text.strip()):
            if text.startswith(before + content):
                return text[len(before + content) :]
        return None

    def _merged(self, messages: Sequence[Message]) -> list[Message]:
        """The messages, a leading system text put into the first user message where the template takes none."""
        if self.takes_system or not messages or messages[0].role != "system":
            return list(messages)
        system, *others = messages
        if others and others[0].role == "user":
            return [Message("user", f"{system.content}\n\n{others[0].content}"), *others[1:]]
        return [Message("user", system.content), *others]

    def _takes_system(self) -> bool:
        probe = [{"role": "system", "content": PROBE}, {"role": "user", "content": "x"}]
        try:
            return PROBE in self._tokenizer.apply_chat_template(probe, tokenize=False, **self._options)
        except TemplateError:
            return False

    def _extends(self) -> bool:
        first = [Message("user", "x")]
        later = [*first, Message("assistant", PROBE), Message("user", "y")]
        try:
            return self.render(later, generation=True).startswith(self.render(first, generation=True) + PROBE)
        except EngineError:
            return False

    def _end_of_turn(self) -> int | None:
        text = self.render([Message("user", "x"), Message("assistant", PROBE)], generation=False)
        after = self._encode(text.partition(PROBE)[2])
        special = set(self._tokenizer.all_special_ids) | set(self._tokenizer.added_tokens_decoder)
        return after[0] if after and after[0] in special else None
