"""From chat messages to token ids and back, by the tokenizer's own chat template.

What a model sampled is never tokenised again: where a conversation extends one that it spoke in, the ids go on from
the sampled ones. Where the template rewrites what was said (it strips thinking, say), a fresh rendering starts.

What a message says stays text: an added token of the tokenizer that is spelled out in it (by a task, a tool, a model
that answers another) is broken by a space, `< |im_end|>`, so that nobody speaks in another's turn. A role's own earlier
words keep the tokens of thinking and of calls, which it may write.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cadre.engines import call_forms, control_tokens, tool_calls, tool_use
from cadre.engines.control_tokens import ControlTokens, map_strings, mark_edges
from cadre.engines.template_limits import render as render_template
from cadre.engines.tool_use import ToolUse
from cadre.errors import EngineError, PromptError, first_line
from cadre.settings.vision import VISION_MODELS
from cadre.types import History, Image, Message, PreviousTurn, Tool, ToolCall, images_of

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

# Ends of turns that no probe finds: Llama 3.1 writes the first after calls of its builtin tools alone.
CALL_ENDS = ("<|eom_id|>", "<|call|>")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    """The ids that a model continues, how they go on from its turn before (`Sample.history`), and its pictures."""

    ids: tuple[int, ...]
    history: History
    images: tuple[Image, ...] = ()


class Template:
    """The chat template of one tokenizer; built once per model, and immutable.

    Where the tokenizer has several templates by name, `tool_use` writes conversations with tools and `default` all
    others. `takes_system` tells whether it has a place for a system message; where it has none the system text is put
    before the first user message. `end_of_turn` is the id of the token that closes an assistant's turn, None where the
    template closes it with ordinary text. `extends` tells whether a plain answer stays in a later prompt as it was
    sampled; where it does not, every turn starts a new sequence, and the log says so once. `takes_tools` tells whether
    it writes tools; where it does not they are put in words. What else of tools it leaves out (`tool_use`) is put in
    words too, and the log says so once.

    `enable_thinking` is handed to templates that ask for it, and is off there by default. Raises EngineError where it
    is set and the template knows no such thing. `pictures` is how the model reads pictures, None for one that does not.
    """

    def __init__(self, tokenizer: Any, enable_thinking: bool | None = None, pictures: Pictures | None = None) -> None:
        self._tokenizer, self._pictures = tokenizer, pictures
        self._size = 1 + max(tokenizer.get_vocab().values(), default=-1)
        self._templates = _named_templates(tokenizer)
        self._options = _options(tokenizer, "\n".join(self._templates.values()), enable_thinking)
        self._control = ControlTokens(tokenizer)
        self._warned = False
        self.takes_system = self._writes([Message("system", PROBE), Message("user", "x")])
        self.end_of_turn = self._end_of_turn()
        self.extends = self._extends()
        if not self.extends:
            log.warning(
                "The chat template of %s rewrites earlier answers, so a later turn is a new training sequence.",
                tokenizer.name_or_path or "this model",
            )

    @property
    def takes_tools(self) -> bool:
        """Whether the template writes tools itself."""
        return self.tool_use.offers

    @cached_property
    def tool_use(self) -> ToolUse:
        """What the template does with tools; probed when first asked for."""
        declared = getattr(self._tokenizer, "response_template", None) is not None
        return tool_use.probe(self._try_to_write, self._completion, self._source(with_tools=True), declared)

    @cached_property
    def call_ends(self) -> frozenset[int]:
        """The ids of the tokens that close turns with calls and no others, such as gpt-oss' `<|call|>`."""
        use, source = self.tool_use, self._source(with_tools=True)
        ends = {token for token in CALL_ENDS if token in self._control.tokens and token in source}
        if use.calls:
            turns = [[tool_use.ASKED, Message("assistant", "", tool_use.CALLS[:count])] for count in (1, 2)]
            single, double = (self._try_to_write(turn, tool_use.TOOLS, False, use) or "" for turn in turns)
            last = max(self._control.find(single), default=None)
            # What is written after every call of a turn is a mark of calls.
            if last and not single[last[1] :].strip() and (not use.parallel or double.count(last[2]) == 1):
                ends.add(last[2])
        ends -= self._turn_tokens
        return frozenset(self._tokenizer.convert_tokens_to_ids(token) for token in ends)

    def check_kept(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> None:
        """Raise EngineError where the template leaves out messages of such a conversation. That of one with tools is
        checked when it is rendered."""
        if tools or _uses_tools(messages):
            return
        answered = any(message.role == "assistant" for message in messages)
        lost = self._lost_roles[answered] & {message.role for message in messages}
        if lost:
            raise EngineError(
                f"The chat template of {self._tokenizer.name_or_path or 'this model'} leaves out messages by "
                f"{', '.join(sorted(lost))}{' where there is an earlier answer' if answered else ''}; expected every "
                "message in the prompt. Take a model with another template, or a task whose prompts have no such "
                "messages."
            )

    @cached_property
    def _lost_roles(self) -> tuple[frozenset[str], frozenset[str]]:
        """Whose messages the template leaves out: before any answer, and after one."""
        first = [Message("system", "qzxsystem"), Message("user", "qzxfirst")]
        later = [*first, Message("assistant", "qzxanswer"), Message("user", "qzxsecond")]
        lost = []
        for talk in (first, later):
            text = self._try_to_write(talk, (), True, ToolUse())
            missing = {m.role for m in talk if text is not None and m.content not in text}
            lost.append(frozenset[str](missing))
        return lost[0], lost[1]

    def render(self, messages: Sequence[Message], generation: bool, tools: Sequence[Tool] = ()) -> str:
        """The conversation as text, with the opening of an assistant's turn where `generation`."""
        use = self._use_for(tools) if tools or _uses_tools(messages) else ToolUse()
        try:
            broken = [self._break_message(message) for message in messages]
            offered = [_map_tool(tool, self._control.break_up) for tool in tools]
            text = self._write(broken, offered, generation, use)
            if any(self._control.may_join(part) for part in _texts(broken, offered)):
                marked = self._write(
                    [_map_message(message, self._mark) for message in broken],
                    [_map_tool(tool, self._mark) for tool in offered],
                    generation,
                    use,
                )
                text = self._control.break_joined(text, marked)
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
        last = sample.token_ids[-1] if sample.token_ids else None
        # The turn is closed already, be it by another token. A token that opens the next turn stays.
        if more and last in stops and more[0] in {last, self.end_of_turn, *self.call_ends}:
            more = more[1:]
        return Prompt(sample.prompt_ids + sample.token_ids + more, history, sample.images + new)

    def prompt_ids(
        self, messages: Sequence[Message], previous: PreviousTurn | None, stops: Sequence[int]
    ) -> tuple[int, ...]:
        """The ids of the prompt alone, of a conversation without tools."""
        return self.prompt(messages, previous, stops).ids

    def said(self, prompt_ids: Sequence[int], token_ids: Sequence[int], tools: Sequence[Tool]) -> Message:
        """A completion, without its end-of-turn token, as a message with the calls of these tools that it makes.

        Without a call the message is the text as it stands, but for channels: of those it has what was said to others.
        """
        if token_ids and token_ids[-1] in (self.end_of_turn, self._tokenizer.eos_token_id):
            token_ids = token_ids[:-1]
        text = self.decode(token_ids)
        if self._has_channels and (channels := call_forms.read_channels(text)) is not None:
            if not channels.calls:
                return Message("assistant", channels.content)
            calls = [(name, _from_json(body)) for name, body in channels.calls]
            return self._with_calls(text, calls, channels.content, tools)
        if not tools:
            return Message("assistant", text)
        use, declared = self._use_for(tools), getattr(self._tokenizer, "response_template", None)
        if declared is not None and use.offers:
            try:
                parsed = self._tokenizer.parse_response(
                    self._tokenizer.decode(token_ids),
                    declared,
                    prefix=self._tokenizer.decode(prompt_ids),
                    tools=tool_calls.definitions(tools),
                )
            except (ValueError, RecursionError):  # malformed JSON, say: then it is what it looks like, a text
                return Message("assistant", text)
            return tool_calls.said(text, parsed, tools)
        if use.form is None:
            return Message("assistant", text)
        opening = self.decode(prompt_ids[-16:]).rstrip()
        _, answer = call_forms.split_thinking(text, call_forms.ends_in_thinking(opening))
        schemas = {tool.name: tool.parameters for tool in self._broken_names(tools)}
        read = use.form.read(answer, schemas)
        if not answer and text.strip():  # thinking without an end: calls are none, but where there is nothing else
            read = use.form.read(text, schemas)
            read = read if read and not read[1] else None
        if not read:
            return Message("assistant", text)
        return self._with_calls(text, *read, tools)

    def has_message(self, text: str) -> bool:
        """Whether a completion's text is not the message that it is, as it says parts of it in channels."""
        return self._has_channels and call_forms.read_channels(text) is not None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a completion, with the special tokens that are in it, and without ids that the tokenizer does
        not have: models often have more embeddings than it has tokens."""
        known = [token for token in token_ids if token < self._size]
        return self._tokenizer.decode(known, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def token(self, token_id: int) -> str:
        """The token of an id, as the tokenizer spells it."""
        return str(self._tokenizer.convert_ids_to_tokens(token_id))

    def turn_token(self, text: str) -> str:
        """The first token spelled out in the text that no answer may have, as it begins or ends turns or texts; "" for
        none."""
        own = self._own_answer_tokens
        return next((token for _, _, token in self._control.find(text) if token not in own), "")

    def break_tokens(self, text: str, role: str = "user") -> str:
        """The text as a message by `role` has it in a prompt: broken where it spells out control tokens."""
        if not self._control.find(text):
            return text
        return self._control.break_up(text, self._own_tokens if role == "assistant" else ())

    def answer_ids(self, text: str) -> tuple[int, ...]:
        """The ids of an answer in which no token begins or ends a turn; tokens of thinking and calls are read."""
        if self.turn_token(text):
            return self.plain_ids(text)
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def plain_ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text in which no control token is read: as it stands where the tokenizer can do that, else
        broken up."""
        spelt = tuple(self._tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)
        if not self._control.in_ids(spelt):
            return spelt
        return tuple(self._tokenizer(self._control.break_up(text), add_special_tokens=False).input_ids)

    def tokenizer_to_save(self) -> Any:
        """The tokenizer with the template as it is used here: `apply_chat_template` of what it saves renders what was
        trained on, where nobody asks for something else."""
        written = copy.copy(self._tokenizer)
        usual = "".join(
            f"{{%- if {name} is not defined %}}{{%- set {name} = {str(value).lower()} %}}{{%- endif %}}"
            for name, value in self._options.items()
        )
        templates = {name: usual + text.removeprefix(usual) for name, text in self._templates.items()}
        written.chat_template = templates if len(templates) > 1 else templates["default"]
        return written

    def _encode(self, text: str, images: Sequence[Image] = ()) -> tuple[int, ...]:
        if self._pictures is not None:
            text = self._pictures.expanded(text, images)
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _use_for(self, tools: Sequence[Tool]) -> ToolUse:
        """How a conversation with these tools, or with calls and without tools, is written."""
        use = self.tool_use
        if not use.keeps:
            raise EngineError(
                f"The chat template of {self._tokenizer.name_or_path or 'this model'} leaves out parts of a "
                "conversation with tools (a call, what it returned, or what was said before), written by itself and in "
                "words; expected all of it in the prompt. Take a model with another template, or a task without tools."
            )
        if use.warning and not self._warned:
            self._warned = True
            log.warning("The chat template of %s %s.", self._tokenizer.name_or_path or "this model", use.warning)
        in_words = (not tools and not use.bare) or (len(tools) > 1 and not use.several)
        return tool_use.IN_WORDS if in_words else use

    def _source(self, with_tools: bool) -> str:
        """The template that writes conversations with or without tools."""
        return self._templates["tool_use" if with_tools and "tool_use" in self._templates else "default"]

    def _write(self, messages: Sequence[Message], tools: Sequence[Tool], generation: bool, use: ToolUse) -> str:
        """The conversation as text, tools used in this way; nothing is broken up. Raises what the template does."""
        told, options, beside = list(messages), dict[str, Any](self._options), list[tuple[str, Message]]()
        with_tools = use.offers and (bool(tools) or _uses_tools(messages))
        if not use.offers:
            told = tool_calls.in_words(told, tools)
        if use.calls and not use.parallel:
            told = tool_calls.in_sequence(told)
        if not use.calls:
            told = [tool_calls.call_in_words(message) for message in told]
        if not use.results:
            told = [tool_calls.result_in_words(message) for message in told]
            told = told if self._takes_two_users else _join_users(told)
        if use.calls and not use.beside and self._has_channels:
            told = tool_calls.text_before_calls(told)
        elif use.calls and not use.beside:
            beside = [(m.content, replace(m, content="")) for m in told if m.tool_calls and m.content]
            told = [replace(m, content="") if m.tool_calls else m for m in told]
        if tools and use.offers:
            options["tools"] = tool_calls.definitions(tools)
            if use.system == "needed" and told[0].role != "system":
                told = [Message("system", ""), *told]
        told = self._merged(told, self.takes_system and not (with_tools and use.system == "dropped"))
        written = self._as_dicts(told, use)
        source = self._source(with_tools)
        text = render_template(
            self._tokenizer, written, add_generation_prompt=generation, chat_template=source, **options
        )
        place = 0
        for content, message in beside:
            # What was said beside a call and is left out: put before the call as it is written.
            call = self._completion([Message("user", "x"), message], tools, use)
            place = text.find(call, place) if call else -1
            if place < 0:
                raise ValueError("the text beside a tool call would be left out")
            text = f"{text[:place]}{content}\n{text[place:]}"
            place += len(content) + 1 + len(call)
        return text

    def _try_to_write(
        self, messages: Sequence[Message], tools: Sequence[Tool], generation: bool, use: ToolUse
    ) -> str | None:
        """The same, None where the template refuses it."""
        try:
            return self._write(messages, tools, generation, use)
        except EngineError:
            raise
        except Exception:  # noqa: BLE001 - as in render
            return None

    def _completion(self, messages: Sequence[Message], tools: Sequence[Tool], use: ToolUse) -> str:
        """What the template writes for the last message, an assistant's, after the opening of its turn and without the
        end of it; "" where it refuses the conversation."""
        whole = self._try_to_write(messages, tools, False, use)
        opened = self._try_to_write(messages[:-1], tools, True, use)
        plain = self._try_to_write([*messages[:-1], Message("assistant", PROBE)], tools, False, use)
        if whole is None or opened is None:
            return ""
        before, _, after = (plain or "").partition(PROBE)
        openings = [opened, before, call_forms.without_thinking(before), call_forms.without_thinking(opened)]
        start = max((len(one) for one in openings if one and whole.startswith(one)), default=0)
        if not start:
            start = next((n for n, (a, b) in enumerate(zip(whole, opened, strict=False)) if a != b), len(opened))
            start = min(start, len(whole))
            start -= len(whole[:start]) - len(whole[:start].rpartition(">")[0]) - 1 if ">" in whole[:start] else 0
        text = whole[start:]
        text = text.removesuffix(after) if after else text
        while last := next((end for *_, end in self._control.find(text.rstrip()[-80:])[-1:]), ""):
            if last not in self._turn_tokens or not text.rstrip().endswith(last):
                break
            text = text.rstrip().removesuffix(last)
        return text.strip("\n ") if text.strip() else ""

    def _as_dicts(self, messages: Sequence[Message], use: ToolUse) -> list[dict[str, Any]]:
        """The messages as the template takes them. Raises EngineError for pictures that the model does not read."""

        def id_of(call: ToolCall, number: int) -> str:
            return tool_use.id_for(use.ids, call, number)

        plain = tool_calls.as_dicts(messages, use.text, id_of)
        if self._has_channels:
            plain = [_in_channels(one) for one in plain]
        if self._pictures is not None:
            return [{**one, "content": self._pictures.in_parts(m)} for one, m in zip(plain, messages, strict=True)]
        if count := len(images_of(messages)):
            raise EngineError(
                f"A conversation holds {count} picture(s), and {self._tokenizer.name_or_path or 'the model'} is read "
                f"as text alone here; expected a model of the type {', '.join(VISION_MODELS)}, sampled by torch. Name "
                "one in team.policies, or take the environment's form in text."
            )
        return plain

    def _break_message(self, message: Message) -> Message:
        """The message with every string in it broken where it spells out control tokens."""
        if message.role == "assistant":
            whole = _map_message(message, self._control.break_up)
            if self._has_channels and call_forms.read_channels(message.content) is not None:
                return replace(whole, content=message.content)  # taken apart by `_in_channels`
            return replace(whole, content=self.break_tokens(message.content, "assistant"))
        return _map_message(message, self._control.break_up)

    def _mark(self, text: str) -> str:
        return mark_edges(text) if self._control.may_join(text) else text

    def _broken_names(self, tools: Sequence[Tool]) -> list[Tool]:
        """The tools by the names that the prompt has for them."""
        return [_map_tool(tool, self._control.break_up) for tool in tools]

    def _with_calls(self, text: str, calls: Sequence[call_forms.Call], content: str, tools: Sequence[Tool]) -> Message:
        """The message with these calls, by the names that the tools really have; the text where one is no call."""
        parsed = {"tool_calls": [{"function": {"name": n, "arguments": a}} for n, a in calls], "content": content}
        message = tool_calls.said(text, parsed, self._broken_names(tools))
        real = dict(zip((tool.name for tool in self._broken_names(tools)), (tool.name for tool in tools), strict=True))
        return replace(message, tool_calls=tuple(replace(c, name=real[c.name]) for c in message.tool_calls))

    @cached_property
    def _has_channels(self) -> bool:
        """Whether the model speaks in channels, as gpt-oss does."""
        return all(mark in self._control.tokens for mark in (call_forms.CHANNEL, call_forms.MESSAGE))

    @cached_property
    def _turn_tokens(self) -> frozenset[str]:
        """The tokens that the template writes around messages, and those of whole texts."""
        use = ToolUse()
        turns = [Message("system", PROBE), *(Message(role, PROBE) for role in ("user", "assistant", "user"))]  # type: ignore[arg-type]
        shown = "".join(self._try_to_write(turns[n:], (), False, use) or "" for n in (0, 1))
        found = {token for _, _, token in self._control.find(shown)}
        named = {self._tokenizer.bos_token, self._tokenizer.eos_token, self._tokenizer.pad_token}
        return frozenset({mark for mark in found | named if mark and not control_tokens.THINKING.fullmatch(mark)})

    @cached_property
    def _own_tokens(self) -> frozenset[str]:
        """The tokens that a role's own earlier words keep: those of thinking and calls, and others that are not special
        and stand around no turn."""
        marks = self.tool_use.form.marks if self.tool_use.form is not None else ""
        ends = self._turn_tokens
        return frozenset(
            token
            for token in self._control.tokens
            if control_tokens.THINKING.fullmatch(token)
            or (token not in ends and (token not in self._control.special or token in marks) and not _is_result(token))
        )

    @cached_property
    def _own_answer_tokens(self) -> frozenset[str]:
        """The tokens that an answer may have: the same, and those of channels but for the ones that end a turn."""
        channels = {call_forms.CHANNEL, call_forms.MESSAGE, call_forms.START, "<|end|>", "<|constrain|>"}
        return self._own_tokens | (channels if self._has_channels else set())

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
        said = self.break_tokens(previous.sample.text, "assistant")
        for content in (said, said.strip()):
            if text.startswith(before + content):
                return text[len(before + content) :], "clean"
        return self._realigned(before, messages, previous, tools), "realigned"

    def _realigned(
        self, before: str, messages: Sequence[Message], previous: PreviousTurn, tools: Sequence[Tool]
    ) -> str | None:
        """What follows a turn with tool calls, which templates and programs write in their own way: it is cut out by a
        stand-in. None where it cannot be, and where thinking is to be left out."""
        has_calls = previous.sample.message and previous.sample.message.tool_calls
        if not has_calls or call_forms.THINK_CLOSE.search(previous.sample.text):
            return None
        stand_in = list(messages)
        stand_in[len(previous.messages)] = Message("assistant", PROBE)
        try:
            text = self.render(stand_in, generation=True, tools=tools)
        except EngineError:
            return None
        return text[len(before + PROBE) :] if text.startswith(before + PROBE) else None

    def _merged(self, messages: Sequence[Message], takes_system: bool) -> list[Message]:
        """The messages, a leading system text put into the first user message where the template takes none."""
        if takes_system or not messages or messages[0].role != "system":
            return list(messages)
        system, *others = messages
        if others and others[0].role == "user":
            images = system.images + others[0].images
            return [Message("user", f"{system.content}\n\n{others[0].content}", images=images), *others[1:]]
        return [Message("user", system.content, images=system.images), *others]

    def _writes(self, messages: Sequence[Message]) -> bool:
        """Whether the template takes the messages as they are, and writes the probe that is in one of them."""
        self.takes_system = True
        text = self._try_to_write(messages, (), False, ToolUse())
        return text is not None and PROBE in text

    @cached_property
    def _takes_two_users(self) -> bool:
        """Whether one user message may follow another."""
        turns = [Message("user", "x"), Message("assistant", "y"), Message("user", "x"), Message("user", PROBE)]
        return PROBE in (self._try_to_write(turns, (), True, ToolUse()) or "")

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


def _named_templates(tokenizer: Any) -> dict[str, str]:
    """The templates of a tokenizer by name, one of them `default`. Raises EngineError where none can be."""
    written = tokenizer.chat_template or PLAIN
    if isinstance(written, list | tuple):
        written = {entry["name"]: entry["template"] for entry in written}
    if isinstance(written, dict) and "default" not in written:
        others = {name: text for name, text in written.items() if name != "tool_use"}
        if len(others) > 1:
            raise EngineError(
                f"The tokenizer of {tokenizer.name_or_path or 'this model'} has the chat templates "
                f"{', '.join(sorted(written))} and none that is called default; expected one for conversations without "
                "tools. Name it default in tokenizer_config.json, or write it to chat_template.jinja."
            )
        written = {**written, "default": next(iter((others or written).values()))}
    tokenizer.chat_template = written
    return {"default": written} if isinstance(written, str) else dict(written)


def _uses_tools(messages: Sequence[Message]) -> bool:
    return any(message.tool_calls or message.role == "tool" for message in messages)


def _map_message(message: Message, change: Callable[[str], str]) -> Message:
    """The message with all its strings changed, those within the arguments of calls too; ids stay apart from each
    other."""
    calls = tuple(
        ToolCall(change(call.id), change(call.name), tool_calls.map_arguments(call, change))
        for call in message.tool_calls
    )
    return replace(
        message, content=change(message.content), tool_calls=calls, tool_call_id=change(message.tool_call_id)
    )


def _map_tool(tool: Tool, change: Callable[[str], str]) -> Tool:
    return Tool(change(tool.name), change(tool.description), map_strings(tool.parameters, change))


def _texts(messages: Sequence[Message], tools: Sequence[Tool]) -> list[str]:
    """All strings of a conversation and of the tools that it offers."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    for message in messages:
        _map_message(message, keep)
    for tool in tools:
        _map_tool(tool, keep)
    return found


def _join_users(messages: Sequence[Message]) -> list[Message]:
    """The conversation with neighbouring messages by the user in one."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is not None and last.role == message.role == "user":
            images = last.images + message.images
            joined[-1] = Message("user", f"{last.content}\n{message.content}", images=images)
        else:
            joined.append(message)
    return joined


def _in_channels(entry: dict[str, Any]) -> dict[str, Any]:
    """A message as templates with channels take it: what was thought apart from what was said."""
    if entry["role"] != "assistant" or (channels := call_forms.read_channels(entry["content"])) is None:
        return entry
    return {**entry, "content": channels.content, **({"thinking": channels.thinking} if channels.thinking else {})}


def _from_json(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def _is_result(token: str) -> bool:
    return any(word in token.lower() for word in ("response", "result", "output"))


def _options(tokenizer: Any, source: str, enable_thinking: bool | None) -> dict[str, bool]:
    """What the template is rendered with beside the messages."""
    if "enable_thinking" in source:
        return {"enable_thinking": bool(enable_thinking)}
    if enable_thinking is not None:
        raise EngineError(
            f"enable_thinking: got {str(enable_thinking).lower()}, but the chat template of "
            f"{tokenizer.name_or_path or 'this model'} does not ask for it; expected a model that can be told, such as "
            "Qwen3. Remove the setting from the policy."
        )
    return {}
