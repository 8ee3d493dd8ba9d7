"""The schedule by hand, clipping, refused steps, and a state that survives to the bit."""

import math

import pytest
import torch
from torch import nn

from cadre.errors import EngineError
from cadre.learn.optimiser import Optimiser, learning_rate
from cadre.settings import LearnerConfig


def test_warmup_then_constant():
    config = LearnerConfig(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate(config, update, 10) for update in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_falls_to_a_floor():
    config = LearnerConfig(learning_rate=2.0, schedule="cosine", final_rate_fraction=0.1)
    # peak * (0.1 + 0.9 * (1 + cos(pi * progress)) / 2) at progress 0, 1/2, 1 and beyond.
    assert [learning_rate(config, update, 4) for update in (0, 2, 4, 9)] == pytest.approx([2.0, 1.1, 0.2, 0.2])


def test_warmup_then_cosine():
    config = LearnerConfig(learning_rate=2.0, warmup_steps=2, schedule="cosine")
    # Progress 0, 1/4, 1/2, 3/4, 1 of the six updates: 1 + cos(progress * pi)
    expected = [1.0, 2.0, 2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0, 0.0]
    assert [learning_rate(config, update, 6) for update in range(8)] == pytest.approx(expected)


def make(**changes) -> tuple[nn.Parameter, Optimiser]:
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    return weight, Optimiser({"w": weight}, LearnerConfig(learning_rate=0.1, **changes), 10)


def test_first_step_by_hand():
    # Adam's first step is rate * gradient / (|gradient| + eps); decoupled decay takes rate * decay of the weight.
    weight = nn.Parameter(torch.tensor([[1.0, -2.0]]))
    optimiser = Optimiser({"w": weight}, LearnerConfig(learning_rate=0.1, weight_decay=0.5, max_grad_norm=100.0), 10)
    weight.grad = torch.tensor([[3.0, -4.0]])
    assert optimiser.step(0.0) == pytest.approx(5.0)
    assert weight[0].tolist() == pytest.approx([1.0 - 0.05 - 0.1, -2.0 + 0.1 + 0.1])


def test_biases_and_scales_do_not_decay_and_follow_the_schedule():
    matrix, bias = nn.Parameter(torch.ones(1, 2)), nn.Parameter(torch.ones(2))
    config = LearnerConfig(learning_rate=0.1, weight_decay=0.5, warmup_steps=2)
    optimiser = Optimiser({"matrix": matrix, "bias": bias}, config, 10)
    for weight in (matrix, bias):
        weight.grad = torch.full_like(weight, 0.1)
    optimiser.step(0.0)  # at half the rate, 0.05: the matrix loses half of that beside the step
    assert matrix[0].tolist() == pytest.approx([1.0 - 0.025 - 0.05] * 2)
    assert bias.tolist() == pytest.approx([1.0 - 0.05] * 2)


def test_gradients_are_clipped_to_the_global_norm():
    weight, optimiser = make(max_grad_norm=1.0)
    weight.grad = torch.tensor([3.0, -4.0])
    optimiser.step(0.0)
    # The first moment is (1 - 0.9) times the clipped gradient (0.6, -0.8).
    assert optimiser.moments()["w.exp_avg"].tolist() == pytest.approx([0.06, -0.08])


def test_a_gradient_within_the_norm_is_left_as_it_is():
    """Mistake: gradients are scaled to the norm whatever their own, so that small ones grow."""
    weight, optimiser = make(max_grad_norm=1.0)
    weight.grad = torch.tensor([0.03, -0.04])
    assert optimiser.step(0.0) == pytest.approx(0.05)
    assert optimiser.moments()["w.exp_avg"].tolist() == pytest.approx([0.003, -0.004])


@pytest.mark.parametrize(("gradient", "loss"), [([math.nan, 1.0], 0.0), ([math.inf, 1.0], 0.0), ([1.0, 1.0], math.nan)])
def test_steps_that_are_not_finite_move_nothing(gradient, loss):
    weight, optimiser = make()
    weight.grad = torch.tensor([1.0, 1.0])
    optimiser.step(0.0)
    initial_tolist, moments = weight.tolist(), {name: tensor.clone() for name, tensor in optimiser.moments().items()}
    weight.grad = torch.tensor(gradient)
    optimiser.step(loss)
    assert weight.tolist() == initial_tolist
    assert all(torch.equal(tensor, moments[name]) for name, tensor in optimiser.moments().items())
    assert (optimiser.applied, optimiser.skips, optimiser.skipped) == (1, 1, 1)
    weight.grad = torch.tensor([1.0, 1.0])
    optimiser.step(0.0)
    assert (optimiser.applied, optimiser.skips, optimiser.skipped) == (2, 0, 1)


def test_saved_state_goes_on_to_the_bit(tmp_path):
    gradients = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    straight, item = make()
    broken, two = make()
    for index, gradient in enumerate(gradients):
        straight.grad, broken.grad = gradient.clone(), gradient.clone()
        item.step(0.0)
        two.step(0.0)
        if index == 2:
            two.save(tmp_path)
            value = broken.detach().clone()
            broken, two = make()
            broken.data.copy_(value)
            two.load(tmp_path)
    assert torch.equal(straight, broken)
    assert two.applied == 6


def test_state_of_other_weights_is_refused(tmp_path):
    weight, optimiser = make()
    weight.grad = torch.ones(2)
    optimiser.step(0.0)
    optimiser.save(tmp_path)
    other_optimiser = Optimiser({"v": nn.Parameter(torch.zeros(2))}, LearnerConfig(), 10)
    with pytest.raises(EngineError, match="'w'"):
        other_optimiser.load(tmp_path)


def test_saved_moments_in_bfloat16_take_half_and_are_rounded(tmp_path):
    sizes, loaded = [], {}
    for dtype in ("float32", "bfloat16"):
        config = LearnerConfig(saved_moments=dtype)
        weight = nn.Parameter(torch.zeros(1000))
        optimiser = Optimiser({"w": weight}, config, 10)
        weight.grad = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e-3
        optimiser.step(0.0)
        optimiser.save(tmp_path / dtype)
        sizes.append((tmp_path / dtype / "optimiser.safetensors").stat().st_size)
        again = Optimiser({"w": nn.Parameter(torch.zeros(1000))}, config, 10)
        again.load(tmp_path / dtype)
        loaded[dtype] = again.moments()
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.05)
    for name, moment in loaded["float32"].items():
        rounded = loaded["bfloat16"][name]
        assert rounded.dtype == torch.float32
        assert torch.equal(rounded, moment.to(torch.bfloat16).to(torch.float32))
