"""Minibatches, and padding."""

import dataclasses
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadre.learn.batching import collate, has_gradient, minibatches
from cadre.settings import LearnerConfig, LossConfig
from cadre.types import Targets, TrainingSequence


def datum(prompt: int, completion: int, advantage: float = 1.0, policy: str = "p") -> TrainingSequence:
    zeros = (0.0,) * prompt
    return TrainingSequence(
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
    assert batch.rollout_logprobs[0].tolist() == [0.0, -1.0, -1.0, 0.0, 0.0]
    assert batch.lengths == (2, 3)
    assert batch.temperature.tolist() == [0.5, 0.5]
    assert batch.policies == ("p", "p")


def test_what_was_before_is_the_samplers_unless_it_is_known():
    with_reference = dataclasses.replace(datum(1, 2), old=(0.0, -3.0, -2.0), reference=(0.0, -5.0, -4.0))
    batch = collate([datum(1, 2), with_reference], torch.device("cpu"))
    assert batch.old.tolist() == [[0.0, -1.0, -1.0], [0.0, -3.0, -2.0]]
    assert batch.reference.tolist() == [[0.0, -1.0, -1.0], [0.0, -5.0, -4.0]]


def test_what_has_a_gradient():
    plain = LossConfig()
    assert has_gradient(datum(2, 2, -0.5), plain)
    assert not has_gradient(datum(2, 2, 0.0), plain)
    assert has_gradient(datum(2, 2, 0.0), LossConfig(kl=0.1))
    assert has_gradient(datum(2, 2, 0.0), LossConfig(entropy=0.1))
    assert has_gradient(dataclasses.replace(datum(2, 0, 0.0), targets=Targets("x", (1,), (0.5,), (0.0,))), plain)


def test_minibatches_by_size_are_as_many_as_it_takes():
    learner = LearnerConfig(minibatch_size=16)
    assert [learner.steps_per_pass(count) for count in (1, 16, 17, 512)] == [1, 1, 2, 32]
    parts = minibatches([datum(1, 1)] * 40, learner.steps_per_pass(40), random.Random(0))
    assert sorted(map(len, parts)) == [13, 13, 14]  # of near equal size, none of more than 16
    with pytest.raises(ValueError, match=r"beside learner\.minibatches=2"):
        LearnerConfig(minibatch_size=16, minibatches=2)


@given(st.integers(1, 30), st.integers(1, 8), st.integers())
def test_minibatches_part_the_data(size, count, seed):
    data = [datum(index + 1, 1) for index in range(size)]
    parts = minibatches(data, count, random.Random(seed))
    assert sorted(len(datum.token_ids) for part in parts for datum in part) == list(range(2, size + 2))
    assert len(parts) == min(count, size)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == minibatches(data, count, random.Random(seed))
