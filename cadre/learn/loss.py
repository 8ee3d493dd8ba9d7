"""How an advantage becomes a gradient. Pure functions of tensors; what they leave out: models, devices, batching.

Shapes: B sequences of T tokens, float32 except for the boolean mask. A loss is the sum over the masked tokens, each
weighed by its sequence's weight. The weights come from the WHOLE minibatch (`cadre.learn.batch.sequence_weights`), so
that how a minibatch is cut into micro-batches does not change the gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cadre.config import LossConfig, Ratio


def policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, weights: Tensor, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss that `config.ratio` names, `-sum_i weights[i] * sum_t objective[i, t]`.

    Args:
        logprobs: [B, T], of the policy being trained; carries the gradient.
        old_logprobs: [B, T], of the sampler.
        advantages: [B, T].
        mask: [B, T] boolean, True where the policy sampled the token. What lies outside is never read.
        weights: [B], what a token of each sequence weighs.

    Returns the scalar loss, and figures that are SUMS over the masked tokens (`gap_max` is a maximum):
    `clipped` tokens whose gradient the clip removed or changed, `ratio`, `kl1` and `kl3` (the estimators k1 and k3 of
    KL(sampler || policy) of http://joschu.net/blog/kl-approx.html), `gap_max` the largest |logprobs - old_logprobs|.
    """
    difference = torch.where(mask, logprobs - old_logprobs, 0.0)
    advantages = torch.where(mask, advantages, 0.0)
    chosen = torch.where(mask, logprobs, 0.0)
    objective, clipped = OBJECTIVES[config.ratio](chosen, difference, advantages, mask, config)
    loss = -(weights.unsqueeze(1) * objective).sum()
    with torch.no_grad():
        ratio = difference.exp()
        figures = {
            "clipped": (clipped & mask).sum(),
            "ratio": torch.where(mask, ratio, 0.0).sum(),
            "kl1": -difference.sum(),
            "kl3": (ratio - 1.0 - difference).sum(),
            "gap_max": difference.abs().max(),
        }
    return loss, figures


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
