"""The clipped loss against numbers worked out by hand, and its gradient against finite differences."""

import math

import pytest
import torch

from cadre.config import LossConfig
from cadre.learn.loss import clipped_policy_loss

CONFIG = LossConfig(clip_low=0.2, clip_high=0.3)


def column(*values, dtype=torch.float64):
    return torch.tensor([values], dtype=dtype)


def test_by_hand():
    # Ratios 1.5, 0.5, 1.5, 0.5, 1.1 and advantages 1, 1, -1, -1, 2:
    # min(1.5, 1.3) = 1.3; min(0.5, 0.8) = 0.5; min(-1.5, -1.3) = -1.5; min(-0.5, -0.8) = -0.8; min(2.2, 2.2) = 2.2
    ratios = column(1.5, 0.5, 1.5, 0.5, 1.1)
    old = column(-1.0, -2.0, -0.5, -3.0, -1.5)
    advantages = column(1.0, 1.0, -1.0, -1.0, 2.0)
    mask = torch.ones(1, 5, dtype=torch.bool)
    loss, figures = clipped_policy_loss(old + ratios.log(), old, advantages, mask, 10, CONFIG)
    assert float(loss) == pytest.approx(-(1.3 + 0.5 - 1.5 - 0.8 + 2.2) / 10)
    assert int(figures["clipped"]) == 2
    assert float(figures["ratio"]) == pytest.approx(5.1)
    logs = [math.log(ratio) for ratio in (1.5, 0.5, 1.5, 0.5, 1.1)]
    assert float(figures["kl1"]) == pytest.approx(-sum(logs))
    assert float(figures["kl3"]) == pytest.approx(5.1 - 5 - sum(logs))
    assert float(figures["gap_max"]) == pytest.approx(math.log(2))


def test_gradient_equals_finite_differences():
    generator = torch.Generator().manual_seed(1)
    old = -torch.rand(3, 4, generator=generator, dtype=torch.float64) * 3
    new = old + torch.randn(3, 4, generator=generator, dtype=torch.float64) * 0.4
    advantages = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 4, generator=generator) > 0.3

    def loss(values):
        return clipped_policy_loss(values, old, advantages, mask, 7, CONFIG)[0]

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
    loss, figures = clipped_policy_loss(new, column(-1.0, nan), column(1.0, nan), mask, 1, CONFIG)
    loss.backward()
    assert loss.item() == -1.0
    assert new.grad[0, 0] == -1.0
    assert new.grad[0, 1] == 0.0
    assert all(math.isfinite(float(value)) for value in figures.values())


def test_clipped_tokens_have_no_gradient():
    new = column(math.log(1.5), math.log(0.5)).requires_grad_()
    loss, _ = clipped_policy_loss(
        new, column(0.0, 0.0), column(1.0, -1.0), torch.ones(1, 2, dtype=torch.bool), 2, CONFIG
    )
    loss.backward()
    assert new.grad.tolist() == [[0.0, 0.0]]
