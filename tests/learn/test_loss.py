"""Every loss against numbers worked out by hand, and its gradient against finite differences."""

import math

import pytest
import torch

from cadre.config import LossConfig
from cadre.learn.loss import policy_loss

CONFIG = LossConfig(clip_low=0.2, clip_high=0.3)


def column(*values, dtype=torch.float64):
    return torch.tensor([values], dtype=dtype)


def each(weight, rows=1):
    return torch.full((rows,), weight, dtype=torch.float64)


def test_by_hand():
    # Ratios 1.5, 0.5, 1.5, 0.5, 1.1 and advantages 1, 1, -1, -1, 2:
    # min(1.5, 1.3) = 1.3; min(0.5, 0.8) = 0.5; min(-1.5, -1.3) = -1.5; min(-0.5, -0.8) = -0.8; min(2.2, 2.2) = 2.2
    ratios = column(1.5, 0.5, 1.5, 0.5, 1.1)
    old = column(-1.0, -2.0, -0.5, -3.0, -1.5)
    advantages = column(1.0, 1.0, -1.0, -1.0, 2.0)
    mask = torch.ones(1, 5, dtype=torch.bool)
    loss, figures = policy_loss(old + ratios.log(), old, advantages, mask, each(1 / 10), CONFIG)
    assert float(loss) == pytest.approx(-(1.3 + 0.5 - 1.5 - 0.8 + 2.2) / 10)
    assert int(figures["clipped"]) == 2
    assert float(figures["ratio"]) == pytest.approx(5.1)
    logs = [math.log(ratio) for ratio in (1.5, 0.5, 1.5, 0.5, 1.1)]
    assert float(figures["kl1"]) == pytest.approx(-sum(logs))
    assert float(figures["kl3"]) == pytest.approx(5.1 - 5 - sum(logs))
    assert float(figures["gap_max"]) == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "config", [CONFIG, LossConfig(clip_low=0.2, clip_high=0.3, dual_clip=1.5), LossConfig(ratio="none")]
)
def test_gradient_equals_finite_differences(config):
    generator = torch.Generator().manual_seed(1)
    old = -torch.rand(3, 4, generator=generator, dtype=torch.float64) * 3
    new = old + torch.randn(3, 4, generator=generator, dtype=torch.float64) * 0.4
    advantages = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 4, generator=generator) > 0.3

    def loss(values):
        return policy_loss(values, old, advantages, mask, each(1 / 7, 3), config)[0]

    new.requires_grad_()
    loss(new).backward()
    step = 1e-6
    for row in range(3):
        for column in range(4):
            moved = torch.zeros_like(old)
            moved[row, column] = step
            with torch.no_grad():
                slope = float(loss(new + moved) - loss(new - moved)) / (2 * step)
            assert float(new.grad[row, column]) == pytest.approx(slope, abs=1e-7)


def test_what_lies_outside_the_mask_is_never_read():
    nan = math.nan
    mask = torch.tensor([[True, False]])
    new = column(-1.0, nan).requires_grad_()
    loss, figures = policy_loss(new, column(-1.0, nan), column(1.0, nan), mask, each(1.0), CONFIG)
    loss.backward()
    assert loss.item() == -1.0
    assert new.grad[0, 0] == -1.0
    assert new.grad[0, 1] == 0.0
    assert all(math.isfinite(float(value)) for value in figures.values())


def test_clipped_tokens_have_no_gradient():
    new = column(math.log(1.5), math.log(0.5)).requires_grad_()
    loss, _ = policy_loss(
        new, column(0.0, 0.0), column(1.0, -1.0), torch.ones(1, 2, dtype=torch.bool), each(0.5), CONFIG
    )
    loss.backward()
    assert new.grad.tolist() == [[0.0, 0.0]]


def gradient(config, ratios, advantages, weights=None):
    """d(loss)/d(logprobs) where the old log-probabilities are all -1."""
    old = torch.full((len(ratios), len(ratios[0])), -1.0, dtype=torch.float64)
    new = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    mask = torch.ones_like(new, dtype=torch.bool)
    spread = torch.tensor(advantages, dtype=torch.float64).unsqueeze(1).expand_as(new)
    loss, figures = policy_loss(new, old, spread, mask, each(1.0, len(ratios)) if weights is None else weights, config)
    loss.backward()
    return loss.item(), new.grad.tolist(), figures


def test_dual_clip_by_hand():
    # Ratio 4 at advantage -1: min(-4, -1.2) = -4, but not below 3 * -1.
    loss, slope, figures = gradient(LossConfig(dual_clip=3.0), [[4.0, 2.0]], [-1.0])
    assert loss == pytest.approx(3.0 + 2.0)
    assert slope[0] == pytest.approx([0.0, 2.0])
    assert int(figures["clipped"]) == 1


def test_sequence_ratio_by_hand():
    # Ratios 1 and 1.21: their geometric mean 1.1 is both tokens' ratio; each passes 1.1 * A of its own log-probability.
    loss, slope, _ = gradient(LossConfig(ratio="sequence"), [[1.0, 1.21], [1.0, 2.25]], [2.0, 1.0])
    assert slope[0] == pytest.approx([-2.2, -2.2])
    assert slope[1] == pytest.approx([0.0, 0.0])  # 1.5 is above 1.2: the whole sequence is clipped
    assert loss == pytest.approx(-(2 * 2.2 + 2 * 1.2))


def test_cispo_by_hand():
    # The weight is clipped to 1.2, the gradient of the log-probability stays.
    _, slope, figures = gradient(LossConfig(ratio="cispo"), [[2.0, 1.1, 0.5]], [1.0])
    assert slope[0] == pytest.approx([-1.2, -1.1, -0.8])
    assert int(figures["clipped"]) == 2


def test_policy_gradient_knows_no_ratio():
    _, slope, figures = gradient(LossConfig(ratio="none"), [[2.0, 0.5]], [3.0])
    assert slope[0] == pytest.approx([-3.0, -3.0])
    assert int(figures["clipped"]) == 0


def test_a_token_weighs_what_its_sequence_weighs():
    _, slope, _ = gradient(
        LossConfig(ratio="none"), [[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0], torch.tensor([0.25, 2.0]).double()
    )
    assert slope == [pytest.approx([-0.25, -0.25]), pytest.approx([-2.0, -2.0])]


def test_on_policy_all_losses_have_the_same_gradient():
    slopes = [
        gradient(LossConfig(ratio=ratio), [[1.0, 1.0, 1.0]], [1.7])[1]
        for ratio in ("token", "sequence", "cispo", "none")
    ]
    assert all(slope[0] == pytest.approx([-1.7] * 3) for slope in slopes)
