"""What samplers of one model share: conversations in, token ids to the model, ids and text out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cadre.engines.chat_template import Prompt, Template
from cadre.engines.stop_strings import cut
from cadre.errors import DivergedError, EngineError, PromptError
from cadre.types import Finish, Message, Request, Sample


@dataclass(frozen=True)
class Completion:
    """One sibling: ids with their log-probabilities, how it ended, and the version of the weights that drew it.

    `changes` are the places from which later weights drew, each with their version, where they changed on the way.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    version: int = 0
    changes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ModelText:
    """The chat `templates` of one model by policy, `stops`, the ids that end a turn, `context`, its longest sequence,
    and how many tokens it has `embeddings` for, None where that is not known."""

    templates: Mapping[str, Template]
    stops: tuple[int, ...]
    context: int
    embeddings: int | None = None

    def prompt(self, request: Request) -> Prompt:
        """What the model continues. Raises PromptError where it holds a token that the model cannot read."""
        template = self.templates[request.policy]
        template.check_kept(request.messages, request.tools)
        prompt = template.prompt(request.messages, request.previous, self.stops, request.tools)
        highest = max(prompt.ids, default=0)
        if self.embeddings is not None and highest >= self.embeddings:
            raise PromptError(
                f"Role {request.role!r}: its prompt holds the token {template.token(highest)!r} of id {highest}, and "
                f"the model has embeddings for {self.embeddings} tokens; expected lower ids. Keep that text out of "
                "what observe() returns, or take a tokenizer that fits the model."
            )
        return prompt

    def limit(self, request: Request, prompt: int) -> int:
        """The longest completion that fits the context. Raises PromptError where none does."""
        room = self.context - prompt
        if room < 1:
            raise PromptError(
                f"Role {request.role!r}: its prompt has {prompt} tokens, and the model's context holds "
                f"{self.context} with the completion. Shorten what observe() returns, or take another model."
            )
        return min(request.sampling.max_tokens, room)

    def sample(self, request: Request, prompt: Prompt, completion: Completion) -> Sample:
        """The completion as what the role said. Raises DivergedError where the model said nothing."""
        ids, template = completion.token_ids, self.templates[request.policy]
        if not math.isfinite(sum(completion.logprobs)):
            raise DivergedError(
                f"Policy {request.policy!r}: what it samples has log-probabilities that are not finite; expected "
                "numbers. Its weights have diverged, or are broken: go on from an earlier checkpoint (cadre fork)."
            )
        said = ids[:-1] if ids[-1] in self.stops else ids
        # A stop string may hold the text of the token that ends the turn.
        text, stop = template.decode(said), request.sampling.stop
        whole = cut(template.decode(ids), stop) if stop else text
        text = whole if len(whole) < len(text) else text
        return Sample(
            role=request.role,
            policy=request.policy,
            text=text,
            prompt_ids=prompt.ids,
            token_ids=ids,
            logprobs=completion.logprobs,
            finish=completion.finish,
            version=completion.version,
            message=self._message(request, prompt, said) if request.tools or template.has_message(text) else None,
            history=prompt.history,
            images=prompt.images,
            changes=completion.changes,
        )

    def _message(self, request: Request, prompt: Prompt, said: Sequence[int]) -> Message:
        """The completion as a message with the calls that it makes, its text cut as that of the sample is."""
        message = self.templates[request.policy].said(prompt.ids, said, request.tools)
        return replace(message, content=cut(message.content, request.sampling.stop))


def stops_of(configured: int | Sequence[int] | None, tokenizer: Any, template: Template) -> tuple[int, ...]:
    """Every id that ends a turn: `configured` in the generation configuration, of the tokenizer, of the template.

    Raises EngineError where there is none.
    """
    named: set[Any] = {*configured} if isinstance(configured, list | tuple) else {configured}
    if wrong := [stop for stop in named if not isinstance(stop, int | None)]:
        raise EngineError(
            f"The generation config's eos_token_id: got {wrong[0]!r}; expected the id of a token or a list of them. "
            "Fix generation_config.json."
        )
    named |= {tokenizer.eos_token_id, template.end_of_turn, *template.call_ends}
    stops = sorted(stop for stop in named if stop is not None)
    if not stops:
        raise EngineError(
            "The model has no token that ends a turn: neither its generation config nor its tokenizer names an "
            "end-of-sequence token. Expected at least one. Set eos_token in the tokenizer's configuration."
        )
    return tuple(stops)
