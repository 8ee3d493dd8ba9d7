"""Our losses against TRL's published ones on the same numbers, in float64.

The formulas are those of TRL's GRPO documentation, written out here token by token in plain Python; TRL itself is not
needed. Our gradients are held against finite differences of THEIR values, so that a wrong gradient of ours cannot hide
behind a value that is right. What the two do not define alike is said where it is set.
"""

import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from cadre.learn.loss import Tokens, policy_loss
from cadre.learn.loss_functions import AGGREGATES, Denominators
from cadre.settings import LossConfig
from cadre.types import TrainingSequence

LENGTHS = (3, 5, 1, 4)
ADVANTAGES = (1.3, -0.7, -1.1, 0.4)
LONGEST = 6  # TRL's max_completion_length
Rows = list[list[float]]


def drawn(seed: int, around: Rows | None = None, spread: float = 0.0) -> Rows:
    """Log-probabilities, or those of `around` moved by noise of that spread."""
    noise = random.Random(seed)
    if around is None:
        return [[-3.0 * noise.random() - 0.1 for _ in range(length)] for length in LENGTHS]
    return [[value + noise.gauss(0.0, spread) for value in row] for row in around]


OLD = drawn(1)
NEW = drawn(21, OLD, 0.35)  # ratios from about 0.5 to 2, some of them clipped on either side
SAMPLED = drawn(3, OLD, 0.5)
REFERENCE = drawn(4, OLD, 0.3)


# TRL's formulas.


def ratios(new: Rows, level: str) -> Rows:
    """pi / pi_old a token; at the level of sequences, its exponential mean logarithm (`importance_sampling_level`)."""
    logs = [[a - b for a, b in zip(row, initial, strict=True)] for row, initial in zip(new, OLD, strict=True)]
    if level == "sequence":
        logs = [[sum(row) / len(row)] * len(row) for row in logs]
    return [[math.exp(value) for value in row] for row in logs]


def clipped(new: Rows, low: float, high: float, level: str = "token", delta: float | None = None) -> Rows:
    """-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A); with two-sided clipping r is first at most `delta`."""
    results = []
    for row, advantage in zip(ratios(new, level), ADVANTAGES, strict=True):
        capped = [ratio if delta is None else min(ratio, delta) for ratio in row]
        bounded = [min(max(ratio, 1 - low), 1 + high) for ratio in row]
        results.append([-min(a * advantage, b * advantage) for a, b in zip(capped, bounded, strict=True)])
    return results


def cispo(new: Rows, limit: float) -> Rows:
    """-min(r, epsilon_high) A log pi, the weight at where we are now: no gradient passes through it."""
    weights = [[min(ratio, limit) for ratio in row] for row in ratios(NEW, "token")]
    return [
        [-weight * advantage * value for weight, value in zip(row, values, strict=True)]
        for row, values, advantage in zip(weights, new, ADVANTAGES, strict=True)
    ]


def weighted(losses: Rows, mode: str, cap: float) -> Rows:
    """The correction against vLLM's mismatch: exp(old - sampled), at most `cap`, or 0 above it."""
    results = []
    for row, old, sampled in zip(losses, OLD, SAMPLED, strict=True):
        gaps = [a - b for a, b in zip(old, sampled, strict=True)]
        if mode.startswith("sequence"):
            gaps = [sum(gaps)] * len(gaps)
        rho = [math.exp(gap) for gap in gaps]
        stored = [min(item, cap) if mode.endswith("truncate") else item * (item <= cap) for item in rho]
        results.append([weight * loss for weight, loss in zip(stored, row, strict=True)])
    return results


def grpo(losses: Rows) -> float:
    """`loss_type="grpo"`: every sequence's mean, then the mean over sequences."""
    return sum(sum(row) / len(row) for row in losses) / len(losses)


def dapo(losses: Rows) -> float:
    """`loss_type="dapo"`, and "bnpo" on one whole batch: over all active tokens."""
    return sum(map(sum, losses)) / sum(map(len, losses))


def dr_grpo(losses: Rows) -> float:
    """`loss_type="dr_grpo"`: over the number of sequences times the longest completion allowed."""
    return sum(map(sum, losses)) / (len(losses) * LONGEST)


# Ours.


def padded(rows: Rows) -> torch.Tensor:
    """[B, T] float64, not a number where there is no token."""
    longest = max(map(len, rows))
    return torch.tensor([row + [math.nan] * (longest - len(row)) for row in rows], dtype=torch.float64)


def ours(config: LossConfig) -> tuple[float, Rows]:
    """The loss and its gradient by token."""
    item = zip(LENGTHS, ADVANTAGES, strict=True)
    data = [TrainingSequence("p", "r", (0,) * n, (True,) * n, (0.0,) * n, (a,) * n, 0) for n, a in item]
    full, aggregate = Denominators.of(data, config.divisor), AGGREGATES[config.aggregate]
    weights = torch.tensor([aggregate(length, full) for length in LENGTHS], dtype=torch.float64)
    new = padded(NEW).requires_grad_()
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64).unsqueeze(1).expand_as(new)
    mask = ~new.isnan()
    arguments = Tokens(new, padded(OLD), padded(SAMPLED), advantages, mask, torch.zeros_like(new), padded(REFERENCE))
    loss, _ = policy_loss(arguments, weights, config)
    loss.backward()
    assert new.grad is not None
    return loss.item(), [row[:length] for row, length in zip(new.grad.tolist(), LENGTHS, strict=True)]


def slopes(reference: Callable[[Rows], float], step: float = 1e-6) -> Rows:
    """Finite differences of a value at NEW."""

    def moved(row: int, column: int, by: float) -> Rows:
        return [[value + by * ((r, c) == (row, column)) for c, value in enumerate(item)] for r, item in enumerate(NEW)]

    return [
        [(reference(moved(r, c, step)) - reference(moved(r, c, -step))) / (2 * step) for c in range(length)]
        for r, length in enumerate(LENGTHS)
    ]


def assert_equal(config: LossConfig, reference: Callable[[Rows], float]) -> None:
    loss, gradient = ours(config)
    assert loss == pytest.approx(reference(NEW), abs=1e-12)
    for slope, expected in zip(gradient, slopes(reference), strict=True):
        assert slope == pytest.approx(expected, abs=1e-8)


MEANS: Sequence[tuple[dict, Callable[[Rows], float]]] = [
    ({"aggregate": "sequence_mean"}, grpo),
    ({"aggregate": "token_mean"}, dapo),
    ({"aggregate": "sequence_sum", "divisor": LONGEST}, dr_grpo),
]


def test_the_numbers_reach_every_bound() -> None:
    by_token = [ratio for row in ratios(NEW, "token") for ratio in row]
    assert min(by_token) < 0.7
    assert max(by_token) > 1.5
    by_sequence = [row[0] for row in ratios(NEW, "sequence")]
    assert any(ratio < 0.9 for ratio in by_sequence)
    assert any(ratio > 1.1 for ratio in by_sequence)
    assert any(0.9 < ratio < 1.1 for ratio in by_sequence)


@pytest.mark.parametrize(("settings", "mean"), MEANS)
def test_token_ratios_with_two_bounds(settings: dict, mean: Callable[[Rows], float]) -> None:
    config = LossConfig(clip_low=0.2, clip_high=0.28, **settings)
    assert_equal(config, lambda new: mean(clipped(new, 0.2, 0.28)))


@pytest.mark.parametrize(("settings", "mean"), MEANS)
def test_sequence_ratios(settings: dict, mean: Callable[[Rows], float]) -> None:
    """TRL differentiates GSPO's sequence form, we its token form: one gradient where a sequence has one advantage."""
    config = LossConfig(ratio="sequence", clip_low=0.1, clip_high=0.1, **settings)
    assert_equal(config, lambda new: mean(clipped(new, 0.1, 0.1, "sequence")))


@pytest.mark.parametrize(("settings", "mean"), MEANS)
def test_cispo(settings: dict, mean: Callable[[Rows], float]) -> None:
    """TRL's epsilon_high is the bound itself, ours what is above 1; TRL has no lower bound, ours is out of reach."""
    config = LossConfig(ratio="cispo", clip_low=0.999, clip_high=0.4, **settings)
    assert_equal(config, lambda new: mean(cispo(new, 1.4)))


def test_two_sided_clipping() -> None:
    config = LossConfig(clip_low=0.1, clip_high=0.1, dual_clip=1.2)
    assert_equal(config, lambda new: dapo(clipped(new, 0.1, 0.1, delta=1.2)))
    assert ours(config)[0] != pytest.approx(ours(LossConfig(clip_low=0.1, clip_high=0.1))[0])


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_weights_against_the_mismatch(kind: str, level: str) -> None:
    """TRL's masks have an upper bound only."""
    config = LossConfig(correction=kind, correction_level=level, correction_low=0.0, correction_high=1.3)
    assert_equal(config, lambda new: dapo(weighted(clipped(new, 0.2, 0.2), f"{level}_{kind}", 1.3)))
    assert ours(config)[0] != pytest.approx(ours(LossConfig())[0])


def test_kl_to_the_reference() -> None:
    """k2 beside the loss (TRL has k3, whose gradient is another: arXiv 2510.01555), in the same aggregate; each token
    weighed by its ratio, which has no gradient, as the expectation is that of the present policy."""
    ratios = [[math.exp(a - b) for a, b in zip(*rows, strict=True)] for rows in zip(NEW, OLD, strict=True)]

    def theirs(new: Rows) -> float:
        losses = clipped(new, 0.2, 0.2)
        separate = [
            [ratio * (a - b) ** 2 / 2 for a, b, ratio in zip(*rows, strict=True)]
            for rows in zip(new, REFERENCE, ratios, strict=True)
        ]
        return grpo([[a + 0.3 * b for a, b in zip(*rows, strict=True)] for rows in zip(losses, separate, strict=True)])

    assert_equal(LossConfig(kl=0.3, aggregate="sequence_mean"), theirs)


def test_reinforce_is_grpo_without_a_ratio() -> None:
    """GRPO's gradient on the policy's own samples is that of A log pi."""

    def theirs(new: Rows) -> float:
        return dr_grpo([[-a * value for value in row] for row, a in zip(new, ADVANTAGES, strict=True)])

    assert_equal(LossConfig(ratio="none", aggregate="sequence_sum", divisor=LONGEST), theirs)
