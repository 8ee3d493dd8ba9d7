"""Completions of a tiny model to learn from, and the weights of its learner."""

from __future__ import annotations

import torch

from cadre.types import TrainingSequence
from tests.cadre.engines.tiny import datum, request, sample


def weights(learner) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in learner.engine.loaded.model.named_parameters()}


def rollouts(learner, count=6, advantage=lambda k: (-1.0) ** k) -> list[TrainingSequence]:
    samples = sample(learner, *(request("go" * key, count, key, max_tokens=8 + key) for key in (1, 2, 3)))
    return [datum(sample, advantage(k)) for siblings in samples for k, sample in enumerate(siblings)]
