"""The composition of an update's gradient, by role."""

from dataclasses import replace

import pytest

from cadre.advantages.batch import gradient_mass
from cadre.settings import LossConfig
from cadre.types import TrainingSequence


def datum(role: str, advantage: float, tokens: int, policy: str = "shared") -> TrainingSequence:
    return TrainingSequence(
        policy,
        role,
        (1,) * (2 + tokens),
        (False,) * 2 + (True,) * tokens,
        (0.0,) * (2 + tokens),
        (0.0, 0.0) + (advantage,) * tokens,
        0,
    )


DATA = [datum("a", 1.0, 3), datum("a", -1.0, 1), datum("b", 0.5, 2), datum("b", 0.0, 4)]


def test_a_share_by_tokens_and_by_sequences() -> None:
    by_token = gradient_mass(DATA, LossConfig())
    # masses 3, 1 and 1, 0 of ten tokens
    assert (by_token["a/gradient_fraction"], by_token["b/gradient_fraction"]) == (
        pytest.approx(0.8),
        pytest.approx(0.2),
    )
    assert by_token["a/effective_samples"] == pytest.approx(16 / 10)
    assert by_token["b/effective_samples"] == pytest.approx(1.0)
    by_sequence = gradient_mass(DATA, LossConfig(aggregate="sequence_mean"))
    assert by_sequence["a/gradient_fraction"] == pytest.approx(2.0 / 2.5)
    assert by_sequence["a/effective_samples"] == pytest.approx(2.0)


def test_each_policy_is_a_whole_and_nothing_that_is_not_trained_counts() -> None:
    separate = [replace(item, policy=item.role) for item in DATA]
    untrained = replace(DATA[0], mask=(False,) * 5)
    figures = gradient_mass([*separate, untrained], LossConfig())
    assert (figures["a/gradient_fraction"], figures["b/gradient_fraction"]) == (1.0, 1.0)
    assert figures["a/effective_samples"] == pytest.approx(1.6)


def test_nothing_to_learn_has_no_mass() -> None:
    assert gradient_mass([datum("a", 0.0, 2)], LossConfig()) == {"a/gradient_fraction": 0.0, "a/effective_samples": 0.0}
    assert gradient_mass([], LossConfig()) == {}
