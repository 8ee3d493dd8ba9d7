"""How an advantage becomes a gradient. Pure functions of tensors; what they leave out: models, devices, batching.

Shapes: B sequences of T tokens, float32 except for the boolean mask. A loss is summed over the masked tokens and
divided by `denominator`, the number of masked tokens in the WHOLE minibatch, so that how a minibatch is cut into
micro-batches does not change the gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cadre.config import LossConfig


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    denominator: float,
    config: LossConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate of PPO (arXiv 1707.06347, eq. 7), averaged over tokens (DAPO, 2503.14476, eq. 8).

    Per token, with the ratio r = exp(logprobs - old_logprobs):
    `-min(r * advantage, clip(r, 1 - clip_low, 1 + clip_high) * advantage)`.

    Args:
        logprobs: [B, T], of the policy being trained; carries the gradient.
        old_logprobs: [B, T], of the sampler.
        advantages: [B, T].
        mask: [B, T] boolean, True where the policy sampled the token. What lies outside is never read.
        denominator: masked tokens of the whole minibatch.

    Returns the scalar loss, and figures that are SUMS over the masked tokens (`gap_max` is a maximum):
    `clipped` tokens whose gradient the clip removed, `ratio`, `kl1` and `kl3` (the estimators k1 and k3 of
    KL(sampler || policy) of http://joschu.net/blog/kl-approx.html), `gap_max` the largest |logprobs - old_logprobs|.
    """
    difference = torch.where(mask, logprobs - old_logprobs, 0.0)
    advantages = torch.where(mask, advantages, 0.0)
    ratio = difference.exp()
    plain = ratio * advantages
    clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high) * advantages
    loss = -torch.minimum(plain, clipped).sum() / denominator
    with torch.no_grad():
        figures = {
            "clipped": (clipped < plain).sum(),
            "ratio": torch.where(mask, ratio, 0.0).sum(),
            "kl1": -difference.sum(),
            "kl3": (ratio - 1.0 - difference).sum(),
            "gap_max": difference.abs().max(),
        }
    return loss, figures
