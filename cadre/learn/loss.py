"""The losses of policies and critics: from advantages and returns to a scalar with a gradient, by pure functions.

The objectives, corrections and aggregates by name are in `cadre.learn.loss_functions`. Shapes: B sequences of T tokens,
float32 except for the boolean mask. A loss is the sum over the masked tokens, each times its sequence's weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from cadre.errors import ContractError
from cadre.learn.loss_functions import CORRECTIONS, LEVELS, OBJECTIVES, Clip
from cadre.settings import LossConfig
from cadre.settings.user_code import load_function


@dataclass(frozen=True)
class Tokens:
    """The inputs of the loss for B sequences of T tokens; all [B, T], float32 except for the boolean mask.

    logprobs          of the policy that is trained; they carry the gradient
    old               at the start of the update; the ratio is relative to them
    rollout_logprobs  of the sampler
    mask              True where the policy sampled the token; nothing outside it is ever read
    entropy           carries the gradient if there is an entropy bonus
    reference         log-probabilities under the reference model
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
        """Return log(pi / pi_old)."""
        return self.logprobs - self.old

    def masked(self) -> Tokens:
        """Return the same with zeros outside the mask, through which no gradient passes."""
        inside = {
            name: torch.where(self.mask, value, 0.0) for name, value in vars(self).items() if value is not self.mask
        }
        return replace(self, **inside)


def annealed(config: LossConfig, progress: float) -> LossConfig:
    """Return the loss settings when the fraction `progress` of the run's updates is done."""
    if config.schedule == "constant":
        return config
    factor = max(0.0, 1.0 - progress)
    return config.model_copy(update={"entropy": config.entropy * factor, "kl": config.kl * factor})


def policy_loss(tokens: Tokens, weights: Tensor, config: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the metrics of `token_metrics`.

        -sum_i weights[i] * sum_t (c[i, t] * objective[i, t] + entropy * H[i, t] - kl * c[i, t] * r[i, t] * k2[i, t])

    `objective` is that of `config.ratio`, `c` that of `config.correction`, `weights` [B] the weight of a token of each
    sequence. k2 = (log pi - log reference)^2 / 2, whose gradient is that of KL(pi || reference) on samples of
    pi (arXiv 2510.01555, section 4; k3 as a loss has another one). After the first of several optimiser steps the
    samples are those of an earlier pi, so it is weighted by r = pi / pi_old without a gradient, which is 1 before.
    """
    tokens = tokens.masked()
    clip = Clip(config.clip_low, config.clip_high, config.dual_clip)
    result = load_function("loss.ratio", config.ratio, OBJECTIVES)(tokens, clip)
    if ":" in config.ratio:  # the user's own function
        result = _as_pair("loss.ratio", config.ratio, result, "the objective [B, T] and which tokens it clipped")
        inputs = (tokens.logprobs, tokens.old, tokens.rollout_logprobs, tokens.advantages)
        _check_numbers("loss.ratio", config.ratio, result[0], tokens.mask, inputs)
        _check_flags("loss.ratio", config.ratio, result[1], tokens.mask)
    objective, clipped = result
    correction, corrected = importance(tokens.old - tokens.rollout_logprobs, tokens.mask, config)
    divergence = 0.5 * (tokens.logprobs - tokens.reference).square()
    on_policy = correction * tokens.log_ratio.detach().exp()
    value = correction * objective + config.entropy * tokens.entropy - config.kl * on_policy * divergence
    loss = -(weights.unsqueeze(1) * torch.where(tokens.mask, value, 0.0)).sum()
    return loss, token_metrics(tokens, clipped, corrected)


def importance(log_rho: Tensor, mask: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """Return weights [B, T] against the difference of sampler and learner, and where they are not rho. No gradient.

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
    pair = _as_pair("loss.correction", config.correction, weights, "weights [B, T] and which of them it changed")
    _check_numbers("loss.correction", config.correction, pair[0], mask, (levelled.exp(),))
    _check_flags("loss.correction", config.correction, pair[1], mask)
    return pair


def _as_pair(setting: str, name: str, result: Any, expected: str) -> tuple[Tensor, Tensor]:
    if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(part, Tensor) for part in result):
        raise ContractError(
            f"{setting}: {name} returned {_described(result)}; expected two tensors, {expected}. Return both."
        )
    return result


def _described(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in result) or 'nothing'}"
    return f"a tensor of {list(result.shape)}" if isinstance(result, Tensor) else f"{type(result).__name__}"


def _check_numbers(setting: str, name: str, numbers: Any, mask: Tensor, inputs: Sequence[Tensor]) -> None:
    """Raise ContractError unless a function of the user's returned a finite number a token for finite inputs."""
    if not isinstance(numbers, Tensor) or numbers.shape != mask.shape or not numbers.is_floating_point():
        dtype = f" of {numbers.dtype}" if isinstance(numbers, Tensor) else ""
        raise ContractError(
            f"{setting}: {name} returned {_described(numbers)}{dtype} for tokens of {list(mask.shape)}; expected a "
            "number a token, a float tensor of that shape. Return that."
        )
    wrong = mask & ~numbers.isfinite()
    for tensor in inputs:
        wrong = wrong & tensor.isfinite()
    if bool(wrong.any()):
        first = float(numbers.detach()[wrong][0])
        raise ContractError(
            f"{setting}: {name} returned {first} for {int(wrong.sum())} of {int(mask.sum())} "
            "sampled tokens, whose log-probabilities and advantages are finite; expected finite numbers. Guard what it "
            "divides by or takes the logarithm of, and bound what it raises e to."
        )


def _check_flags(setting: str, name: str, flags: Tensor, mask: Tensor) -> None:
    if flags.shape != mask.shape or flags.dtype != torch.bool:
        raise ContractError(
            f"{setting}: {name} returned {_described(flags)} of {flags.dtype} as its second; expected a boolean a "
            f"token, {list(mask.shape)}. Return that."
        )


@torch.no_grad()
def token_metrics(tokens: Tokens, clipped: Tensor, corrected: Tensor) -> dict[str, Tensor]:
    """Return SUMS over the masked tokens; `gap_max` is a maximum.

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


# ---- The loss of a critic: `cadre.advantages.critic` makes its inputs and targets


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
