"""The losses of policies and critics: from advantages and returns to a scalar with a gradient, by pure functions.

The objectives, corrections and aggregates by name are in `cadre.learn.loss_functions`. Shapes: B sequences of T tokens,
float32 except for the boolean mask. A loss is the sum over the masked tokens, each times its sequence's weight.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cadre.errors import ContractError
from cadre.learn.loss_functions import CORRECTIONS, LEVELS, LOSSES, Correction, Level
from cadre.learn.tensors import take, to_device
from cadre.settings import LossConfig
from cadre.settings.objective import load_own_loss


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


@dataclass(frozen=True)
class LossFunctions:
    """The functions that a loss names, looked up once.

    loss     returns the loss of each token and metrics of each, all [B, T], from masked tokens
    metrics  names of these metrics
    """

    loss: Callable[[Tokens], tuple[Tensor, dict[str, Tensor]]]
    level: Level
    correction: Correction
    metrics: tuple[str, ...] = ("clipped",)


def load_loss(config: LossConfig) -> LossFunctions:
    """Return the functions of the settings. The user's own loss is called once, on tokens that are made up.

    Raises ContractError for a loss of the user's that fails, or that returns something else than finite numbers with
    finite gradients.
    """
    level, correction = LEVELS[config.correction_level], CORRECTIONS[config.correction]
    user_loss = load_own_loss(config)
    if user_loss is not None and config.function is not None:
        loss = partial(_own_loss, config.function, partial(user_loss, **config.settings))
        _, metrics = loss(example_tokens())
        return LossFunctions(loss, level, correction, tuple(metrics))
    bundled = LOSSES[config.ratio]
    options = [name for name in inspect.signature(bundled).parameters if name != "tokens"]
    settings = {name: getattr(config, name) for name in options}
    return LossFunctions(partial(bundled, **settings), level, correction)


def check_loss(config: LossConfig) -> None:
    """Call the user's own loss once on made-up tokens, forward and backward. Raises ContractError."""
    tokens = example_tokens()
    loss, _ = policy_loss(tokens, torch.full((len(tokens.mask),), 0.25), config)
    torch.autograd.backward(loss)


def example_tokens() -> Tokens:
    """Return made-up tokens of two completions, one of three tokens with advantage 1, one of two with -1."""
    mask = torch.tensor([[True, True, True], [True, True, False]])
    old = torch.tensor([[-0.5, -1.0, -2.0], [-0.1, -3.0, 0.0]])
    logprobs = (old + 0.01).requires_grad_()
    advantages = torch.tensor([[1.0], [-1.0]]) * mask
    entropy = torch.full((2, 3), 0.5).requires_grad_()
    return Tokens(logprobs, old, old, advantages, mask, entropy, old - 0.1).masked()


def policy_loss(
    tokens: Tokens, weights: Tensor, config: LossConfig, functions: LossFunctions | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the sums of `token_metrics` and of the loss's own metrics.

        sum_i weights[i] * sum_t (c[i, t] * loss[i, t] - entropy * H[i, t] + kl * c[i, t] * r[i, t] * k2[i, t])

    `loss` is that of `config.ratio` or `config.function`, `c` that of `config.correction`, `weights` [B] the weight of
    a token of each sequence. k2 = (log pi - log reference)^2 / 2, whose gradient is that of KL(pi || reference) on
    samples of pi (arXiv 2510.01555, section 4; k3 as a loss has another one). After the first of several optimiser
    steps the samples are those of an earlier pi, so it is weighted by r = pi / pi_old without a gradient, which is 1
    before. `functions` are those of the settings if they were loaded before.
    """
    tokens = tokens.masked()
    functions = functions or load_loss(config)
    token_loss, metrics = functions.loss(tokens)
    if tuple(metrics) != functions.metrics:
        raise ContractError(
            f"loss.function: {config.function} returned the metrics {', '.join(metrics) or 'none'}, and "
            f"{', '.join(functions.metrics) or 'none'} when it was first called; expected the same each time, so that "
            "they can be summed. Return all of them, with zeros where one means nothing."
        )
    correction, corrected = importance(tokens.old - tokens.rollout_logprobs, tokens.mask, config, functions)
    value = correction * -token_loss
    # 0 times an entropy that is no number, or a ratio that overflows, would be none either.
    if config.entropy > 0.0:
        value = value + config.entropy * tokens.entropy
    if config.kl > 0.0:
        divergence = 0.5 * (tokens.logprobs - tokens.reference).square()
        on_policy = correction * tokens.log_ratio.detach().exp()
        value = value - config.kl * on_policy * divergence
    loss = -(weights.unsqueeze(1) * torch.where(tokens.mask, value, 0.0)).sum()
    with torch.no_grad():
        user_metrics = {name: torch.where(tokens.mask, numbers, 0).sum() for name, numbers in metrics.items()}
    return loss, token_metrics(tokens, corrected) | user_metrics


def _own_loss(name: str, function: Callable[[Tokens], Any], tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
    """Return what the user's loss returns, after a check; a gradient that is no number raises ContractError, too."""
    # A view of their own, through which no other gradient passes.
    logprobs = tokens.logprobs.view_as(tokens.logprobs)
    result = function(replace(tokens, logprobs=logprobs))
    loss, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    inputs = (tokens.logprobs, tokens.old, tokens.rollout_logprobs, tokens.advantages, tokens.reference)
    _check_numbers(name, loss, tokens.mask, inputs)
    if not isinstance(metrics, Mapping) or not all(re.fullmatch(r"[\w.-]+", str(key)) for key in metrics):
        raise ContractError(
            f"loss.function: {name} returned {metrics!r} as its second; expected metrics by name, of letters, digits, "
            "dots and dashes, each a tensor [B, T]. Return those."
        )
    for key, numbers in metrics.items():
        flags = numbers.float() if isinstance(numbers, Tensor) and numbers.dtype == torch.bool else numbers
        _check_numbers(f"{name}, metric {key},", flags, tokens.mask, inputs)
    if logprobs.requires_grad:
        if not loss.requires_grad:
            raise ContractError(
                f"loss.function: {name} returned a loss without a gradient; expected one that is computed from "
                "tokens.logprobs. Do not detach it."
            )

        def check_gradient(gradient: Tensor) -> None:
            _check_numbers(f"the gradient of {name}", gradient, tokens.mask, inputs, "is")

        logprobs.register_hook(check_gradient)  # type: ignore[no-untyped-call]
    return loss, dict(metrics)


def importance(
    log_rho: Tensor, mask: Tensor, config: LossConfig, functions: LossFunctions | None = None
) -> tuple[Tensor, Tensor]:
    """Return weights [B, T] against the difference of sampler and learner, and where they are not rho. No gradient.
    `log_rho` [B, T] is old - rollout_logprobs. Ones where the correction is none."""
    functions = functions or load_loss(config)
    levelled = functions.level(log_rho.detach(), mask)
    return functions.correction(levelled.exp(), config.correction_low, config.correction_high)


def _check_numbers(name: str, numbers: Any, mask: Tensor, inputs: Sequence[Tensor], verb: str = "returned") -> None:
    """Raise ContractError unless a function of the user's returned a finite number a token for finite inputs."""
    if not isinstance(numbers, Tensor) or numbers.shape != mask.shape or not numbers.is_floating_point():
        is_tensor = isinstance(numbers, Tensor)
        got = f"a tensor of {list(numbers.shape)} of {numbers.dtype}" if is_tensor else type(numbers).__name__
        raise ContractError(
            f"loss.function: {name} returned {got} for tokens of {list(mask.shape)}; expected a number a token, a "
            "float tensor of that shape. Return that."
        )
    wrong = mask & ~numbers.isfinite()
    for tensor in inputs:
        wrong = wrong & tensor.isfinite()
    if bool(wrong.any()):
        first = float(numbers.detach()[wrong][0])
        raise ContractError(
            f"loss.function: {name} {verb} {first} for {int(wrong.sum())} of {int(mask.sum())} "
            "sampled tokens, whose log-probabilities and advantages are finite; expected finite numbers. Guard what it "
            "divides by or takes the logarithm of, and bound what it raises e to."
        )


@torch.no_grad()
def token_metrics(tokens: Tokens, corrected: Tensor) -> dict[str, Tensor]:
    """Return SUMS over the masked tokens: `corrected` are tokens whose weight the correction changed, `ratio` to the
    sampler, `kl1` and `kl3` (the estimators k1 and k3 of KL(sampler || policy) of http://joschu.net/blog/kl-approx.html),
    `kl_reference` (k1 of KL(policy || reference)), `entropy`; and `gap_max`, the largest |logprobs - rollout_logprobs|.
    `tokens` are 0 outside the mask."""
    gap = tokens.logprobs - tokens.rollout_logprobs
    return {
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
    """Linear heads on the trunk's last hidden state, by policy and name. Live as long as the trunk. A head starts at
    zero: before any training every value is 0. Its output is float32 whatever the trunk's precision."""

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
            rows = torch.tensor([row for row, name in enumerate(names) if name == (policy, head)])
            index = to_device(rows, hidden.device)
            values = values.index_put((index,), self.heads[policy][head](take(hidden, index).float()).squeeze(1))
        return values


def _zero(size: int, device: torch.device) -> nn.Linear:
    head = nn.Linear(size, 1, device=device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def value_loss(values: Tensor, old: Tensor, returns: Tensor, weights: Tensor, clip: float | None) -> Tensor:
    """Return `sum_n weights[n] * max((v - R)^2, (old + clip(v - old, -c, c) - R)^2) / 2` over N values; all [N]. PPO's
    clipped value loss as in its public code (arXiv 2005.12729, section 3); without a clip the squared error."""
    error = (values - returns).square()
    if clip is not None:
        moved = old + (values - old).clamp(-clip, clip)
        error = torch.maximum(error, (moved - returns).square())
    return 0.5 * (weights * error).sum()
