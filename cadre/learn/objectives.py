"""What a policy gradient makes of each token: objectives by name, as `loss.ratio` gives it.

Pure functions of float tensors [B, T] that are 0 outside the boolean `mask` [B, T], by the tensors' own methods, so
that settings know the names without loading torch. An objective is what is maximised, and where the clip removed or
changed a token's gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class TokenTensors(Protocol):
    """What an objective may read, all [B, T]: `log_ratio` is `logprobs` less those at the start of the update."""

    @property
    def logprobs(self) -> Tensor: ...
    @property
    def log_ratio(self) -> Tensor: ...
    @property
    def advantages(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...


@dataclass(frozen=True)
class Clip:
    """A ratio's bounds `1 - low` and `1 + high`, and `dual`, its bound where the advantage is negative."""

    low: float
    high: float
    dual: float | None = None


Objective = Callable[[TokenTensors, Clip], "tuple[Tensor, Tensor]"]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """`min(r A, clip(r, 1 - low, 1 + high) A)` (PPO, arXiv 1707.06347, eq. 7; two bounds: DAPO, 2503.14476).

    With `dual` c it is at least `c A` where A < 0 (arXiv 1912.09729, eq. 5), so that no far ratio dominates.
    """
    plain = ratio * advantages
    bounded = ratio.clamp(1.0 - clip.low, 1.0 + clip.high) * advantages
    objective, clipped = plain.minimum(bounded), bounded < plain
    if clip.dual is None:
        return objective, clipped
    floor, negative = clip.dual * advantages, advantages < 0
    return objective.maximum(floor).where(negative, objective), clipped | (negative & (objective < floor))


def sequence_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """GSPO's token form (arXiv 2507.18071, eq. 14): every token has its sequence's ratio, the exponential of the mean
    log-ratio, and passes the gradient of its own log-probability."""
    mean = log_ratio.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return mean.detach().exp() * (log_ratio - log_ratio.detach()).exp()


def clipped_weight(logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """CISPO (arXiv 2506.13585, eq. 4): REINFORCE weighed by the clipped ratio, which carries no gradient itself."""
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(1.0 - clip.low, 1.0 + clip.high)
    return weight * advantages * logprobs, weight != ratio


def policy_gradient(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """`A log pi` (MAGRPO, arXiv 2508.04652, eq. 5): on-policy data only, one step a sample."""
    return advantages * logprobs


OBJECTIVES: dict[str, Objective] = {
    "token": lambda tokens, clip: clipped_surrogate(tokens.log_ratio.exp(), tokens.advantages, clip),
    "sequence": lambda tokens, clip: clipped_surrogate(
        sequence_ratio(tokens.log_ratio, tokens.mask), tokens.advantages, clip
    ),
    "cispo": lambda tokens, clip: clipped_weight(tokens.logprobs, tokens.log_ratio, tokens.advantages, clip),
    "none": lambda tokens, clip: (
        policy_gradient(tokens.logprobs, tokens.advantages),
        tokens.mask.new_zeros(tokens.mask.shape),
    ),
}
