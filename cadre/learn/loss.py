"""How an advantage becomes a gradient. Pure functions of tensors; what they leave out: models, devices, batching.

Shapes: B sequences of T tokens, float32 except for the boolean mask. A loss is the sum over the masked tokens, each
weighed by its sequence's weight (`cadre.learn.aggregation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cadre.errors import ContractError
from cadre.learn.corrections import CORRECTIONS, LEVELS
from cadre.learn.objectives import OBJECTIVES, Clip
from cadre.settings import LossConfig
from cadre.settings.user_code import load_function


@dataclass(frozen=True)
class Tokens:
    """What the loss is told of B sequences of T tokens; all [B, T], float32 except for the boolean mask.

    `logprobs` are those of the policy being trained and carry the gradient; `old` those at the start of the update,
    which the ratio is about; `rollout_logprobs` the sampler's own; `reference` those of the reference model; `entropy`
    carries the gradient where there is a bonus for it. `mask` is True where the policy sampled the token: nothing
    outside it is ever read.
    """

    logprobs: Tensor
    old: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    mask: Tensor
    entropy: Tensor
    reference: Tensor

    @property
    def log_ratio(self) -> Tensor:
        """log(pi / pi_old)."""
        return self.logprobs - self.old

    def masked(self) -> Tokens:
        """The same with zeros outside the mask, through which no gradient passes."""
        inside = {
            name: torch.where(self.mask, value, 0.0) for name, value in vars(self).items() if value is not self.mask
        }
        return replace(self, **inside)


def annealed(config: LossConfig, progress: float) -> LossConfig:
    """The loss when `progress` of the run's updates, 0 to 1, are done."""
    if config.schedule == "constant":
        return config
    left = max(0.0, 1.0 - progress)
    return config.model_copy(update={"entropy": config.entropy * left, "kl": config.kl * left})


def policy_loss(tokens: Tokens, weights: Tensor, config: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """`-sum_i weights[i] * sum_t (c[i, t] * objective[i, t] + entropy * H[i, t] - kl * c[i, t] * r[i, t] * k2[i, t])`.

    `objective` is what `config.ratio` names, `c` what `config.correction` does, `weights` [B] what a token of each
    sequence weighs. k2 = (log pi - log reference)^2 / 2, whose gradient is that of KL(pi || reference) on samples of
    pi (arXiv 2510.01555, section 4; k3 as a loss has another one). After the first of several optimiser steps the
    samples are those of an earlier pi, so it is weighed by r = pi / pi_old without a gradient, which is 1 before.

    Returns the scalar loss, and the metrics of `token_metrics`.
    """
    tokens = tokens.masked()
    clip = Clip(config.clip_low, config.clip_high, config.dual_clip)
    objective, clipped = _checked_objective(
        load_function("loss.ratio", config.ratio, OBJECTIVES)(tokens, clip), tokens, config
    )
    correction, corrected = importance(tokens.old - tokens.rollout_logprobs, tokens.mask, config)
    divergence = 0.5 * (tokens.logprobs - tokens.reference).square()
    on_policy = correction * tokens.log_ratio.detach().exp()
    value = correction * objective + config.entropy * tokens.entropy - config.kl * on_policy * divergence
    loss = -(weights.unsqueeze(1) * torch.where(tokens.mask, value, 0.0)).sum()
    return loss, token_metrics(tokens, clipped, corrected)


def importance(log_rho: Tensor, mask: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """Weights [B, T] against the mismatch of sampler and learner, and where they are not rho; no gradient passes.

    `log_rho` [B, T] is old - rollout_logprobs. Ones where the correction is none.
    """
    level = load_function("loss.correction_level", config.correction_level, LEVELS)
    correct = load_function("loss.correction", config.correction, CORRECTIONS)
    log_rho = log_rho.detach()
    levelled = level(log_rho, mask)
    if ":" in config.correction_level:
        _check_numbers("loss.correction_level", config.correction_level, levelled, mask, (log_rho,))
    weights = correct(levelled.exp(), config.correction_low, config.correction_high)
    if ":" not in config.correction:
        return weights
    pair = _pair("loss.correction", config.correction, weights, "weights [B, T] and which of them it changed")
    _check_numbers("loss.correction", config.correction, pair[0], mask, (levelled.exp(),))
    _check_truths("loss.correction", config.correction, pair[1], mask)
    return pair


def _checked_objective(result: Any, tokens: Tokens, config: LossConfig) -> tuple[Tensor, Tensor]:
    """What the function that `config.ratio` names returned. Raises ContractError where it is the user's and returned
    something else than an objective and a boolean a token."""
    if ":" not in config.ratio:
        known: tuple[Tensor, Tensor] = result
        return known
    pair = _pair("loss.ratio", config.ratio, result, "the objective [B, T] and which tokens it clipped")
    given = (tokens.logprobs, tokens.old, tokens.rollout_logprobs, tokens.advantages)
    _check_numbers("loss.ratio", config.ratio, pair[0], tokens.mask, given)
    _check_truths("loss.ratio", config.ratio, pair[1], tokens.mask)
    return pair


def _pair(setting: str, name: str, result: Any, what: str) -> tuple[Tensor, Tensor]:
    if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(one, Tensor) for one in result):
        raise ContractError(
            f"{setting}: {name} returned {_described(result)}; expected two tensors, {what}. Return both."
        )
    return result


def _described(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(one).__name__ for one in result) or 'nothing'}"
    return f"a tensor of {list(result.shape)}" if isinstance(result, Tensor) else f"{type(result).__name__}"


def _check_numbers(setting: str, name: str, numbers: Any, mask: Tensor, given: Sequence[Tensor]) -> None:
    """Raises ContractError where a function of the user's makes something else of finite numbers than finite numbers, a
    token each; what was not finite before is not its fault."""
    if not isinstance(numbers, Tensor) or numbers.shape != mask.shape or not numbers.is_floating_point():
        kind = f" of {numbers.dtype}" if isinstance(numbers, Tensor) else ""
        raise ContractError(
            f"{setting}: {name} returned {_described(numbers)}{kind} for tokens of {list(mask.shape)}; expected a "
            "number a token, a float tensor of that shape. Return that."
        )
    wrong = mask & ~numbers.isfinite()
    for tensor in given:
        wrong = wrong & tensor.isfinite()
    if bool(wrong.any()):
        first = float(numbers.detach()[wrong][0])
        raise ContractError(
            f"{setting}: {name} returned {first} for {int(wrong.sum())} of {int(mask.sum())} "
            "sampled tokens, whose log-probabilities and advantages are finite; expected finite numbers. Guard what it "
            "divides by or takes the logarithm of, and bound what it raises e to."
        )


def _check_truths(setting: str, name: str, truths: Tensor, mask: Tensor) -> None:
    if truths.shape != mask.shape or truths.dtype != torch.bool:
        raise ContractError(
            f"{setting}: {name} returned {_described(truths)} of {truths.dtype} as its second; expected a boolean a "
            f"token, {list(mask.shape)}. Return that."
        )


@torch.no_grad()
def token_metrics(tokens: Tokens, clipped: Tensor, corrected: Tensor) -> dict[str, Tensor]:
    """SUMS over the masked tokens; `gap_max` is a maximum.

    `clipped` tokens whose gradient the clip removed or changed, `corrected` ones whose weight the correction changed,
    `ratio` to the sampler, `kl1` and `kl3` (the estimators k1 and k3 of KL(sampler || policy) of
    http://joschu.net/blog/kl-approx.html), `kl_reference` (k1 of KL(policy || reference)), `entropy`, `gap_max` the
    largest |logprobs - rollout_logprobs|. `tokens` are 0 outside the mask.
    """
    gap = tokens.logprobs - tokens.rollout_logprobs
    return {
        "clipped": (clipped & tokens.mask).sum(),
        "corrected": (corrected & tokens.mask).sum(),
        "ratio": (gap.exp() * tokens.mask).sum(),
        "kl1": -gap.sum(),
        "kl3": (gap.exp() - 1.0 - gap).sum(),
        "kl_reference": (tokens.logprobs - tokens.reference).sum(),
        "entropy": tokens.entropy.sum(),
        "gap_max": gap.abs().max(),
    }
