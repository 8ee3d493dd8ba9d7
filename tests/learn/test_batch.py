"""Minibatches, micro-batches and padding."""

import dataclasses
import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from cadre.learn.batch import collate, has_gradient, microbatches, minibatches, sequence_weights, trained_tokens
from cadre.sections import LossConfig
from cadre.types import Datum, Targets


def datum(prompt: int, completion: int, advantage: float = 1.0, policy: str = "p") -> Datum:
    zeros = (0.0,) * prompt
    return Datum(
        policy=policy,
        role="r",
        token_ids=tuple(range(1, prompt + completion + 1)),
        mask=(False,) * prompt + (True,) * completion,
        logprobs=zeros + (-1.0,) * completion,
        advantages=zeros + (advantage,) * completion,
        version=0,
        temperature=0.5,
    )


def test_collate_pads_on_the_right():
    batch = collate([datum(1, 2), datum(2, 3)], torch.device("cpu"))
    assert batch.token_ids.tolist() == [[1, 2, 3, 0, 0], [1, 2, 3, 4, 5]]
    assert batch.mask.tolist() == [[False, True, True, False, False], [False, False, True, True, True]]
    assert batch.logprobs[0].tolist() == [0.0, -1.0, -1.0, 0.0, 0.0]
    assert batch.temperature.tolist() == [0.5, 0.5]
    assert batch.policies == ("p", "p")


def test_counts_and_gradients():
    assert trained_tokens([datum(3, 2), datum(1, 4)]) == 6
    plain = LossConfig()
    assert has_gradient(datum(2, 2, -0.5), plain)
    assert not has_gradient(datum(2, 2, 0.0), plain)
    assert has_gradient(datum(2, 2, 0.0), LossConfig(kl=0.1))
    assert has_gradient(datum(2, 2, 0.0), LossConfig(entropy=0.1))
    assert has_gradient(dataclasses.replace(datum(2, 0, 0.0), targets=Targets("x", (1,), (0.5,), (0.0,))), plain)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 100))
def test_microbatches_keep_every_sequence_within_the_budget(lengths, budget):
    data = [datum(length, 1) for length in lengths]
    groups = microbatches(data, budget)
    assert sorted(len(datum.token_ids) for group in groups for datum in group) == sorted(n + 1 for n in lengths)
    for group in groups:
        longest = max(len(datum.token_ids) for datum in group)
        assert len(group) == 1 or longest * len(group) <= budget


@given(st.integers(1, 30), st.integers(1, 8), st.integers())
def test_minibatches_part_the_data(size, count, seed):
    data = [datum(index + 1, 1) for index in range(size)]
    parts = minibatches(data, count, random.Random(seed))
    assert sorted(len(datum.token_ids) for part in parts for datum in part) == list(range(2, size + 2))
    assert len(parts) == min(count, size)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == minibatches(data, count, random.Random(seed))


def test_sequence_weights_by_hand():
    """Two sequences of 1 and 3 trained tokens."""
    short, long = datum(1, 1), datum(2, 3)

    def weights(**options):
        found = sequence_weights([short, long], LossConfig(**options))
        return [found[id(short)], found[id(long)]]

    assert weights() == [0.25, 0.25]
    assert weights(aggregate="sequence_mean") == [0.5, 1 / 6]
    assert weights(aggregate="sequence_sum") == [0.5, 0.5]
    assert weights(aggregate="sequence_sum", divisor=4.0) == [0.125, 0.125]
