"""How likely a policy's whole answers are: for games whose every legal answer can be listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from cadre.engines.torch.engine import TorchEngine
from cadre.engines.torch.learning.forward import Forward
from cadre.learn.value_heads import ValueHeads
from cadre.settings import LearnerConfig
from cadre.types import Choice, TrainingSequence, images_of

# Sequences are short and many: what runs at once.
AT_ONCE = LearnerConfig(pack="padded", tokens_per_microbatch=16_384)


def answer_probabilities(engine: TorchEngine, policy: str, choices: Sequence[Choice]) -> list[tuple[float, ...]]:
    """For every choice the probability of each of its answers among them, at temperature 1; they sum to 1.

    An answer is its text as the tokenizer writes it, without tokens that end turns, and the end of the turn after it.
    """
    forward = Forward(engine.loaded, engine.dtype, ValueHeads({}, 0, torch.device("cpu")), [AT_ONCE])
    data = [datum for choice in choices for datum in _sequences(engine, policy, choice)]
    sums = iter([sum(logprobs) for logprobs in engine.work(forward.logprobs, data)])
    return [_among([next(sums) for _ in choice.answers]) for choice in choices]


def _sequences(engine: TorchEngine, policy: str, choice: Choice) -> Iterator[TrainingSequence]:
    """The prompt with each answer."""
    prompt, template = engine.encode(policy, choice.observation.messages), engine.loaded.templates[policy]
    for answer in choice.answers:
        said = (*template.answer_ids(answer), engine.loaded.stops[0])
        zeros = (0.0,) * (len(prompt) + len(said))
        mask = (False,) * len(prompt) + (True,) * len(said)
        images = images_of(choice.observation.messages)
        yield TrainingSequence(policy, choice.observation.role, prompt + said, mask, zeros, zeros, 0, images=images)


def _among(logprobs: Sequence[float]) -> tuple[float, ...]:
    return tuple(torch.tensor(logprobs, dtype=torch.float64).softmax(0).tolist())
