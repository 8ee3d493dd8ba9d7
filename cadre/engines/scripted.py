"""A sampler that answers from a function: the fake model of tests and examples. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cadre.engines.text.tokens import cut_at_stop
from cadre.errors import EngineError
from cadre.team import Weights
from cadre.types import Request, Sample


class ScriptedSampler:
    """Implements `cadre.team.Sampler`. `answers(request)` returns `request.count` texts, one a completion.

    Token ids are the UTF-8 bytes of the text; every token has log-probability 0. An answer ends after a stop string or
    at `sampling.max_tokens` bytes, as a model's would.
    """

    def __init__(self, answers: Callable[[Request], Sequence[str]]) -> None:
        self._answers = answers

    async def sample(self, request: Request) -> list[Sample]:
        """Return the scripted completions. Raises EngineError if the script returns another number of them."""
        texts = self._answers(request)
        if len(texts) != request.count:
            raise EngineError(
                f"The script for role {request.role!r} gave {len(texts)} answers; expected {request.count}, one a "
                "sibling. Return request.count texts."
            )
        return [_make_sample(request, text) for text in texts]

    async def load(self, weights: Weights) -> None:
        """Raise EngineError: a script has no weights."""
        raise EngineError(
            f"Got weights of policy {weights.policy!r}, which a script plays; expected a policy that is trained. Give "
            "it a model, or leave it out of the learners."
        )

    def close(self) -> None:
        """Do nothing: a script holds no resources."""


def _make_sample(request: Request, answer: str) -> Sample:
    limit, stop = request.sampling.max_tokens, request.sampling.stop
    # The ids include the stop string that ends the answer; the text does not.
    text = cut_at_stop(answer, stop)
    ending = next((string for string in stop if answer.startswith(string, len(text))), "")
    tokens = (text + ending).encode()
    prompt = "\n".join(message.content for message in request.messages)
    return Sample(
        role=request.role,
        policy=request.policy,
        text=cut_at_stop(tokens[:limit].decode(errors="ignore"), stop),
        prompt_ids=tuple(prompt.encode()),
        token_ids=tuple(tokens[:limit]),
        logprobs=(0.0,) * len(tokens[:limit]),
        finish="stop" if len(tokens) <= limit else "length",
        version=0,
    )
