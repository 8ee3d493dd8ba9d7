"""Every loss against numbers worked out by hand, and its gradient against finite differences."""

import math

import pytest
import torch

from cadre.learn.loss import Tokens, ValueHeads, annealed, importance, policy_loss, value_loss
from cadre.settings import LossConfig

CONFIG = LossConfig(clip_low=0.2, clip_high=0.3)


def column(*values, dtype=torch.float64):
    return torch.tensor([values], dtype=dtype)


def tokens(logprobs, old, advantages, mask, sampled=None, reference=None, entropy=None):
    """Return the loss's inputs; the sampler and the reference are the old policy unless they are given."""
    sampled, reference = (old if arguments is None else arguments for arguments in (sampled, reference))
    entropy = torch.zeros_like(old) if entropy is None else entropy
    return Tokens(logprobs, old, sampled, advantages, mask, entropy, reference)


def each(weight, rows=1):
    return torch.full((rows,), weight, dtype=torch.float64)


def test_by_hand():
    # Ratios 1.5, 0.5, 1.5, 0.5, 1.1 and advantages 1, 1, -1, -2, 2 (with -1 in place of -2 swapped bounds cancel out):
    # min(1.5, 1.3) = 1.3; min(0.5, 0.8) = 0.5; min(-1.5, -1.3) = -1.5; min(-1, -1.6) = -1.6; min(2.2, 2.2) = 2.2
    ratios = column(1.5, 0.5, 1.5, 0.5, 1.1)
    old = column(-1.0, -2.0, -0.5, -3.0, -1.5)
    advantages = column(1.0, 1.0, -1.0, -2.0, 2.0)
    mask = torch.ones(1, 5, dtype=torch.bool)
    loss, figures = policy_loss(tokens(old + ratios.log(), old, advantages, mask), each(1 / 10), CONFIG)
    assert float(loss) == pytest.approx(-(1.3 + 0.5 - 1.5 - 1.6 + 2.2) / 10)
    assert int(figures["clipped"]) == 2
    assert float(figures["ratio"]) == pytest.approx(5.1)
    logs = [math.log(ratio) for ratio in (1.5, 0.5, 1.5, 0.5, 1.1)]
    assert float(figures["kl1"]) == pytest.approx(-sum(logs))
    assert float(figures["kl3"]) == pytest.approx(5.1 - 5 - sum(logs))
    assert float(figures["gap_max"]) == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        LossConfig(clip_low=0.2, clip_high=0.3, dual_clip=1.5),
        LossConfig(ratio="none"),
        LossConfig(correction="truncate", correction_high=1.1),
        LossConfig(correction="mask", correction_level="geometric", correction_low=0.9, correction_high=1.2),
        LossConfig(ratio="none", correction="mask", correction_level="sequence"),
    ],
)
def test_gradient_equals_finite_differences(config):
    generator = torch.Generator().manual_seed(1)
    old = -torch.rand(3, 4, generator=generator, dtype=torch.float64) * 3
    new = old + torch.randn(3, 4, generator=generator, dtype=torch.float64) * 0.4
    advantages = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 4, generator=generator) > 0.3
    sampled, reference = (old + torch.randn(3, 4, generator=generator, dtype=torch.float64) * 0.2 for _ in range(2))

    def loss(values):
        return policy_loss(tokens(values, old, advantages, mask, sampled, reference), each(1 / 7, 3), config)[0]

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


@pytest.mark.parametrize(
    "config", [CONFIG, LossConfig(entropy=0.1, kl=0.1, correction="truncate", correction_level="sequence")]
)
def test_what_lies_outside_the_mask_is_never_read(config):
    nan = math.nan
    mask = torch.tensor([[True, False]])
    new = column(-1.0, nan).requires_grad_()
    loss, figures = policy_loss(tokens(new, column(-1.0, nan), column(1.0, nan), mask), each(1.0), config)
    loss.backward()
    assert loss.item() == -1.0
    assert new.grad[0, 0] == -1.0
    assert new.grad[0, 1] == 0.0
    assert all(math.isfinite(float(value)) for value in figures.values())


def test_clipped_tokens_have_no_gradient():
    new = column(math.log(1.5), math.log(0.5)).requires_grad_()
    both = torch.ones(1, 2, dtype=torch.bool)
    loss, _ = policy_loss(tokens(new, column(0.0, 0.0), column(1.0, -1.0), both), each(0.5), CONFIG)
    loss.backward()
    assert new.grad.tolist() == [[0.0, 0.0]]


def gradient(config, ratios, advantages, weights=None):
    """d(loss)/d(logprobs) where the old log-probabilities are all -1."""
    old = torch.full((len(ratios), len(ratios[0])), -1.0, dtype=torch.float64)
    new = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    mask = torch.ones_like(new, dtype=torch.bool)
    spread = torch.tensor(advantages, dtype=torch.float64).unsqueeze(1).expand_as(new)
    weights = each(1.0, len(ratios)) if weights is None else weights
    loss, figures = policy_loss(tokens(new, old, spread, mask), weights, config)
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


@pytest.mark.parametrize("ratios", [(1.0, 1.0), (1.0, 1.21)])
def test_in_a_sequence_ratio_every_token_passes_the_gradient_of_its_own_advantage(ratios):
    """Mistake: the plain sequence ratio, under which every token gets the mean of the advantages (GSPO, eq. 14)."""
    new = column(*(math.log(ratio) for ratio in ratios)).requires_grad_()
    arguments = tokens(new, column(0.0, 0.0), column(2.0, -1.0), torch.ones(1, 2, dtype=torch.bool))
    loss, _ = policy_loss(arguments, each(1.0), LossConfig(ratio="sequence"))
    loss.backward()
    mean = math.sqrt(ratios[0] * ratios[1])
    assert new.grad.tolist() == [pytest.approx([-2.0 * mean, 1.0 * mean])]


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


def test_kl_in_the_loss_by_hand():
    # k2 = (log pi - log reference)^2 / 2: at differences 0.4 and -0.2 it is 0.08 and 0.02, its slopes 0.4 and -0.2.
    new, old = column(-1.0, -2.0).requires_grad_(), column(-1.0, -2.0)
    arguments = tokens(new, old, column(0.0, 0.0), old < 0, reference=column(-1.4, -1.8))
    loss, figures = policy_loss(arguments, each(0.5), LossConfig(kl=0.1))
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * 0.1 * (0.08 + 0.02))
    assert new.grad.tolist() == [pytest.approx([0.5 * 0.1 * 0.4, 0.5 * 0.1 * -0.2])]
    assert float(figures["kl_reference"]) == pytest.approx(0.4 - 0.2)


def test_kl_is_weighed_for_the_present_policy_without_a_gradient():
    """Mistake: from the second of several optimiser steps on k2 is averaged over the samples of an earlier policy."""
    # ratios 2 and 1/2 to the old policy; differences 0.4 and -0.2 from the reference
    new = column(-1.0, -2.0).requires_grad_()
    old = new.detach() - column(math.log(2.0), math.log(0.5))
    arguments = tokens(new, old, column(0.0, 0.0), old < 0, reference=column(-1.4, -1.8))
    loss, _ = policy_loss(arguments, each(0.5), LossConfig(kl=0.1))
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * 0.1 * (2 * 0.08 + 0.5 * 0.02))
    assert new.grad.tolist() == [pytest.approx([0.5 * 0.1 * 2 * 0.4, 0.5 * 0.1 * 0.5 * -0.2])]


@pytest.mark.parametrize("ratio", ["token", "sequence", "cispo", "none"])
@pytest.mark.parametrize("correction", ["none", "truncate"])
def test_the_gradient_of_kl_is_exact_over_samples_of_another_policy(ratio, correction):
    """Over a vocabulary of four, every token with its probability under what sampled it."""
    generator = torch.Generator().manual_seed(2)
    logits, initial_randn, reference = (torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(3))
    sampled = (
        initial_randn + 0.1 * torch.randn(4, generator=generator, dtype=torch.float64)
        if correction != "none"
        else initial_randn
    )
    initial_randn, reference, sampled = (values.log_softmax(0) for values in (initial_randn, reference, sampled))
    logits.requires_grad_()
    now = logits.log_softmax(0)
    exact = torch.autograd.grad((now.exp() * (now - reference)).sum(), logits, retain_graph=True)[0]
    rows = [values.unsqueeze(1) for values in (now, initial_randn, torch.zeros(4), sampled, reference)]
    arguments = tokens(rows[0], rows[1], rows[2], torch.ones(4, 1, dtype=torch.bool), rows[3], rows[4])
    config = LossConfig(ratio=ratio, correction=correction, correction_high=100.0, kl=0.3)
    loss, _ = policy_loss(arguments, sampled.exp(), config)
    (got,) = torch.autograd.grad(loss, logits)
    assert got.tolist() == pytest.approx((0.3 * exact).tolist())


@pytest.mark.parametrize(("result", "remaining"), [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (1.5, 0.0)])
def test_bonus_and_penalty_fall_with_the_run_where_that_is_asked_for(result, remaining):
    falling = annealed(LossConfig(entropy=0.2, kl=0.4, schedule="linear"), result)
    assert (falling.entropy, falling.kl) == pytest.approx((0.2 * remaining, 0.4 * remaining))
    assert annealed(LossConfig(entropy=0.2, kl=0.4), result).kl == 0.4


def test_entropy_lowers_the_loss_and_its_gradient_passes():
    entropy = column(0.7, 0.3).requires_grad_()
    old = column(-1.0, -1.0)
    loss, figures = policy_loss(
        tokens(old, old, column(0.0, 0.0), torch.tensor([[True, False]]), entropy=entropy),
        each(2.0),
        LossConfig(entropy=0.1),
    )
    loss.backward()
    assert loss.item() == pytest.approx(-2.0 * 0.1 * 0.7)
    assert entropy.grad.tolist() == [[pytest.approx(-0.2), 0.0]]
    assert float(figures["entropy"]) == pytest.approx(0.7)


def test_an_entropy_of_weight_0_is_not_in_the_loss():
    old, mask = column(-1.0), torch.tensor([[True]])
    loss, figures = policy_loss(tokens(old, old, column(1.0), mask, entropy=column(math.nan)), each(2.0), LossConfig())
    assert loss.item() == -2.0
    assert math.isnan(float(figures["entropy"]))


RHO = column(math.log(0.5), math.log(3.0), math.log(2.0))


@pytest.mark.parametrize(
    ("kind", "level", "weights", "changed"),
    [
        # Tokens 0.5, 3, 2; their product 3; its third root 1.442.
        ("none", "token", [1.0, 1.0, 1.0], 0),
        ("truncate", "token", [0.5, 2.5, 2.0], 1),
        ("truncate", "sequence", [2.5, 2.5, 2.5], 3),
        ("truncate", "geometric", [3.0 ** (1 / 3)] * 3, 0),
        ("mask", "token", [0.0, 0.0, 2.0], 2),
        ("mask", "sequence", [0.0, 0.0, 0.0], 3),
        ("mask", "geometric", [3.0 ** (1 / 3)] * 3, 0),
    ],
)
def test_importance_weights_by_hand(kind, level, weights, changed):
    config = LossConfig(correction=kind, correction_level=level, correction_low=0.6, correction_high=2.5)
    result, where = importance(RHO, RHO < 99, config)
    assert result[0].tolist() == pytest.approx(weights)
    assert int(where.sum()) == changed


def test_a_correction_weighs_the_objective_and_not_the_ratio():
    # The learner's own old log-probabilities are twice the sampler's: weight 2 cut to 1.5, ratio 1.
    new = column(math.log(0.4)).requires_grad_()
    arguments = tokens(new, new.detach(), column(3.0), new < 0, sampled=column(math.log(0.2)))
    loss, figures = policy_loss(arguments, each(1.0), LossConfig(correction="truncate", correction_high=1.5))
    loss.backward()
    assert loss.item() == pytest.approx(-4.5)
    assert new.grad.item() == pytest.approx(-4.5)
    assert (int(figures["corrected"]), float(figures["ratio"])) == (1, pytest.approx(2.0))  # now over when sampled
    assert float(figures["gap_max"]) == pytest.approx(math.log(2))


def test_value_loss_by_hand():
    # Errors 1 and 3 unclipped: (0.5 * 1 + 0.25 * 9) / 2. Clipped at 0.5 around 0: 0.5 against 2 leaves 1.5 of an error.
    values = torch.tensor([1.0, -1.0], dtype=torch.float64).requires_grad_()
    old, returns, weights = torch.zeros(2), torch.tensor([2.0, 2.0]), torch.tensor([0.5, 0.25])
    assert value_loss(values, old, returns, weights, None).item() == pytest.approx((0.5 * 1 + 0.25 * 9) / 2)
    clipped = value_loss(values, old, returns, weights, 0.5)
    assert clipped.item() == pytest.approx((0.5 * 1.5**2 + 0.25 * 9) / 2)
    clipped.backward()
    # The first value is already further than the clip allows: no gradient. The second moved away from its return.
    assert values.grad.tolist() == pytest.approx([0.0, 0.25 * -3.0])


def test_value_loss_gradient_equals_finite_differences():
    generator = torch.Generator().manual_seed(2)
    values, old, returns = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(3))
    weights = torch.rand(6, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v: value_loss(v, old, returns, weights, 0.3), values.requires_grad_())


def test_heads_read_their_own_rows():
    heads = ValueHeads({"a": ("x", "y"), "b": ("x",)}, 2, torch.device("cpu"))
    hidden = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    names = [("b", "x"), ("a", "y"), ("a", "x")]
    assert heads(hidden, names).tolist() == [0.0, 0.0, 0.0]
    with torch.no_grad():
        for number, (policy, head) in enumerate([("a", "x"), ("a", "y"), ("b", "x")], 1):
            heads.heads[policy][head].weight.fill_(number)
            heads.heads[policy][head].bias.fill_(10 * number)
    assert heads(hidden, names).tolist() == [3 * 3 + 30, 2 * 7 + 20, 11 + 10]
    assert set(heads.parameters("a")) == {"x.weight", "x.bias", "y.weight", "y.bias"}


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual"),
    [
        *(("token", sign, dual) for sign, dual in ((1.0, None), (1.0, 3.0), (-1.0, 3.0))),
        *(("sequence", sign, dual) for sign, dual in ((1.0, None), (1.0, 3.0), (-1.0, 3.0))),
        *((ratio, sign, None) for ratio in ("cispo", "none") for sign in (1.0, -1.0)),
    ],
)
def test_a_ratio_that_overflows_leaves_the_other_tokens_their_gradient(ratio, advantage, dual):
    """e^199 is infinite in float32: times 0, as of a clipped token or a penalty that is off, it is no number
    (OpenRLHF/OpenRLHF#1314)."""
    loss, gradient = overflowing(ratio, advantage, dual)
    assert math.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert gradient[1].tolist() == pytest.approx([-0.25 * advantage] * 2)  # of the sequence that has not moved


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_a_ratio_that_overflows_and_that_nothing_clips_is_no_step(ratio):
    assert overflowing(ratio, -1.0)[0] == math.inf


def overflowing(ratio, advantage, dual=None):
    """Return the loss and its gradient for two sequences, of one of which a token has become e^199 times as likely."""
    old = torch.tensor([[-200.0, -2.0], [-1.0, -1.0]])
    new = torch.tensor([[-1.0, -2.0], [-1.0, -1.0]], requires_grad=True)
    advantages, mask = torch.full((2, 2), advantage), torch.ones(2, 2, dtype=torch.bool)
    loss, _ = policy_loss(
        tokens(new, old, advantages, mask), torch.full((2,), 0.25), LossConfig(ratio=ratio, dual_clip=dual)
    )
    loss.backward()
    return float(loss.detach()), new.grad
