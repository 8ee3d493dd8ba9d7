"""How an advantage becomes a gradient. Pure functions of tensors; what they leave out: models, devices, batching.

Shapes: B sequences of T tokens, float32 except for the boolean mask. A loss is the sum over the masked tokens, each
weighed by its sequence's weight. The weights come from the WHOLE minibatch (`cadre.learn.batch.sequence_weights`), so
that how a minibatch is cut into micro-batches does not change the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cadre.sections import LossConfig, Ratio


@dataclass(frozen=True)
class Tokens:
    """What the loss is told of B sequences of T tokens; all [B, T], float32 except for the boolean mask.

    `logprobs` are those of the policy being trained and carry the gradient; `old` those at the start of the update,
    which the ratio is about; `sampled` the sampler's own; `reference` those of the reference model; `entropy` carries
    the gradient where there is a bonus for it. `mask` is True where the policy sampled the token: nothing outside it
    is ever read.
    """

    logprobs: Tensor
    old: Tensor
    sampled: Tensor
    advantages: Tensor
    mask: Tensor
    entropy: Tensor
    reference: Tensor


def policy_loss(tokens: Tokens, weights: Tensor, config: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """`-sum_i weights[i] * sum_t (c[i, t] * objective[i, t] + entropy * H[i, t] - kl * k2[i, t])`.

    `objective` is what `config.ratio` names, `c` what `config.correction` does, `weights` [B] what a token of each
    sequence weighs. k2 = (log pi - log reference)^2 / 2, whose gradient is that of KL(pi || reference) on samples of
    pi (arXiv 2510.01555, section 4; k3 as a loss has another one).

    Returns the scalar loss, and figures that are SUMS over the masked tokens (`gap_max` is a maximum): `clipped` tokens
    whose gradient the clip removed or changed, `ratio`, `kl1` and `kl3` (the estimators k1 and k3 of
    KL(sampler || policy) of http://joschu.net/blog/kl-approx.html), `corrected` tokens whose weight the correction cut
    off or set to 0, `kl_reference` (k1 of KL(policy || reference)), `entropy`, `gap_max` the largest |logprobs -
    sampled|.
    """
    mask = tokens.mask

    def within(values: Tensor) -> Tensor:
        return torch.where(mask, values, 0.0)

    difference = within(tokens.logprobs - tokens.old)
    advantages, chosen, entropy = within(tokens.advantages), within(tokens.logprobs), within(tokens.entropy)
    objective, clipped = OBJECTIVES[config.ratio](chosen, difference, advantages, mask, config)
    factor, corrected = importance(within(tokens.old - tokens.sampled), mask, config)
    apart = within(tokens.logprobs - tokens.reference)
    value = factor * objective + config.entropy * entropy - config.kl * 0.5 * apart.square()
    loss = -(weights.unsqueeze(1) * value).sum()
    with torch.no_grad():
        gap = within(tokens.logprobs - tokens.sampled)
        figures = {
            "clipped": (clipped & mask).sum(),
            "corrected": (corrected & mask).sum(),
            "ratio": within(difference.exp()).sum(),
            "kl1": -gap.sum(),
            "kl3": (within(gap.exp()) - within(torch.ones_like(gap)) - gap).sum(),
            "kl_reference": apart.sum(),
            "entropy": entropy.sum(),
            "gap_max": gap.abs().max(),
        }
    return loss, figures


def importance(difference: Tensor, mask: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """Weights against the mismatch of sampler and learner, rho = exp(old - sampled), and where they were changed.

    `truncate`: min(rho, high) (truncated importance sampling, Ionides 2008); `mask`: rho where it lies within
    [low, high], else 0. By `token`; by `sequence`, the product over a sequence's tokens; or `geometric`, that product's
    root by its length (GSPO's ratio, arXiv 2507.18071, eq. 7). No gradient passes; ones where the correction is none.
    """
    ones = torch.ones_like(difference)
    if config.correction == "none":
        return ones, torch.zeros_like(mask)
    summed = difference.detach().sum(dim=1, keepdim=True)
    logarithm = {
        "token": difference.detach(),
        "sequence": summed.expand_as(difference),
        "geometric": (summed / mask.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(difference),
    }[config.correction_level]
    rho = logarithm.exp()
    if config.correction == "truncate":
        return rho.clamp(max=config.correction_high), rho > config.correction_high
    outside = (rho < config.correction_low) | (rho > config.correction_high)
    return torch.where(outside, 0.0, rho), outside


# (objective a token, where it was clipped), both [B, T], from (logprobs, difference, advantages, mask, config).
Objective = Callable[[Tensor, Tensor, Tensor, Tensor, LossConfig], tuple[Tensor, Tensor]]


def surrogate(ratio: Tensor, advantages: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """`min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` (PPO, arXiv 1707.06347, eq. 7; two bounds: DAPO, 2503.14476).

    With `dual_clip` c it is at least `c A` where A < 0 (arXiv 1912.09729, eq. 5), so that no far ratio dominates.
    """
    plain = ratio * advantages
    bounded = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high) * advantages
    clipped = bounded < plain
    objective = torch.minimum(plain, bounded)
    if config.dual_clip is not None:
        floor = config.dual_clip * advantages
        clipped = clipped | ((advantages < 0) & (objective < floor))
        objective = torch.where(advantages < 0, torch.maximum(objective, floor), objective)
    return objective, clipped


def token_ratio(
    logprobs: Tensor, difference: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor]:
    """PPO's surrogate on each token's own ratio."""
    return surrogate(difference.exp(), advantages, config)


def sequence_ratio(
    logprobs: Tensor, difference: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor]:
    """GSPO's token form (arXiv 2507.18071, eq. 14): every token has its sequence's ratio, the exponential of the mean
    difference, and passes the gradient of its own log-probability."""
    mean = difference.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    ratio = mean.detach().exp() * (difference - difference.detach()).exp()
    return surrogate(ratio, advantages, config)


def clipped_weight(
    logprobs: Tensor, difference: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor]:
    """CISPO (arXiv 2506.13585, eq. 4): REINFORCE weighed by the clipped ratio, which carries no gradient itself."""
    ratio = difference.detach().exp()
    weight = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    return weight * advantages * logprobs, weight != ratio


def no_ratio(
    logprobs: Tensor, difference: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor]:
    """The policy gradient `A log pi` (MAGRPO, arXiv 2508.04652, eq. 5): on-policy data only, one step a sample."""
    return advantages * logprobs, torch.zeros_like(mask)


OBJECTIVES: dict[Ratio, Objective] = {
    "token": token_ratio,
    "sequence": sequence_ratio,
    "cispo": clipped_weight,
    "none": no_ratio,
}
