"""SkyRL's `ppo_utils` for `make parity`: advantages, reductions, losses, corrections, divergences, the value loss.

Its PPO and CISPO losses and its corrections make every ratio in float32, after a bound of 20 on its logarithm, so that
what is compared has to be told ratios of that precision to agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest import mock

import torch
import typing_extensions
from loguru import logger
from torch import Tensor

from bench.parity.shared import (
    Compared,
    Inputs,
    Loss,
    divergences,
    drawn,
    estimator,
    losses,
    on,
    ours_white,
    policy,
    unwhitened_gae,
    weights_of,
)
from cadre.learn.loss import importance, value_loss
from cadre.learn.loss_functions import Clip, clipped_surrogate
from cadre.settings import LossConfig

# It declares models by a TypedDict that pydantic refuses below Python 3.12.
with mock.patch("typing.TypedDict", typing_extensions.TypedDict):
    ppo_utils: Any = import_module("skyrl.backends.skyrl_train.utils.ppo_utils")
    config: Any = import_module("skyrl.train.config")
logger.remove()  # a warning for every group of one
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
GSPO = {"ratio": "sequence", "aggregate": "sequence_mean", **CLIPS}
LONGEST = 7


# Advantages.


def whitening(inputs: Inputs) -> Compared:
    """They divide by the deviation of a sample, with 1e-8 in its square."""
    flat = inputs.advantages[inputs.mask]
    cadre_value = ours_white(flat)
    library_value = ppo_utils.masked_whiten(inputs.advantages, inputs.mask.double())[inputs.mask]
    return cadre_value, library_value, cadre_value * flat.std(unbiased=False) / (flat.var() + 1e-8).sqrt()


# Reductions and losses: a reduction is made of the advantages, and the loss is a sum.


def reduced(inputs: Inputs, reduction: str) -> Tensor:
    return ppo_utils.apply_loss_reduction_to_advantages_minibatch(
        inputs.advantages, inputs.mask.double(), reduction, len(inputs.group), LONGEST
    )


def aggregation(reduction: str, aggregate: str, divisor: float = 1.0) -> Callable[[Inputs], Compared]:
    def compared(inputs: Inputs) -> Compared:
        cadre_value = (weights_of(inputs, aggregate, divisor).unsqueeze(1) * inputs.advantages)[inputs.mask]
        return cadre_value, reduced(inputs, reduction)[inputs.mask], cadre_value

    return compared


def theirs(name: str, reduction: str, **correction: float | str) -> Callable[[Inputs], Loss]:
    settings = config.AlgorithmConfig(
        policy_loss_type=name,
        loss_reduction=reduction,
        eps_clip_low=0.2,
        eps_clip_high=0.28,
        clip_ratio_c=3.0,
        cispo=config.CISPOConfig(cispo_eps_clip_low=0.2, cispo_eps_clip_high=0.28),
        off_policy_correction=config.OffPolicyCorrectionConfig(**correction),
    )

    def of(inputs: Inputs) -> Loss:
        of_tokens = ppo_utils.PolicyLossRegistry.get(name)
        inputs_of_loss = (inputs.old, reduced(inputs, reduction), settings, inputs.mask.double(), inputs.sampled)
        return lambda now: of_tokens(now, *inputs_of_loss)[0]

    return of


def single(log_ratio: Tensor) -> Tensor:
    """The ratio in their precision."""
    return log_ratio.float().clamp(-20.0, 20.0).exp().double()


def ppo_in_single(inputs: Inputs) -> Loss:
    clip = Clip(0.2, 0.28, 3.0)

    def of(now: Tensor) -> Tensor:
        weighed = weights_of(inputs, "token_mean").unsqueeze(1) * inputs.advantages * inputs.mask
        return -clipped_surrogate(single(now - inputs.old), weighed, clip)[0].sum()

    return of


def cispo_in_single(inputs: Inputs) -> Loss:
    rounded = replace(inputs, old=inputs.now - single(inputs.now - inputs.old).log())
    return policy(LossConfig(ratio="cispo", **CLIPS))(rounded)


# Corrections, on the one loss whose ratios are float64.


def corrected(settings: LossConfig) -> Callable[[Inputs], Loss]:
    """Our loss with the weights of a level in their precision, which the first token of a sequence then carries."""

    def of(inputs: Inputs) -> Loss:
        log_rho = torch.where(inputs.mask, inputs.old - inputs.sampled, 0.0)
        if settings.correction_level == "sequence":
            first = single(log_rho.sum(1, keepdim=True)).log()
            log_rho = torch.cat([first, torch.zeros_like(log_rho[:, 1:])], dim=1)
        else:
            log_rho = single(log_rho).log()
        return policy(settings)(replace(inputs, sampled=inputs.old - log_rho))

    return of


def correction(kind: str, level: str, **options: float | str) -> Callable[[Inputs], Compared]:
    settings = LossConfig(correction=kind, correction_level=level, correction_high=2.0, **GSPO)
    return losses(policy(settings), theirs("gspo", "sequence_mean", **options), corrected(settings))


def filtered(settings: LossConfig) -> Callable[[Inputs], Loss]:
    """Our loss with whole sequences left out where our mask has weight 0, and no weight on the others."""

    def of(inputs: Inputs) -> Loss:
        rho, _ = importance(torch.where(inputs.mask, inputs.old - inputs.sampled, 0.0), inputs.mask, settings)
        bare = settings.model_copy(update={"correction": "none"})
        return policy(bare, lambda batch: weights_of(batch, settings.aggregate) * (rho[:, 0] > 0))(inputs)

    return of


def sequence_filter(level: str, **options: float | str) -> Callable[[Inputs], Compared]:
    settings = LossConfig(correction="mask", correction_level=level, **GSPO)
    return losses(policy(settings), theirs("gspo", "sequence_mean", **options), filtered(settings))


# Values.


def clipped_values(inputs: Inputs) -> Compared:
    """They take the mean of each sequence, then that of the sequences; ours weighs all values alike."""
    now, old, returns = (part[inputs.mask] for part in (inputs.now, inputs.old, inputs.advantages))
    alike, by_sequence = (
        weights_of(inputs, aggregate).unsqueeze(1).expand_as(inputs.mask)[inputs.mask]
        for aggregate in ("token_mean", "sequence_mean")
    )
    library_value, _ = ppo_utils.ppo_critic_loss(
        inputs.now, inputs.old, inputs.advantages, config.AlgorithmConfig(value_clip=0.2), inputs.mask.double()
    )
    return value_loss(now, old, returns, alike, 0.2), library_value, value_loss(now, old, returns, by_sequence, 0.2)


named = ppo_utils.AdvantageEstimatorRegistry.get
FUNCTIONS = on(
    drawn,
    {
        "grpo": estimator(named("grpo"), "mean", "std"),
        "grpo without std": estimator(named("grpo"), "mean", "none", grpo_norm_by_std=False),
        "rloo": estimator(named("rloo"), "leave_one_out", "none", single="zero"),
        "maxrl": estimator(named("maxrl"), "mean", "mean"),
        "gae": unwhitened_gae(ppo_utils, ppo_utils),
        "whitening": whitening,
        "token mean": aggregation("token_mean", "token_mean"),
        "sequence mean": aggregation("sequence_mean", "sequence_mean"),
        "sequence sum by divisor": aggregation("seq_mean_token_sum_norm", "sequence_sum", LONGEST),
        "ppo, dual clip": losses(
            policy(LossConfig(dual_clip=3.0, **CLIPS)), theirs("dual_clip", "token_mean"), ppo_in_single
        ),
        "gspo": losses(policy(LossConfig(**GSPO)), theirs("gspo", "sequence_mean")),
        "cispo": losses(policy(LossConfig(ratio="cispo", **CLIPS)), theirs("cispo", "token_mean"), cispo_in_single),
        "token weights, truncated": correction(
            "truncate", "token", tis_ratio_type="token", token_tis_ratio_clip_high=2.0
        ),
        "token weights, masked": correction(
            "mask",
            "token",
            tis_ratio_type="token",
            token_tis_ratio_clip_high=2.0,
            token_mask_is_threshold_low=0.5,
            token_mask_is_threshold_high=2.0,
        ),
        "sequence weights, truncated": correction(
            "truncate", "sequence", tis_ratio_type="sequence", sequence_tis_ratio_clip_high=2.0
        ),
        "sequence filter": sequence_filter(
            "sequence", sequence_mask_metric="product", product_mask_low=0.5, product_mask_high=2.0
        ),
        "geometric filter": sequence_filter(
            "geometric", sequence_mask_metric="geometric", geo_mask_low=0.5, geo_mask_high=2.0
        ),
        "clipped value loss": clipped_values,
    }
    | divergences(lambda now, old, name: ppo_utils.compute_approx_kl(now, old, kl_estimator_type=name)),
)
