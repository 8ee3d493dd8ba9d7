"""A sampler that answers from a function: the stand-in for a model in tests and examples. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cadre.errors import EngineError
from cadre.types import Request, Sample


class ScriptedSampler:
    """Implements `cadre.team.Sampler`. `answers(request)` gives the siblings' texts, as many as `request.count`.

    Token ids are the UTF-8 bytes of the text; every token has log-probability 0. An answer longer than
    `sampling.max_tokens` bytes is cut, as a model's would be.
    """

    def __init__(self, answers: Callable[[Request], Sequence[str]]) -> None:
        self._answers = answers

    async def sample(self, request: Request) -> list[Sample]:
        """The scripted siblings. Raises EngineError where the script gives another number of them."""
        texts = self._answers(request)
        if len(texts) != request.count:
            raise EngineError(
                f"The script for role {request.role!r} gave {len(texts)} answers; expected {request.count}, one a "
                "sibling. Return request.count texts."
            )
        return [_sample(request, text) for text in texts]


def _sample(request: Request, text: str) -> Sample:
    most = request.sampling.max_tokens
    token_ids = tuple(text.encode())[:most]
    prompt = "\n".join(message.content for message in request.messages)
    return Sample(
        role=request.role,
        policy=request.policy,
        text=bytes(token_ids).decode(errors="ignore"),
        prompt_ids=tuple(prompt.encode()),
        token_ids=token_ids,
        logprobs=(0.0,) * len(token_ids),
        finish="stop" if len(text.encode()) <= most else "length",
        version=0,
    )
