"""How many requests are decoded at once: as many as their keys, values and scores have memory for.

The split follows from the requests, their order and the number of bytes alone, so that equal work makes equal batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from cadre.engines.torch.sampling.generation import GenerationRequest

# Of each score of a sequence's next token, in sampling it: the logits twice in float32, their exponentials, and the
# sums of those in float64.
SCORE_BYTES = 3 * 4 + 8


@dataclass(frozen=True)
class SequenceMemory:
    """Bytes of one sequence: `slot` of each token's keys and values over all layers, `scores` of its next token."""

    slot: int
    scores: int

    @classmethod
    def of(cls, config: Any, dtype: torch.dtype) -> Self:
        """What a model takes by its transformers configuration, decoding in `dtype`."""
        # Models without attention name no heads; one token's states are as wide as keys of all heads would be.
        all_heads: int = _number(config, "num_attention_heads") or 1
        heads: int = _number(config, "num_key_value_heads") or all_heads
        size: int = _number(config, "head_dim") or config.hidden_size // all_heads
        return cls(2 * heads * size * config.num_hidden_layers * dtype.itemsize, config.vocab_size * SCORE_BYTES)

    def of_batch(self, sequences: int, longest: int) -> int:
        """Bytes of a batch whose longest sequence may have so many tokens."""
        return sequences * (longest * self.slot + self.scores)

    def at_once(self, most: int, longest: int) -> int:
        """How many sequences of so many tokens fit into `most` bytes, and one at least."""
        return max(1, most // self.of_batch(1, longest))


def split(requests: Sequence[GenerationRequest], memory: SequenceMemory, most: int) -> list[list[GenerationRequest]]:
    """Requests in order, in batches of at most `most` bytes; one that is larger gets a batch of its own."""
    batches: list[list[GenerationRequest]] = []
    sequences = longest = 0
    for request in requests:
        sequences, longest = sequences + request.count, max(longest, _longest(request))
        if batches and memory.of_batch(sequences, longest) <= most:
            batches[-1].append(request)
        else:
            batches.append([request])
            sequences, longest = request.count, _longest(request)
    return batches


def _number(config: Any, name: str) -> int | None:
    """A setting that is one number for all layers; where it differs among them, the largest."""
    try:
        value = getattr(config, name, None)
    except RuntimeError:  # transformers names no one number for layers that differ
        value = [getattr(layer, name) for layer in config.per_layer_config]
    return max(value) if isinstance(value, list | tuple) else value


def _longest(request: GenerationRequest) -> int:
    return len(request.prompt_ids) + request.limit
