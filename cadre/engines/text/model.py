"""The text side of a model, without its weights: prompts, samples, stop tokens, encoded answers, previews, spelling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from transformers import AutoConfig, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from cadre.engines import media
from cadre.engines.model_folder import context_length, find_hub_model, wrap_load_errors
from cadre.engines.text.template import Prompt, Template, with_adapter_template
from cadre.engines.text.tokens import cut_at_stop
from cadre.errors import DivergedError, EngineError, PromptError
from cadre.types import Finish, Message, Request, Sample, Tool

# The character that a decoder writes for bytes that are no whole character.
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Completion:
    """One completion: ids with their log-probabilities, how it ended, and the version of the weights that sampled it.
    `changes` are (position, version) of the weights that sampled from there on, if they changed on the way."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    version: int = 0
    changes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ModelText:
    """Turns requests into prompts, and completions into samples; shared by the samplers of one model.

    templates   the chat template of each policy
    stops       the ids that end a turn
    context     the model's longest sequence, in tokens
    embeddings  how many tokens it has embeddings for, None if unknown
    """

    templates: Mapping[str, Template]
    stops: tuple[int, ...]
    context: int
    embeddings: int | None = None

    def check_policy(self, policy: str, subject: str) -> None:
        """Raise EngineError for a policy that an engine of this model does not hold."""
        if policy not in self.templates:
            raise EngineError(
                f"{subject} policy {policy!r}, which this engine does not hold; it holds {', '.join(self.templates)}. "
                "Fix team.roles."
            )

    def prompt(self, request: Request) -> Prompt:
        """Return the prompt of a request. Raises PromptError if it has a token without an embedding."""
        template = self.templates[request.policy]
        template.check_kept(request.messages, request.tools)
        prompt = template.prompt(request.messages, request.previous, self.stops, request.tools, self.context)
        highest = max(prompt.ids, default=0)
        if self.embeddings is not None and highest >= self.embeddings:
            raise PromptError(
                f"Role {request.role!r}: its prompt holds the token {template.token(highest)!r} of id {highest}, and "
                f"the model has embeddings for {self.embeddings} tokens; expected lower ids. Keep that text out of "
                "what observe() returns, or take a tokenizer that fits the model."
            )
        return prompt

    def limit(self, request: Request, prompt: int) -> int:
        """Return the most tokens of a completion after a `prompt` of so many. Raises PromptError if none fit."""
        room = self.context - prompt
        if room < 1:
            raise PromptError(
                f"Role {request.role!r}: its prompt has {prompt} tokens, and the model's context holds "
                f"{self.context} with the completion. Shorten the prompt, or take another model."
            )
        return min(request.sampling.max_tokens, room)

    def sample(self, request: Request, prompt: Prompt, completion: Completion) -> Sample:
        """Return the completion as a sample. Raises DivergedError if its log-probabilities are not finite."""
        ids, template = completion.token_ids, self.templates[request.policy]
        if not math.isfinite(sum(completion.logprobs)):
            raise DivergedError(
                f"Policy {request.policy!r}: what it samples has log-probabilities that are not finite; expected "
                "numbers. Its weights have diverged, or are broken: go on from an earlier checkpoint (cadre fork)."
            )
        answer_ids = ids[:-1] if ids[-1] in self.stops else ids
        text, stop = template.decode(answer_ids), request.sampling.stop
        # A stop string may include the text of the token that ends the turn.
        cut = cut_at_stop(template.decode(ids), stop) if stop else text
        text = cut if len(cut) < len(text) else text
        message, call_error = None, ""
        if request.tools or template.has_thinking(prompt.ids, text):
            message, call_error = template.parse_answer(prompt.ids, answer_ids, request.tools)
            content, thinking = cut_at_stop(message.content, stop), cut_at_stop(message.thinking, stop)
            message = replace(message, content=content, thinking=thinking)
        return Sample(
            role=request.role,
            policy=request.policy,
            text=text,
            prompt_ids=prompt.ids,
            token_ids=ids,
            logprobs=completion.logprobs,
            finish=completion.finish,
            version=completion.version,
            message=message,
            history=prompt.history,
            images=prompt.images,
            changes=completion.changes,
            call_error=call_error,
        )


def collect_stops(configured: int | Sequence[int] | None, tokenizer: Any, *templates: Template) -> tuple[int, ...]:
    """Return every id that ends a turn: `configured` in the generation config, the tokenizer's and the templates'.
    Raises EngineError if there is none."""
    ids: set[Any] = {*configured} if isinstance(configured, list | tuple) else {configured}
    for template in templates:
        ids |= {template.end_of_turn, *template.call_ends}
    stops = sorted(int(stop) for stop in ids | {tokenizer.eos_token_id} if stop is not None)
    if not stops:
        raise EngineError(
            "The model has no token that ends a turn: neither its generation config nor its tokenizer names an "
            "end-of-sequence token. Expected at least one. Set eos_token in the tokenizer's configuration."
        )
    return tuple(stops)


class AnswerEncoder:
    """Encodes conversations with the answer that one model should give, for supervised learning and reward models.
    `context` is the longest sequence that the model takes, None if unstated."""

    def __init__(self, tokenizer: Any, context: int | None, enable_thinking: bool | None = None) -> None:
        self._tokenizer, self.context = tokenizer, context
        self._template = Template(tokenizer, enable_thinking)

    @classmethod
    def of(
        cls,
        model: str,
        enable_thinking: bool | None = None,
        trust_remote_code: bool = False,
        adapter: str | None = None,
    ) -> Self:
        """Return the encoder of a folder or an available hub model; no weights are read. `adapter` is the folder of
        one, whose chat templates it has."""
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
        config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
        return cls(with_adapter_template(tokenizer, adapter), context_length(config), enable_thinking)

    def turn_token(self, answer: str) -> str:
        """Return the first token spelled out in the answer that begins or ends turns or texts; "" without one. It has
        to be removed from an answer before `encode`: sampling would have ended there."""
        return self._template.turn_token(answer)

    def encode(
        self, prompt: Sequence[Message], answer: str, tools: Sequence[Tool] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (prompt ids, answer ids with the token that ends the turn), as sampling would have them."""
        self._template.check_kept(prompt, tools)
        end = self._template.end_of_turn
        end = self._tokenizer.eos_token_id if end is None else end
        answer_ids = self._tokenizer(answer, add_special_tokens=False).input_ids
        return self._template.prompt_ids(prompt, None, (), tools), (*answer_ids, end)

    def encode_for_scoring(self, prompt: Sequence[Message], answer: str) -> tuple[int, ...]:
        """Return the ids of both as one conversation, as trainers of reward models render it. The answer is text
        throughout: control tokens that it spells out are not read."""
        self._template.check_kept(prompt)
        answer_ids = self._template.plain_ids(answer)
        return (*self._template.prompt_ids(prompt, None, ()), *answer_ids, *self._template.closing)


@dataclass(frozen=True)
class PromptPreview:
    """A prompt as the model reads it. `dropped` are the indices of messages that the template drops."""

    text: str
    tokens: int
    dropped: tuple[int, ...]


class Previewer:
    """Renders prompts with a model's tokenizer. `context` is the model's longest sequence, None if unstated."""

    def __init__(self, source: str) -> None:
        source = source if Path(source).is_dir() else find_hub_model(source)
        with wrap_load_errors(source, "tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(source)
            config = AutoConfig.from_pretrained(source)
        self.template = Template(tokenizer, images=media.load_processor(source, tokenizer))
        self.context = context_length(config)

    def preview(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> PromptPreview:
        """Return the prompt that the model would continue. Raises EngineError if the template rejects the messages, or
        drops parts of conversations with tools."""
        text = self.template.render(messages, generation=True, tools=tools)
        contents = [self.template.break_tokens(message.content, message.role).strip() for message in messages]
        dropped = tuple(index for index, content in enumerate(contents) if content not in text)
        return PromptPreview(text, len(self.template.prompt(messages, None, (), tools).ids), dropped)


class TokenSpeller:
    """Spells single tokens of one model; the tokenizer is loaded at the first use."""

    def __init__(self, source: str, trust_remote_code: bool = False) -> None:
        self._source, self._trust = source, trust_remote_code
        self._tokenizer: Any = None

    def spell(self, token: int) -> str:
        """Return the text of a token with its spaces; `<0xE2><0x82>` for a part of a character."""
        if self._tokenizer is None:
            source = self._source if Path(self._source).is_dir() else find_hub_model(self._source)
            self._tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=self._trust)
        raw: str = self._tokenizer.convert_ids_to_tokens(token) or ""
        text: str = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if REPLACEMENT in text:
            return spell_bytes(raw)
        # SentencePiece marks a word's start with U+2581, which decoding one token alone would drop.
        return f" {text}" if raw.startswith("\u2581") and not text.startswith(" ") else text


def check_same_vocabulary(policy: str, source: str, teacher: str, trust_remote_code: bool = False) -> None:
    """Raise EngineError unless every token of a policy's tokenizer has the same id in that of its teacher."""
    token_ids, teacher_ids = (
        AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code).get_vocab()
        for folder in (source, teacher)
    )
    if different := [token for token, number in token_ids.items() if teacher_ids.get(token) != number]:
        token = min(different, key=token_ids.__getitem__)
        raise EngineError(
            f"teacher: the token {token!r} has id {token_ids[token]} in the tokenizer of policy {policy} ({source}), "
            f"and {teacher_ids.get(token, 'none')} in that of {teacher}, and {len(different) - 1} more tokens differ; "
            "expected the same tokenizer. Take a teacher of the same family."
        )


def spell_bytes(raw: str) -> str:
    """Return the bytes of a byte-level BPE token as `<0xE2><0x82>`; any other token unchanged."""
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    is_bytes = all(letter in byte_of for letter in raw)
    return "".join(f"<0x{byte_of[letter]:02X}>" for letter in raw) if is_bytes else raw
