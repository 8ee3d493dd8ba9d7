"""Weights against the mismatch of sampler and learner, by name, as `loss.correction` and `loss.correction_level` say.

rho = pi(learner) / pi(sampler) at the start of the update. Pure functions of tensors [B, T] by their own methods, so
that settings know the names without loading torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# The logarithm of rho, from that of every token and the mask, both [B, T].
Level = Callable[["Tensor", "Tensor"], "Tensor"]
# The weights, and where they are not rho itself, from rho and the bounds.
Correction = Callable[["Tensor", float, float], "tuple[Tensor, Tensor]"]


def sequence_level(log_rho: Tensor, mask: Tensor) -> Tensor:
    """The product over a sequence's tokens."""
    return log_rho.sum(dim=1, keepdim=True).expand_as(log_rho)


def geometric_level(log_rho: Tensor, mask: Tensor) -> Tensor:
    """That product's root by the sequence's length (GSPO's ratio, arXiv 2507.18071, eq. 7)."""
    return (log_rho.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(log_rho)


def ones(rho: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """No correction."""
    return rho.new_ones(rho.shape), (rho > 0) & (rho < 0)


def truncated(rho: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """`min(rho, high)` (truncated importance sampling, Ionides 2008)."""
    return rho.clamp(max=high), rho > high


def masked(rho: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """rho where it lies within [low, high], else 0."""
    outside = (rho < low) | (rho > high)
    return rho.masked_fill(outside, 0.0), outside


LEVELS: dict[str, Level] = {
    "token": lambda log_rho, mask: log_rho,
    "sequence": sequence_level,
    "geometric": geometric_level,
}
CORRECTIONS: dict[str, Correction] = {"none": ones, "truncate": truncated, "mask": masked}
