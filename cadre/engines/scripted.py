"""A sampler that answers from a function: the stand-in for a model in tests and examples. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cadre.engines.stop_strings import cut
from cadre.errors import EngineError
from cadre.team import Weights
from cadre.types import Request, Sample


class ScriptedSampler:
    """Implements `cadre.team.Sampler`. `answers(request)` gives the siblings' texts, as many as `request.count`.

    Token ids are the UTF-8 bytes of the text; every token has log-probability 0. An answer ends after a stop string or
    at `sampling.max_tokens` bytes, as a model's would.
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

    async def load(self, weights: Weights) -> None:
        """Raises EngineError: a script has no weights."""
        raise EngineError(
            f"Got weights of policy {weights.policy!r}, which a script plays; expected a policy that is trained. Give "
            "it a model, or leave it out of the learners."
        )

    def close(self) -> None:
        """Nothing is held."""


def _sample(request: Request, answer: str) -> Sample:
    most, stop = request.sampling.max_tokens, request.sampling.stop
    said = _up_to_stop(answer, stop).encode()
    prompt = "\n".join(message.content for message in request.messages)
    return Sample(
        role=request.role,
        policy=request.policy,
        text=cut(said[:most].decode(errors="ignore"), stop),
        prompt_ids=tuple(prompt.encode()),
        token_ids=tuple(said[:most]),
        logprobs=(0.0,) * len(said[:most]),
        finish="stop" if len(said) <= most else "length",
        version=0,
    )


def _up_to_stop(answer: str, stop: Sequence[str]) -> str:
    """The answer with the first stop string and nothing after it."""
    kept = cut(answer, stop)
    ending = next((string for string in stop if answer.startswith(string, len(kept))), "")
    return kept + ending
