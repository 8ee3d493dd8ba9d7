"""Batches by memory, by numbers worked out by hand."""

from __future__ import annotations

import torch
from transformers import LlamaConfig

from cadre.engines.torch.memory import SequenceMemory, split_batches
from cadre.engines.torch.request_batcher import GenerationRequest
from cadre.types import Sampling


def request(count: int, prompt: int = 10, limit: int = 10) -> GenerationRequest:
    return GenerationRequest("p", (1,) * prompt, count, limit, Sampling(), 0)


def counts(batches: list[list[GenerationRequest]]) -> list[list[int]]:
    return [[one.count for one in batch] for batch in batches]


def test_bytes_of_a_sequence() -> None:
    """Keys and values of 2 heads of 8 in 3 layers, 2 bytes each; 20 bytes for each of 100 scores."""
    config = LlamaConfig(
        vocab_size=100, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3
    )
    assert SequenceMemory.from_config(config, torch.bfloat16) == SequenceMemory(slot=2 * 2 * 8 * 3 * 2, scores=2000)
    assert SequenceMemory(slot=192, scores=2000).batch_bytes(4, 10) == 4 * (10 * 192 + 2000)


def test_a_batch_has_what_fits_and_a_larger_request_is_alone() -> None:
    """20 tokens a sequence of one byte each, and one for its scores."""
    memory = SequenceMemory(slot=1, scores=1)
    assert counts(split_batches([request(4)] * 5, memory, 2 * 4 * 21)) == [[4, 4], [4, 4], [4]]
    assert counts(split_batches([request(4)] * 3, memory, 2 * 4 * 21 - 1)) == [[4], [4], [4]]
    assert counts(split_batches([request(1), request(9), request(1)], memory, 21)) == [[1], [9], [1]]


def test_the_longest_counts_for_all() -> None:
    """The third would make the first two as long as itself: 3 * 41 bytes."""
    memory = SequenceMemory(slot=1, scores=1)
    asked = [request(1), request(1), request(1, prompt=30)]
    assert counts(split_batches(asked, memory, 3 * 41)) == [[1, 1, 1]]
    assert counts(split_batches(asked, memory, 3 * 41 - 1)) == [[1, 1], [1]]
