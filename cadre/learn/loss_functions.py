"""The functions that a loss is made of, by the names that settings use.

    loss.ratio        LOSSES       the loss of each token; `loss.function` is the user's own
    loss.correction   CORRECTIONS  weights against the difference of sampler and learner, at LEVELS
    loss.aggregate    AGGREGATES   the weight of a token of each sequence

They work by the tensors' own methods or on plain numbers, so that settings know the names without loading torch.
Shapes: B sequences of T tokens; tensors are float and 0 outside the boolean `mask` [B, T].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cadre.declare import declare
from cadre.types import TrainingSequence

if TYPE_CHECKING:
    from torch import Tensor

    from cadre.learn.loss import Tokens


# Losses of tokens: what is minimised, and where the clip removed or changed a token's gradient.


# A ratio of half a billion, beyond any clip.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Clip:
    """A ratio's bounds `1 - low` and `1 + high`, and `dual`, its bound where the advantage is negative."""

    low: float
    high: float
    dual: float | None = None


# Returns the loss of every token, from the tokens and settings by keyword; or that, and metrics of every token by name.
Loss = Callable[..., Any]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """Return `min(r A, clip(r, 1 - low, 1 + high) A)` (PPO, arXiv 1707.06347, eq. 7; two bounds: DAPO, 2503.14476).
    With `dual` c it is at least `c A` where A < 0 (arXiv 1912.09729, eq. 5), so that no far ratio dominates."""
    plain = ratio * advantages
    bounded = ratio.clamp(1.0 - clip.low, 1.0 + clip.high) * advantages
    objective, clipped = plain.minimum(bounded), bounded < plain
    if clip.dual is None:
        return objective, clipped
    floor, negative = clip.dual * advantages, advantages < 0
    return objective.maximum(floor).where(negative, objective), clipped | (negative & (objective < floor))


def bounded(log_ratio: Tensor) -> Tensor:
    """Return log ratios whose exponential is finite. Infinite ones stay: such a sampling probability is an error."""
    return log_ratio.where(log_ratio.isinf(), log_ratio.clamp(max=MAX_LOG_RATIO))


def sequence_ratio(log_ratio: Tensor, mask: Tensor, is_clipped: Tensor) -> Tensor:
    """Return GSPO's ratio in its token form (arXiv 2507.18071, eq. 14).

    Every token has its sequence's ratio, the exponential of the mean log-ratio, and the gradient of its own
    log-probability. Where large ratios are clipped, they are bounded (`is_clipped`, see `clips_above`).
    """
    mean = log_ratio.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    mean = mean.detach().expand_as(log_ratio)
    return mean.where(~is_clipped, bounded(mean)).exp() * (log_ratio - log_ratio.detach()).exp()


def clips_above(advantages: Tensor, clip: Clip) -> Tensor:
    """Return where a ratio however large has no gradient, [B, T]. A ratio that overflows would give such a token 0
    times infinity, which is no number."""
    return (advantages >= 0) | (clip.dual is not None)


def ppo(
    tokens: Tokens, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of PPO: the clipped surrogate of every token's ratio."""
    clip = Clip(clip_low, clip_high, dual_clip)
    log_ratio = tokens.log_ratio
    log_ratio = log_ratio.where(~clips_above(tokens.advantages, clip), bounded(log_ratio))
    objective, clipped = clipped_surrogate(log_ratio.exp(), tokens.advantages, clip)
    return -objective, {"clipped": clipped}


def gspo(
    tokens: Tokens, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of GSPO: the clipped surrogate of the sequence's ratio."""
    clip = Clip(clip_low, clip_high, dual_clip)
    ratio = sequence_ratio(tokens.log_ratio, tokens.mask, clips_above(tokens.advantages, clip))
    objective, clipped = clipped_surrogate(ratio, tokens.advantages, clip)
    return -objective, {"clipped": clipped}


def cispo(tokens: Tokens, clip_low: float = 0.2, clip_high: float = 0.2) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of CISPO (arXiv 2506.13585, eq. 4): REINFORCE weighted by the clipped ratio without gradient."""
    ratio = tokens.log_ratio.detach().exp()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -(weight * tokens.advantages * tokens.logprobs), {"clipped": weight != ratio}


def policy_gradient(tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
    """Return `-A log pi` (MAGRPO, arXiv 2508.04652, eq. 5): on-policy data only, one step a sample."""
    return -(tokens.advantages * tokens.logprobs), {"clipped": tokens.mask.new_zeros(tokens.mask.shape)}


LOSSES: dict[str, Loss] = {"token": ppo, "sequence": gspo, "cispo": cispo, "none": policy_gradient}


# Corrections: weights against the difference of sampler and learner, rho = pi(learner) / pi(sampler) at the start of
# the update.

# Returns the logarithm of rho, from that of every token and the mask, both [B, T].
Level = Callable[["Tensor", "Tensor"], "Tensor"]
# Returns the weights, and where they are not rho itself, from rho and the bounds.
Correction = Callable[["Tensor", float, float], "tuple[Tensor, Tensor]"]


def geometric_level(log_rho: Tensor, mask: Tensor) -> Tensor:
    """Return the product over a sequence's tokens to the power 1 / length (GSPO's ratio, arXiv 2507.18071, eq. 7)."""
    return (log_rho.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(log_rho)


def no_correction(rho: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return ones."""
    return rho.new_ones(rho.shape), (rho > 0) & (rho < 0)


def truncated(rho: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return `min(rho, high)` (truncated importance sampling, Ionides 2008)."""
    return rho.clamp(max=high), rho > high


def masked(rho: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return rho where it lies within [low, high], else 0."""
    outside = (rho < low) | (rho > high)
    return rho.masked_fill(outside, 0.0), outside


LEVELS: dict[str, Level] = {
    "token": lambda log_rho, mask: log_rho,
    "sequence": lambda log_rho, mask: log_rho.sum(dim=1, keepdim=True).expand_as(log_rho),  # the product over tokens
    "geometric": geometric_level,
}
CORRECTIONS: dict[str, Correction] = {"none": no_correction, "truncate": truncated, "mask": masked}


# Aggregates: the weight of a token in the loss of a minibatch. It depends on the sequence's own length and on the whole
# minibatch, so that the way a minibatch is cut into micro-batches does not change the gradient.


@dataclass(frozen=True)
class Denominators:
    """The totals of one policy's whole minibatch.

    sequences  that are trained on; those that only a critic reads do not count
    tokens     of these that are trained on
    values     that value heads are trained on
    divisor    the setting `loss.divisor`
    """

    sequences: int
    tokens: int
    values: int
    divisor: float = 1.0

    @staticmethod
    def of(sequences: Sequence[TrainingSequence], divisor: float = 1.0) -> Denominators:
        """Return the totals of these sequences; no count is below 1."""
        return Denominators(
            sequences=max(1, sum(any(sequence.mask) for sequence in sequences)),
            tokens=max(1, count_trained_tokens(sequences)),
            values=max(1, sum(len(sequence.targets.at) for sequence in sequences if sequence.targets)),
            divisor=divisor,
        )


def count_trained_tokens(sequences: Sequence[TrainingSequence]) -> int:
    """Return the number of tokens that are trained on."""
    return sum(sum(sequence.mask) for sequence in sequences)


# Returns the weight of a token in a sequence of so many trained tokens.
Aggregate = Callable[[int, Denominators], float]


def token_mean(length: int, totals: Denominators) -> float:
    """Return one over all trained tokens (DAPO, arXiv 2503.14476)."""
    return 1.0 / totals.tokens


def sequence_mean(length: int, totals: Denominators) -> float:
    """Return one over the sequences and the sequence's own length (GRPO, arXiv 2402.03300)."""
    return 1.0 / (totals.sequences * max(1, length))


@declare(sums_tokens=True)
def sequence_sum(length: int, totals: Denominators) -> float:
    """Return one over the sequences and a divisor. Dr. GRPO (arXiv 2503.20783) takes the longest completion allowed,
    MAGRPO takes 1."""
    return 1.0 / (totals.sequences * totals.divisor)


AGGREGATES: dict[str, Aggregate] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
}
