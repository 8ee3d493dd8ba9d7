"""Convert chat messages to token ids and back, with the tokenizer's own chat template.

Sampled tokens are never tokenised again: where a conversation extends an earlier turn of the model, its prompt
continues the sampled ids. Where the template rewrites that turn (it strips thinking, say), all is rendered anew.

The content of a message stays text: a control token of the tokenizer that is spelled out in it is broken by a space,
`< |im_end|>`, so that nobody speaks in another's turn. A role's own words keep the tokens of thinking and of calls.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadre.engines.model_folder import wrap_load_errors
from cadre.engines.text import calls as call_forms
from cadre.engines.text import tokens as control_tokens
from cadre.engines.text import tools as tool_calls
from cadre.engines.text.calls import Call
from cadre.engines.text.tokens import ControlTokens, map_strings, mark_edges
from cadre.engines.text.tools import AS_TEXT, QUESTION, ToolUse
from cadre.errors import EngineError, PromptError, first_line
from cadre.settings.models import AUDIO_MODELS, VISION_MODELS
from cadre.types import History, Image, Media, Message, PreviousTurn, Tool, ToolCall, join_media, media_of

if TYPE_CHECKING:
    from cadre.engines.media import MediaProcessor

# For tokenizers without a template: every turn under a heading, an assistant's turn ended by the end-of-sequence token.
PLAIN = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{{ message.role | capitalize }}:\n{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)

# Words that no template contains: templates are probed by rendering them and looking for them.
PROBE, THOUGHT = "qzx", "qxthought"

# Ends of turns that no probe finds: Llama 3.1 writes the first after calls of its builtin tools alone.
CALL_ENDS = ("<|eom_id|>", "<|call|>")

log = logging.getLogger(__name__)
# A text with more characters than this for each token that fits is probably too long: its beginning is counted first.
# A cut may split a token in a few.
CHARACTERS_PER_TOKEN, SPLIT_TOKENS = 6, 100


@dataclass(frozen=True)
class Prompt:
    """The ids that a model continues, how they extend its turn before (`Sample.history`), and its images."""

    ids: tuple[int, ...]
    history: History
    images: tuple[Media, ...] = ()


class Template:
    """The chat template of one tokenizer; built once per model, and immutable.

    If the tokenizer has several templates by name, `tool_use` renders conversations with tools and `default` all
    others.

    takes_system  whether it renders a system message; else the system text is put before the first user message
    closing       ids of what follows the answer of the last turn: its end, and in many templates a line break
    end_of_turn   id of the token that closes an assistant's turn; None if the template closes it with ordinary text
    extends       whether a plain answer stays in a later prompt as it was sampled; if not, every turn starts a new
                  sequence, and the log says so once
    tool_use      what it does with tools; what it drops of them is written as text, and the log says so once

    `enable_thinking` is passed to templates that use it, and is off there by default. Raises EngineError if it is set
    for any other template. `images` is the model's image processor, None for a model of text.
    """

    def __init__(
        self, tokenizer: Any, enable_thinking: bool | None = None, images: MediaProcessor | None = None
    ) -> None:
        self._tokenizer, self._images = tokenizer, images
        self._name = tokenizer.name_or_path or "this model"
        self._size = 1 + max(tokenizer.get_vocab().values(), default=-1)
        self._templates = _named_templates(tokenizer)
        self._options: dict[str, bool] = {}
        if any("enable_thinking" in source for source in self._templates.values()):
            self._options = {"enable_thinking": bool(enable_thinking)}
        elif enable_thinking is not None:
            raise EngineError(
                f"enable_thinking: got {str(enable_thinking).lower()}, but the chat template of {self._name} does not "
                "ask for it; expected a model that can be told, such as Qwen3. Remove the setting from the policy."
            )
        self._control = ControlTokens(tokenizer)
        self._warned = set[str]()
        self.takes_system = True  # the probe for a system message must not be merged into the user's
        if opening := self._missing_opening():
            log.warning(
                "The chat template of %s does not open the answer that is to be generated; %r, the opening of earlier "
                "answers, is put at the end of every prompt.",
                self._name,
                opening,
            )
            added = f"{{% if add_generation_prompt %}}{{{{ {json.dumps(opening, ensure_ascii=False)} }}}}{{% endif %}}"
            self._templates = {
                name: text if name != "default" and "add_generation_prompt" in text else text.removesuffix("\n") + added
                for name, text in self._templates.items()
            }
        text = self._try_to_write([Message("system", PROBE), Message("user", "x")], (), False, ToolUse())
        self.takes_system = text is not None and PROBE in text
        self._control = ControlTokens(tokenizer, self._added_words())
        text = self.render([Message("user", "x"), Message("assistant", PROBE)], generation=False)
        self.closing = ending = self._encode(text.partition(PROBE)[2])
        special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
        self.end_of_turn: int | None = ending[0] if ending and ending[0] in special else None
        self.extends = self._extends_answers()
        if not self.extends:
            log.warning(
                "The chat template of %s rewrites earlier answers, so a later turn is a new training sequence.",
                self._name,
            )

    # --- Messages to text -----------------------------------------------------------------------------------------

    def render(self, messages: Sequence[Message], generation: bool, tools: Sequence[Tool] = ()) -> str:
        """Return the conversation as text, with the opening of an assistant's turn if `generation`."""
        use = self._use_for(tools, messages)
        try:
            broken = [self._break_message(message) for message in messages]
            offered = self._broken_tools(tools)
            text = self._write(broken, offered, generation, use)
            # Texts without a token may form one together. Rendered again with their edges marked, such tokens show.
            marked = [_map_message(message, self._mark) for message in broken]
            marked_tools = [_map_tool(tool, self._mark) for tool in offered]
            if (marked, marked_tools) != (broken, offered):
                text = self._control.break_joined(text, self._write(marked, marked_tools, generation, use))
            text.encode()  # raises for a lone surrogate, which is no character
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

    def _warn_once(self, message: str, *values: object) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message, *values)

    def check_kept(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> None:
        """Raise EngineError if the template drops messages of such a conversation. Calls and results of tools are
        checked when they are rendered."""
        before_answer, after_answer, later = self._dropped_roles
        lost, where = set[str](), ""
        if any(message.role == "system" for message in messages[1:]):
            lost, where = set(later), " that are not the first message"
        if not lost and not tools and not _uses_tools(messages):
            answered = any(message.role == "assistant" for message in messages)
            lost |= {message.role for message in messages} & (after_answer if answered else before_answer)
            where = " where there is an earlier answer" if answered else ""
        if lost:
            raise EngineError(
                f"The chat template of {self._name} leaves out messages by {', '.join(sorted(lost))}{where}; expected "
                "every message in the prompt. Take a model with another template, or a task whose prompts have no such "
                "messages."
            )

    @cached_property
    def _dropped_roles(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        """The roles whose messages the template drops: before any answer, after one, and `system` if it drops a
        message by it that is not the first."""
        first = [Message("system", "qzxsystem"), Message("user", "qzxfirst")]
        later = [*first, Message("assistant", "qzxanswer"), Message("user", "qzxsecond")]
        again = [*later[:3], Message("system", "qzxlater"), later[3]]
        texts = [self._try_to_write(turns, (), True, ToolUse()) for turns in (first, later, again)]

        def dropped(text: str | None, turns: Sequence[Message]) -> frozenset[str]:
            return frozenset(turn.role for turn in turns if text is not None and turn.content not in text)

        return dropped(texts[0], first), dropped(texts[1], later), dropped(texts[2], again[3:4])

    def _write(self, messages: Sequence[Message], tools: Sequence[Tool], generation: bool, use: ToolUse) -> str:
        """Return the conversation as text with tools used in this way, without breaking control tokens. Raises whatever
        the template raises."""
        written, options = list(messages), dict[str, Any](self._options)
        with_tools = use.native and (bool(tools) or _uses_tools(messages))

        # Rewrite what the template would drop.
        if any(message.thinking for message in messages) and not self._takes_thinking:
            marks = [pair for pair in call_forms.THINKING_MARKS if pair[0] in self._control.tokens]
            opening, closing = (*marks, *call_forms.THINKING_MARKS)[0]
            for number, message in enumerate(messages):
                if message.thinking:
                    content = f"{opening}\n{message.thinking}\n{closing}\n\n{message.content}"
                    written[number] = replace(message, content=content, thinking="")
        marked = list[tuple[Message, Message]]()
        if not use.native:
            written = tool_calls.write_tools_as_text(written, tools)
            written = written if self._takes_two_users else _join_users(written)
        if not use.parallel:
            written = tool_calls.split_parallel_calls(written)
        if not use.text_with_calls and self._has_channels:
            written = tool_calls.split_text_from_calls(written)
        elif not use.text_with_calls:
            written, marked = tool_calls.mark_calls_with_text(written)
        if tools and use.native:
            options["tools"] = tool_calls.tool_definitions(tools)
            if use.system == "needed" and written[0].role != "system":
                written = [Message("system", ""), *written]
        if not (self.takes_system and not (with_tools and use.system == "dropped")):
            written = _merge_system(written)

        source = self._templates["tool_use" if with_tools and "tool_use" in self._templates else "default"]
        entries = self._to_dicts(written, use)
        text = self._apply(entries, source, generation, options)

        # Put text beside a call, which the template drops, before the call as it is written.
        for bare, message in marked:
            turn = self._write_last_turn([QUESTION, bare], tools, use)
            if not turn or text.count(turn) != 1:
                raise ValueError("the text beside a tool call would be left out")
            text = text.replace(turn, f"{message.content}\n{turn}")
            text = text.replace(bare.tool_calls[0].name, message.tool_calls[0].name)
        return text

    def _apply(self, entries: list[dict[str, Any]], source: str, generation: bool, options: dict[str, Any]) -> str:
        options = {"tokenize": False, "add_generation_prompt": generation, "chat_template": source, **options}
        return str(self._tokenizer.apply_chat_template(entries, **options))

    def _try_to_write(
        self, messages: Sequence[Message], tools: Sequence[Tool], generation: bool, use: ToolUse
    ) -> str | None:
        """Like `_write`, with None for an error of the template."""
        try:
            return self._write(messages, tools, generation, use)
        except Exception:  # noqa: BLE001 - as in render
            return None

    def _write_last_turn(self, messages: Sequence[Message], tools: Sequence[Tool], use: ToolUse) -> str:
        """Return the text of the last message, an assistant's, without the marks that open and close its turn. Returns
        "" if the template rejects the conversation."""
        text = self._try_to_write(messages, tools, False, use)
        opened = self._try_to_write(messages[:-1], tools, True, use)
        plain = self._try_to_write([*messages[:-1], Message("assistant", PROBE)], tools, False, use)
        if text is None or opened is None:
            return ""
        # The turn begins after the longest opening that fits; some open thinking only where an answer is generated.
        prefix, _, suffix = (plain or "").partition(PROBE)
        openings = [opened, prefix, call_forms.without_thinking(prefix), call_forms.without_thinking(opened)]
        start = max((len(opening) for opening in openings if opening and text.startswith(opening)), default=0)
        turn = text[start:]
        turn = turn.removesuffix(suffix) if suffix else turn
        while last := next((end for *_, end in self._control.find(turn.rstrip()[-80:])[-1:]), ""):
            if last not in self._turn_tokens or not turn.rstrip().endswith(last):
                break
            turn = turn.rstrip().removesuffix(last)
        return turn.strip("\n ") if turn.strip() else ""

    def _to_dicts(self, messages: Sequence[Message], use: ToolUse) -> list[dict[str, Any]]:
        """Return the messages as the template takes them. Raises EngineError for media that the model cannot read."""
        entries = tool_calls.to_template_dicts(messages, use.arguments_as_text, use.ids)
        if self._has_channels:
            entries = [_split_channels(entry) for entry in entries]
        kind = self._images.kind if self._images is not None else ()
        if unreadable := [medium for medium in media_of(messages) if not isinstance(medium, kind)]:
            is_image = isinstance(unreadable[0], Image)
            raise EngineError(
                f"A conversation holds {len(unreadable)} {'picture' if is_image else 'sound'}(s), and {self._name} is "
                "read as text alone here; expected a model of the type "
                f"{', '.join(VISION_MODELS if is_image else AUDIO_MODELS)}, sampled by torch. Name one in "
                "team.policies, or take the environment's form in text."
            )
        if self._images is not None:
            pairs = zip(entries, messages, strict=True)
            return [{**entry, "content": self._images.content_parts(message)} for entry, message in pairs]
        return entries

    def _break_message(self, message: Message) -> Message:
        """Return the message with the control tokens in all its strings broken."""
        broken = _map_message(replace(message, content="", thinking=""), self.break_tokens)
        content, thinking = message.content, self.break_tokens(message.thinking, message.role)
        is_in_channels = message.role == "assistant" and self._has_channels and call_forms.read_channels(content)
        if not is_in_channels:  # else `_split_channels` takes it apart
            content = self.break_tokens(content, message.role)
        return replace(broken, content=content, thinking=thinking)

    def _mark(self, text: str) -> str:
        return mark_edges(text) if self._control.may_join(text) else text

    # --- Messages to token ids ------------------------------------------------------------------------------------

    def prompt(
        self,
        messages: Sequence[Message],
        previous: PreviousTurn | None,
        stops: Sequence[int],
        tools: Sequence[Tool] = (),
        context: int | None = None,
    ) -> Prompt:
        """Return the prompt of a conversation. It continues the ids of `previous` if the conversation extends it.

        Raises PromptError for a text that is far too long for a `context` of so many tokens, without tokenising it all.
        """
        if messages[-1].role == "assistant":
            self._warn_once(
                "A conversation ends with a message by assistant (%r). The completion is a new turn after it and "
                "does not continue it: say in the prompt what an answer begins with.",
                messages[-1].content[:60],
            )
        text, images = self.render(messages, generation=True, tools=tools), media_of(messages)
        if previous is None:
            return Prompt(self._encode(text, images, context), "first", images)
        continuation = self._text_after(text, messages, previous, tools)
        if continuation is None:
            return Prompt(self._encode(text, images, context), "new", images)
        (rest, history), sample = continuation, previous.sample
        new_images = media_of(messages[len(previous.messages) :])
        last = sample.token_ids[-1] if sample.token_ids else None
        # The turn is closed already, be it by another token. A token that opens the next turn stays, and so does one
        # that ends turns of calls by opening their results.
        ends = {self.end_of_turn, *(end for end in self.call_ends if self.token(end) in CALL_ENDS)}
        closing = [end for end in (last, *ends) if end is not None] if last in stops else []
        if history == "realigned" and rest.lstrip().startswith(tuple(map(self.token, closing))):
            rest = rest.lstrip()
        appended = self._encode(rest, new_images, context)
        if appended and appended[0] in closing:
            appended = appended[1:]
        return Prompt(sample.prompt_ids + sample.token_ids + appended, history, sample.images + new_images)

    def prompt_ids(
        self,
        messages: Sequence[Message],
        previous: PreviousTurn | None,
        stops: Sequence[int],
        tools: Sequence[Tool] = (),
    ) -> tuple[int, ...]:
        """Return the ids of the prompt of a conversation."""
        return self.prompt(messages, previous, stops, tools).ids

    def _encode(self, text: str, images: Sequence[Media] = (), context: int | None = None) -> tuple[int, ...]:
        if self._images is not None:
            text = self._images.expand_markers(text, images)
        # Tokenising takes seconds a megabyte, during which nobody else is answered.
        cut = len(text) if context is None else CHARACTERS_PER_TOKEN * context
        while context is not None and cut < len(text):
            count = len(self._tokenizer(text[:cut], add_special_tokens=False).input_ids)
            if count > context + SPLIT_TOKENS:
                raise PromptError(
                    f"A prompt has {len(text):,} characters, the first {cut:,} of which are {count:,} tokens, and the "
                    f"model's context holds {context:,} with the completion. Shorten the prompt, or take "
                    "another model."
                )
            cut *= 2
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _text_after(
        self, text: str, messages: Sequence[Message], previous: PreviousTurn, tools: Sequence[Tool]
    ) -> tuple[str, History] | None:
        """Return what `text` has after the turn that was sampled, and how; None if it does not extend that turn."""
        count = len(previous.messages)
        if self._images is not None and self._images.token in previous.sample.token_ids:
            return None  # a sampled placeholder must not be taken for an image
        extends = (
            tuple(messages[:count]) == previous.messages
            and tuple(tools) == previous.tools
            and len(messages) > count + 1
            and tool_calls.is_sampled_message(messages[count], previous.sample)
        )
        if not (extends and self.extends):
            return None
        rendered = self.render(previous.messages, generation=True, tools=tools)
        # Many templates trim answers; the ids keep them as they were sampled.
        answer = self.break_tokens(previous.sample.text, "assistant")
        for content in (answer, answer.strip()):
            if text.startswith(rendered + content):
                return text[len(rendered + content) :], "clean"
        # Templates and programs rewrite a turn with tool calls or thinking in their own way: render it by itself, and
        # cut that out of the conversation. The calls stay in both, as templates take results, or the names in them,
        # from there; words beside them do not, as some templates write those after the results. A turn that a later
        # message changes (its thinking is dropped, results stand between its calls) cannot be cut out.
        turn = messages[count]
        thought = THOUGHT if turn.thinking else ""
        if not thought and (not turn.tool_calls or call_forms.THINK_CLOSE.search(previous.sample.text)):
            return None
        turn = replace(turn, content="" if turn.tool_calls else PROBE, thinking=thought)
        try:
            text = self.render([*messages[:count], turn, *messages[count + 1 :]], generation=True, tools=tools)
        except EngineError:
            return None
        broken = [self._break_message(message) for message in (*messages[:count], turn)]
        offered = self._broken_tools(tools)
        written = self._write_last_turn(broken, offered, self._use_for(tools, messages))
        for end in map(self.token, self.call_ends):
            written = written.removesuffix(end)
        rest = text.removeprefix(rendered).lstrip("\n ")
        if not (written and thought in written and text.startswith(rendered) and rest.startswith(written)):
            return None
        return rest.removeprefix(written), "realigned"

    def break_tokens(self, text: str, role: str = "user") -> str:
        """Return the text as a message by `role` has it in a prompt: with control tokens broken."""
        matches = self._control.find(text)
        allowed = self._own_tokens if matches and role == "assistant" else frozenset[str]()
        token = next((token for _, _, token in matches if token not in allowed), "")
        if not token:
            return text
        self._warn_once(
            "A text in a prompt has %r, a control token of %s. A space is put into such tokens, so that the model "
            "reads them as text.",
            token,
            self._name,
        )
        return self._control.break_up(text, allowed)

    # --- Answers --------------------------------------------------------------------------------------------------

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion with its special tokens. Ids that the tokenizer does not have are skipped:
        models often have more embeddings than it has tokens."""
        ids = [token for token in token_ids if token < self._size]
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def token(self, token_id: int) -> str:
        """Return the token of an id, as the tokenizer spells it."""
        return str(self._tokenizer.convert_ids_to_tokens(token_id))

    def parse_answer(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], tools: Sequence[Tool]
    ) -> tuple[Message, str]:
        """Return a completion, without its end-of-turn token, as a message with its calls of these tools.

        Thinking, in channels or between marks, is no part of its content; thinking without an end leaves none. Else
        the content of a message without a call is the unchanged text. The second value is a sentence for the model on
        a call that it attempts and that is no call of these tools; "" without one.
        """
        if token_ids and token_ids[-1] in (self.end_of_turn, self._tokenizer.eos_token_id):
            token_ids = token_ids[:-1]
        text = self.decode(token_ids)
        if self._has_channels and (channels := call_forms.read_channels(text)) is not None:
            answer = Message("assistant", channels.content, thinking=channels.thinking)
            return self._with_calls(answer, channels.calls, channels.content, tools)
        thinking, content = call_forms.split_thinking(text, self._opens_thinking(prompt_ids), self._thinking_tokens)
        answer, shown = Message("assistant", content, thinking=thinking), self._broken_tools(tools)

        # A tokenizer that declares a response template parses answers itself.
        use, declared = self._use_for(tools) if tools else None, getattr(self._tokenizer, "response_template", None)
        if declared is not None and (use is None or use.native):
            try:
                parsed = self._tokenizer.parse_response(
                    self._tokenizer.decode(token_ids),
                    prefix=self._tokenizer.decode(prompt_ids),
                    tools=tool_calls.tool_definitions(shown),
                )
            except (ValueError, RecursionError):  # malformed JSON, say: then the answer is a text
                return answer, ""
            thinking, content = parsed.get("thinking") or parsed.get("reasoning_content"), parsed.get("content") or ""
            if isinstance(thinking, str) and thinking and isinstance(content, str):
                answer = Message("assistant", content, thinking=thinking.strip())
            functions = [entry["function"] for entry in parsed.get("tool_calls") or []]
            calls = [(function["name"], function.get("arguments", {})) for function in functions]
            return self._with_calls(answer, calls, str(content), tools)

        # Else calls are read in the form in which the template writes them, after thinking.
        if use is None or use.form is None:
            return answer, ""
        schemas = {tool.name: tool.parameters for tool in shown}
        try:
            calls, rest = use.form.read(content, schemas)
        except ValueError as error:
            names = dict(shown[0].parameters).get("properties") or {}
            example = ToolCall("call_0", shown[0].name, tool_calls.to_json(dict.fromkeys(names, "...")))
            form = self._write_last_turn([QUESTION, Message("assistant", "", (example,))], shown, use)
            return answer, f"The call of a tool cannot be read ({error}); expected {form or 'another form'}"
        if not content:  # thinking without an end holds calls only if it holds nothing else
            with suppress(ValueError):
                calls, rest = use.form.read(text, schemas)
            calls = [] if rest else calls
            answer = Message("assistant", "") if calls else answer
        return self._with_calls(answer, calls, rest, tools)

    def _with_calls(
        self, answer: Message, calls: Sequence[Call], content: str, tools: Sequence[Tool]
    ) -> tuple[Message, str]:
        """Return the answer with these calls, by the tools' real names, and ""; or the answer alone and what is wrong
        with a call."""
        names = dict(zip((tool.name for tool in self._broken_tools(tools)), (tool.name for tool in tools), strict=True))
        parsed = list[ToolCall]()
        for name, arguments in calls if tools else ():
            if name not in names:
                return answer, f"There is no tool {name[:64]}; expected one of {', '.join(names)}."
            if not isinstance(arguments, dict):
                return answer, f'The arguments of {name} are no JSON object; expected one, as in {{"a": 1}}.'
            parsed.append(ToolCall(f"call_{len(parsed)}", names[name], tool_calls.to_json(arguments)))
        return (replace(answer, content=content.strip(), tool_calls=tuple(parsed)) if parsed else answer), ""

    def _broken_tools(self, tools: Sequence[Tool]) -> list[Tool]:
        """Return the tools by the names that the prompt has for them."""
        return [_map_tool(tool, self.break_tokens) for tool in tools]

    def has_thinking(self, prompt_ids: Sequence[int], text: str) -> bool:
        """Return True if a completion may have thinking or channels, so that its message differs from its text."""
        if self._has_channels and call_forms.read_channels(text) is not None:
            return True
        if getattr(self._tokenizer, "response_template", None) is not None or call_forms.THINK_OPEN.match(text):
            return True
        return any(token in text for token in self._thinking_tokens) or self._opens_thinking(prompt_ids)

    def _opens_thinking(self, prompt_ids: Sequence[int]) -> bool:
        """Return True if a prompt ends in the mark that opens thinking."""
        return call_forms.THINK_OPEN_AT_END.search(self.decode(prompt_ids[-16:]).rstrip()) is not None

    def turn_token(self, text: str) -> str:
        """Return the first token spelled out in the text that begins or ends turns or texts, which no answer may
        have; "" without one."""
        # Beside its own tokens an answer may have those of channels but for the ones that end a turn.
        channels = {call_forms.CHANNEL, call_forms.MESSAGE, call_forms.START, "<|end|>", "<|constrain|>"}
        allowed = self._own_tokens | (channels if self._has_channels else set())
        return next((token for _, _, token in self._control.find(text) if token not in allowed), "")

    def answer_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of an answer; tokens of thinking and calls are read, those that begin or end turns are not."""
        if self.turn_token(text):
            return self.plain_ids(text)
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def plain_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text in which no control token is read. The text stays as it is if the tokenizer can
        split its control tokens, else they are broken."""
        ids = tuple(self._tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)
        if self._control.by_id.keys().isdisjoint(ids):
            return ids
        return tuple(self._tokenizer(self._control.break_up(text), add_special_tokens=False).input_ids)

    def tokenizer_to_save(self) -> Any:
        """Return the tokenizer with the options of its template made defaults, so that `apply_chat_template` of a
        saved copy renders what was trained on."""
        saved = copy.copy(self._tokenizer)
        defaults = "".join(
            f"{{%- if {name} is not defined %}}{{%- set {name} = {str(value).lower()} %}}{{%- endif %}}"
            for name, value in self._options.items()
        )
        templates = {name: defaults + text.removeprefix(defaults) for name, text in self._templates.items()}
        saved.chat_template = templates if len(templates) > 1 else templates["default"]
        return saved

    # --- Probes ---------------------------------------------------------------------------------------------------

    @cached_property
    def tool_use(self) -> ToolUse:
        """The template's use of tools; probed at the first access."""
        parses_itself = getattr(self._tokenizer, "response_template", None) is not None or self._has_channels
        return tool_calls.probe_tool_use(self._try_to_write, self._write_last_turn, parses_itself)

    def _use_for(self, tools: Sequence[Tool], messages: Sequence[Message] = ()) -> ToolUse:
        """Return how a conversation with these tools, or with calls and no tools, is written."""
        if not tools and not _uses_tools(messages):
            return ToolUse()
        use = self.tool_use
        if not use.complete:
            raise EngineError(
                f"The chat template of {self._name} leaves out parts of a "
                "conversation with tools (a call, what it returned, or what was said before), written by itself and in "
                "words; expected all of it in the prompt. Take a model with another template, or a task without tools."
            )
        if use.dropped:
            self._warn_once("The chat template of %s %s: tools are written as text.", self._name, use.dropped)
        return use if tools or use.without_tools else AS_TEXT

    @cached_property
    def call_ends(self) -> frozenset[int]:
        """The ids of the tokens that close turns with calls and no others, such as gpt-oss' `<|call|>`."""
        use, source = self.tool_use, "".join(self._templates.values())
        ends = {token for token in CALL_ENDS if token in self._control.tokens and token in source}
        if use.native:
            turns = [[QUESTION, Message("assistant", "", tool_calls.PROBE_CALLS[:count])] for count in (1, 2)]
            single, double = (self._try_to_write(turn, tool_calls.PROBE_TOOLS, False, use) or "" for turn in turns)
            last = max(self._control.find(single), default=None)
            # A token that is written after every call of a turn belongs to the calls and does not close the turn.
            if last and not single[last[1] :].strip() and (not use.parallel or double.count(last[2]) == 1):
                ends.add(last[2])
        ends -= self._turn_tokens
        return frozenset(self._tokenizer.convert_tokens_to_ids(token) for token in ends)

    @cached_property
    def _takes_thinking(self) -> bool:
        """True if the template has a field for the thinking of a message; it may still drop it from earlier turns."""
        turns = [QUESTION, Message("assistant", PROBE, thinking=THOUGHT)]
        entries = tool_calls.to_template_dicts(turns)
        try:
            return THOUGHT in self._apply(entries, self._templates["default"], False, self._options)
        except Exception:  # noqa: BLE001 - as in render
            return False

    @cached_property
    def _thinking_tokens(self) -> tuple[str, ...]:
        """The marks that open thinking and are tokens, which no text contains by chance."""
        return tuple(opening for opening, _ in call_forms.THINKING_MARKS if opening in self._control.tokens)

    @cached_property
    def _has_channels(self) -> bool:
        """True if the model answers in channels, as gpt-oss does."""
        return all(mark in self._control.tokens for mark in (call_forms.CHANNEL, call_forms.MESSAGE))

    @cached_property
    def _turn_tokens(self) -> frozenset[str]:
        """The tokens that the template writes around messages, and those of texts."""
        turns = [Message("system", PROBE), *(Message(role, PROBE) for role in ("user", "assistant", "user"))]  # type: ignore[arg-type]
        shown = "".join(self._try_to_write(turns[n:], (), False, ToolUse()) or "" for n in (0, 1))
        tokens = {token for _, _, token in self._control.find(shown)}
        tokens |= {self._tokenizer.bos_token, self._tokenizer.eos_token, self._tokenizer.pad_token}
        return frozenset({mark for mark in tokens if mark and not control_tokens.THINKING.fullmatch(mark)})

    def _added_words(self) -> frozenset[str]:
        """Return the added tokens that are words of a domain, which texts may contain. Neither special tokens nor those
        around turns are words, nor marks in the form of a control token, in the text of the template, in what it writes
        for a result, or of a model with images."""
        result = [QUESTION, Message("assistant", "", tool_calls.PROBE_CALLS[:1]), tool_calls.RESULT_MESSAGES[0]]
        written = "\n".join([*self._templates.values(), self._try_to_write(result, (), True, ToolUse()) or ""])

        def is_word(token: str) -> bool:
            if token in self._control.special or token in self._turn_tokens:
                return False
            if control_tokens.COMMON.fullmatch(token) or control_tokens.THINKING.fullmatch(token):
                return False
            is_mark = not (token[0].isalnum() and token[-1].isalnum())
            return not (is_mark and (self._images is not None or token in written))

        return frozenset(token for token in self._control.tokens if is_word(token))

    @cached_property
    def _own_tokens(self) -> frozenset[str]:
        """The tokens that a role's own earlier words keep: of thinking and calls, and others that are not special and
        stand around no turn."""
        marks = self.tool_use.form.marks if self.tool_use.form is not None else ""

        def is_own(token: str) -> bool:
            if control_tokens.THINKING.fullmatch(token):
                return True
            is_result = any(word in token.lower() for word in ("response", "result", "output"))
            is_special = token in self._control.special and token not in marks
            return token not in self._turn_tokens and not is_special and not is_result

        return frozenset(token for token in self._control.tokens if is_own(token))

    @cached_property
    def _takes_two_users(self) -> bool:
        """True if one user message may follow another."""
        turns = [Message("user", "x"), Message("assistant", "y"), Message("user", "x"), Message("user", PROBE)]
        return PROBE in (self._try_to_write(turns, (), True, ToolUse()) or "")

    def _missing_opening(self) -> str:
        """Return how the template opens answers if it has an opening and `add_generation_prompt` adds none, else ""."""
        turns = [Message("user", "x")]
        bare, prompt = (self._try_to_write(turns, (), generation, ToolUse()) for generation in (False, True))
        answered = self._try_to_write([*turns, Message("assistant", PROBE)], (), False, ToolUse())
        if bare is None or answered is None or bare != prompt or not answered.startswith(bare):
            return ""
        opening, mark, _ = answered[len(bare) :].partition(PROBE)
        return opening if mark and opening.strip() else ""

    def _extends_answers(self) -> bool:
        first = [Message("user", "x")]
        later = [*first, Message("assistant", PROBE), Message("user", "y")]
        try:
            return self.render(later, generation=True).startswith(self.render(first, generation=True) + PROBE)
        except EngineError:
            return False


def _named_templates(tokenizer: Any) -> dict[str, str]:
    """Return the templates of a tokenizer by name, one of them `default`. Raises EngineError if none can be."""
    templates = tokenizer.chat_template or PLAIN
    if isinstance(templates, list | tuple):
        templates = {entry["name"]: entry["template"] for entry in templates}
    if isinstance(templates, dict) and "default" not in templates:
        plain = [text for name, text in templates.items() if name != "tool_use"]
        if len(plain) > 1:
            names = f"the chat templates {', '.join(sorted(templates))} and none that is called default"
            raise EngineError(f"The tokenizer of {tokenizer.name_or_path or 'this model'} has {names}. Name one so.")
        templates = {**templates, "default": (plain or list(templates.values()))[0]}
    tokenizer.chat_template = templates
    return {"default": templates} if isinstance(templates, str) else dict(templates)


def with_adapter_template(tokenizer: Any, folder: str | None) -> Any:
    """Return the tokenizer of a base with the chat templates in the folder of an adapter, on which that was trained.

    It is the tokenizer itself without a folder, or if the folder has none or the same. Raises EngineError for files
    that cannot be read.
    """
    files = ("tokenizer_config.json", "chat_template.jinja")
    if folder is None or not any((Path(folder) / name).is_file() for name in files):
        return tokenizer
    with wrap_load_errors(folder, "tokenizer"):
        templates = type(tokenizer).from_pretrained(folder).chat_template
    if not templates or templates == tokenizer.chat_template:
        return tokenizer
    log.info("Prompts are written by the chat template of the adapter in %s, not by that of its base.", folder)
    copied = copy.copy(tokenizer)
    copied.chat_template = templates
    return copied


def _uses_tools(messages: Sequence[Message]) -> bool:
    return any(message.tool_calls or message.role == "tool" for message in messages)


def _map_message(message: Message, change: Callable[[str], str]) -> Message:
    """Return the message with all its strings changed, those within the arguments of calls too."""
    calls = tuple(
        ToolCall(change(call.id), change(call.name), tool_calls.map_arguments(call, change))
        for call in message.tool_calls
    )
    return replace(
        message,
        content=change(message.content),
        tool_calls=calls,
        tool_call_id=change(message.tool_call_id),
        thinking=change(message.thinking),
    )


def _map_tool(tool: Tool, change: Callable[[str], str]) -> Tool:
    return Tool(change(tool.name), change(tool.description), map_strings(tool.parameters, change))


def _join_users(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with neighbouring messages by the user joined."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is not None and last.role == message.role == "user":
            joined[-1] = join_media("user", f"{last.content}\n{message.content}", (last, message))
        else:
            joined.append(message)
    return joined


def _merge_system(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a leading system text put into the first user message."""
    if not messages or messages[0].role != "system":
        return list(messages)
    system, *rest = messages
    if rest and rest[0].role == "user":
        return [join_media("user", f"{system.content}\n\n{rest[0].content}", (system, rest[0])), *rest[1:]]
    return [join_media("user", system.content, (system,)), *rest]


def _split_channels(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a message as templates with channels take it: thinking apart from the content."""
    if entry["role"] != "assistant" or (channels := call_forms.read_channels(entry["content"])) is None:
        return entry
    return {**entry, "content": channels.content, **({"thinking": channels.thinking} if channels.thinking else {})}
