"""Value heads and their loss, in plain torch. Their inputs and targets come from `cadre.advantages.critic`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class ValueHeads:
    """Linear heads on the trunk's last hidden state, by policy and name. Live as long as the trunk.

    A head starts at zero: before any training every value is 0. Its output is float32 whatever the trunk's precision.
    """

    def __init__(self, names: Mapping[str, Sequence[str]], size: int, device: torch.device) -> None:
        self.heads = {policy: {name: _zero(size, device) for name in heads} for policy, heads in names.items()}

    def parameters(self, policy: str) -> dict[str, nn.Parameter]:
        """Return the weights of one policy's heads, `NAME.weight` [1, H] and `NAME.bias` [1]."""
        heads = self.heads.get(policy, {}).items()
        return {f"{name}.{key}": weight for name, head in heads for key, weight in head.named_parameters()}

    def __call__(self, hidden: Tensor, names: Sequence[tuple[str, str]]) -> Tensor:
        """Return the values [N] of hidden states [N, H]; `names[n]` is the (policy, head) that reads the n-th."""
        values = hidden.new_zeros(len(names), dtype=torch.float32)
        for policy, head in dict.fromkeys(names):
            mask = torch.tensor([name == (policy, head) for name in names], device=hidden.device)
            values = values.masked_scatter(mask, self.heads[policy][head](hidden[mask].float()).squeeze(1))
        return values


def _zero(size: int, device: torch.device) -> nn.Linear:
    head = nn.Linear(size, 1, device=device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def value_loss(values: Tensor, old: Tensor, returns: Tensor, weights: Tensor, clip: float | None) -> Tensor:
    """Return `sum_n weights[n] * max((v - R)^2, (old + clip(v - old, -c, c) - R)^2) / 2` over N values; all [N].

    PPO's clipped value loss as in its public code (arXiv 2005.12729, section 3); without a clip the squared error.
    """
    error = (values - returns).square()
    if clip is not None:
        moved = old + (values - old).clamp(-clip, clip)
        error = torch.maximum(error, (moved - returns).square())
    return 0.5 * (weights * error).sum()
