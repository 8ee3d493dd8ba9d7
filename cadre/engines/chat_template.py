"""From chat messages to token ids and back, by the tokenizer's own chat template.

What a model sampled is never tokenised again: where a conversation extends one that it spoke in, the ids go on from
the sampled ones. Where the template rewrites what was said (it strips thinking, say), a fresh rendering starts.

What a message says stays text: a token that begins or ends turns and is spelled out in it (by a model that answers
another, say) is broken by a space, `< |im_end|>`, so that nobody speaks in another's turn.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cadre.engines import tool_calls
from cadre.engines.template_limits import render
from cadre.errors import EngineError, PromptError, first_line
from cadre.settings.vision import VISION_MODELS
from cadre.types import History, Image, Message, PreviousTurn, Tool, images_of

if TYPE_CHECKING:
    from cadre.engines.pictures import Pictures

# For tokenizers without a template: every turn under a heading, an assistant's turn ended by the end-of-sequence token.
PLAIN = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{{ message.role | capitalize }}:\n{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)

PROBE = "qzx"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    """The ids that a model continues, how they go on from its turn before (`Sample.history`), and its pictures."""

    ids: tuple[int, ...]
    history: History
    images: tuple[Image, ...] = ()


class Template:
    """The chat template of one tokenizer; built once per model, and immutable.

    `takes_system` tells whether it has a place for a system message; where it has none the system text is put before
    the first user message. `end_of_turn` is the id of the token that closes an assistant's turn, None where the
    template closes it with ordinary text. `extends` tells whether a plain answer stays in a later prompt as it was
    sampled; where it does not, every turn starts a new sequence, and the log says so once. `takes_tools` tells whether
    it writes tools; where it does not they are put in words.

    `enable_thinking` is handed to templates that ask for it, and is off there by default. Raises EngineError where it
    is set and the template knows no such thing. `pictures` is how the model reads pictures, None for one that does not.
    """

    def __init__(self, tokenizer: Any, enable_thinking: bool | None = None, pictures: Pictures | None = None) -> None:
        self._tokenizer, self._pictures = tokenizer, pictures
        if tokenizer.chat_template is None:
            tokenizer.chat_template = PLAIN
        self._options = _options(tokenizer, enable_thinking)
        self._turns: re.Pattern[str] | None = None
        self.takes_system = self._takes_system()
        self.takes_tools = self._takes_tools()
        self.end_of_turn = self._end_of_turn()
        self.extends = self._extends()
        self._turns = self._turn_tokens()
        if not self.extends:
            log.warning(
                "The chat template of %s rewrites earlier answers, so a later turn is a new training sequence.",
                tokenizer.name_or_path or "this model",
            )

    def render(self, messages: Sequence[Message], generation: bool, tools: Sequence[Tool] = ()) -> str:
        """The conversation as text, with the opening of an assistant's turn where `generation`."""
        told = messages if self.takes_tools else tool_calls.in_words(messages, tools)
        options: dict[str, Any] = dict(self._options)
        if tools and self.takes_tools:
            options["tools"] = tool_calls.definitions(tools)
        written = self._as_dicts(self._merged(told))
        try:
            text = render(self._tokenizer, written, add_generation_prompt=generation, **options)
            text.encode()  # half a character is none
            return text
        except EngineError:
            raise
        except Exception as error:
            roles = ", ".join(message.role for message in messages)
            raise PromptError(
                f"The model's chat template refuses the conversation: {first_line(error)}. Got messages by {roles}; "
                "most templates expect an optional system message, then user and assistant in turn. Change what "
                "observe() returns."
            ) from error

    def prompt(
        self,
        messages: Sequence[Message],
        previous: PreviousTurn | None,
        stops: Sequence[int],
        tools: Sequence[Tool] = (),
    ) -> Prompt:
        """What the model continues. Goes on from the ids of `previous` where the conversation extends it."""
        text, images = self.render(messages, generation=True, tools=tools), images_of(messages)
        if previous is None:
            return Prompt(self._encode(text, images), "first", images)
        rest, history = self._after(text, messages, previous, tools)
        if rest is None:
            return Prompt(self._encode(text, images), "new", images)
        sample, new = previous.sample, images_of(messages[len(previous.messages) :])
        more = self._encode(rest, new)
        if more and more[0] in stops and sample.token_ids[-1:] and sample.token_ids[-1] in stops:
            more = more[1:]
        return Prompt(sample.prompt_ids + sample.token_ids + more, history, sample.images + new)

    def prompt_ids(
        self, messages: Sequence[Message], previous: PreviousTurn | None, stops: Sequence[int]
    ) -> tuple[int, ...]:
        """The ids of the prompt alone, of a conversation without tools."""
        return self.prompt(messages, previous, stops).ids

    def said(self, prompt_ids: Sequence[int], token_ids: Sequence[int], tools: Sequence[Tool]) -> Message:
        """A completion, without its end-of-turn token, as a message with the calls of these tools that it makes."""
        text, schema = self.decode(token_ids), self._response_template()
        if schema is None:
            return Message("assistant", text)
        try:
            parsed = self._tokenizer.parse_response(
                self._tokenizer.decode(token_ids),
                schema,
                prefix=self._tokenizer.decode(prompt_ids),
                tools=tool_calls.definitions(tools),
            )
        except (ValueError, RecursionError):  # malformed JSON, say: then it is what it looks like, a text
            return Message("assistant", text)
        return tool_calls.said(text, parsed, tools)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a completion, without special tokens."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def turn_token(self, text: str) -> str:
        """The first token spelled out in the text that begins or ends turns; "" for none."""
        found = self._turns and self._turns.search(text)
        return found[0] if found else ""

    def _encode(self, text: str, images: Sequence[Image] = ()) -> tuple[int, ...]:
        if self._pictures is not None:
            text = self._pictures.expanded(text, images)
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _as_dicts(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages as the template takes them. Raises EngineError for pictures that the model does not read."""
        plain = tool_calls.as_dicts(messages)
        if self._pictures is not None:
            plain = [{**one, "content": self._pictures.in_parts(m)} for one, m in zip(plain, messages, strict=True)]
        elif count := len(images_of(messages)):
            raise EngineError(
                f"A conversation holds {count} picture(s), and {self._tokenizer.name_or_path or 'the model'} is read "
                f"as text alone here; expected a model of the type {', '.join(VISION_MODELS)}, sampled by torch. Name "
                "one in team.policies, or take the environment's form in text."
            )
        return self._as_text(plain)

    def _as_text(self, value: Any) -> Any:
        """The same with all strings in it broken where they spell out tokens that begin or end turns."""
        if isinstance(value, str):
            return self._turns.sub(lambda token: f"{token[0][0]} {token[0][1:]}", value) if self._turns else value
        if isinstance(value, dict):
            return {key: self._as_text(below) for key, below in value.items()}
        return [self._as_text(below) for below in value] if isinstance(value, list) else value

    def _after(
        self, text: str, messages: Sequence[Message], previous: PreviousTurn, tools: Sequence[Tool]
    ) -> tuple[str | None, History]:
        """What `text` has after the turn that was sampled, or None where it does not extend that turn."""
        seen = len(previous.messages)
        if self._pictures is not None and self._pictures.token in previous.sample.token_ids:
            return None, "new"  # what was said must not be taken for a picture
        extends = (
            tuple(messages[:seen]) == previous.messages
            and tuple(tools) == previous.tools
            and len(messages) > seen + 1
            and tool_calls.is_turn(messages[seen], previous.sample)
        )
        if not (extends and self.extends):
            return None, "new"
        before = self.render(previous.messages, generation=True, tools=tools)
        # Many templates trim what was said; the ids keep it as it was sampled.
        said = self._as_text(previous.sample.text)
        for content in (said, said.strip()):
            if text.startswith(before + content):
                return text[len(before + content) :], "clean"
        return self._realigned(before, messages, previous, tools), "realigned"

    def _realigned(
        self, before: str, messages: Sequence[Message], previous: PreviousTurn, tools: Sequence[Tool]
    ) -> str | None:
        """What follows a turn with tool calls, which templates and programs write in their own way: it is cut out by a
        stand-in. None where it cannot be, and where thinking is to be left out."""
        if not (previous.sample.message and previous.sample.message.tool_calls) or "</think>" in previous.sample.text:
            return None
        stand_in = list(messages)
        stand_in[len(previous.messages)] = Message("assistant", PROBE)
        try:
            text = self.render(stand_in, generation=True, tools=tools)
        except EngineError:
            return None
        return text[len(before + PROBE) :] if text.startswith(before + PROBE) else None

    def _merged(self, messages: Sequence[Message]) -> list[Message]:
        """The messages, a leading system text put into the first user message where the template takes none."""
        if self.takes_system or not messages or messages[0].role != "system":
            return list(messages)
        system, *others = messages
        if others and others[0].role == "user":
            images = system.images + others[0].images
            return [Message("user", f"{system.content}\n\n{others[0].content}", images=images), *others[1:]]
        return [Message("user", system.content, images=system.images), *others]

    def _takes_system(self) -> bool:
        return self._writes_probe([Message("system", PROBE), Message("user", "x")])

    def _takes_tools(self) -> bool:
        return self._writes_probe([Message("user", "x")], tools=tool_calls.definitions([Tool(PROBE)]))

    def _writes_probe(self, messages: Sequence[Message], **options: Any) -> bool:
        """Whether the template takes the messages, and writes the probe that is somewhere in them or in the options."""
        written, options = self._as_dicts(messages), {**options, **self._options}
        try:
            return PROBE in render(self._tokenizer, written, **options)
        except EngineError:
            raise
        except Exception:  # noqa: BLE001 - as in render
            return False

    def _response_template(self) -> Any:
        """How answers are read: the tokenizer's own way, or that of templates which write calls as Qwen's do, or that
        in which they were asked for in words; None where nobody knows."""
        declared = getattr(self._tokenizer, "response_template", None)
        if declared is not None or (self.takes_tools and tool_calls.OPEN not in self._tokenizer.get_chat_template()):
            return declared
        asked = [Message("user", "x")]
        opening = self.render(asked, generation=True).removeprefix(self.render(asked, generation=False))
        return tool_calls.hermes(opening.partition("<think>")[0] or PROBE)

    def _extends(self) -> bool:
        first = [Message("user", "x")]
        later = [*first, Message("assistant", PROBE), Message("user", "y")]
        try:
            return self.render(later, generation=True).startswith(self.render(first, generation=True) + PROBE)
        except EngineError:
            return False

    def _turn_tokens(self) -> re.Pattern[str] | None:
        """What finds the special tokens that the template writes around messages, and those of whole texts."""
        special = {str(added) for added in self._tokenizer.added_tokens_decoder.values() if added.special}
        turns = [Message("user", PROBE), Message("assistant", PROBE), Message("user", PROBE)]
        try:
            shown = self.render(turns, generation=True)
        except EngineError:
            shown = ""  # a template for something else than conversations
        marks = {mark for mark in special if mark in shown}
        marks |= {self._tokenizer.bos_token, self._tokenizer.eos_token} - {None}
        longest_first = sorted((mark for mark in marks if len(mark) > 1), key=lambda mark: (-len(mark), mark))
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def _end_of_turn(self) -> int | None:
        text = self.render([Message("user", "x"), Message("assistant", PROBE)], generation=False)
        after = self._encode(text.partition(PROBE)[2])
        special = set(self._tokenizer.all_special_ids) | set(self._tokenizer.added_tokens_decoder)
        return after[0] if after and after[0] in special else None


def _options(tokenizer: Any, enable_thinking: bool | None) -> dict[str, bool]:
    """What the template is rendered with beside the messages."""
    if "enable_thinking" in tokenizer.get_chat_template():
        return {"enable_thinking": bool(enable_thinking)}
    if enable_thinking is not None:
        raise EngineError(
            f"enable_thinking: got {str(enable_thinking).lower()}, but the chat template of "
            f"{tokenizer.name_or_path or 'this model'} does not ask for it; expected a model that can be told, such as "
            "Qwen3. Remove the setting from the policy."
        )
    return {}
