"""verl's `core_algos` for `make parity`: advantages, aggregations, losses, divergences, the value loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

from bench.parity.shared import (
    PART_WEIGHTS,
    Compared,
    Inputs,
    Loss,
    divergences,
    drawn,
    estimator,
    losses,
    on,
    ours_by_parts,
    parts_of,
    policy,
    unwhitened_gae,
    weights_of,
    with_raw_score,
)
from cadre.learn.loss import value_loss
from cadre.settings import LossConfig

ACTOR = ActorConfig(
    strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=0.2, clip_ratio_high=0.28
)


def with_epsilon(inputs: Inputs) -> Tensor:
    """Return token weights of a mean over sequences that adds 1e-8 to each length."""
    return weights_of(inputs, "sequence_mean") * inputs.lengths / (inputs.lengths + 1e-8)


def aggregation(mode: str, aggregate: str) -> Callable[[Inputs], Compared]:
    def compared(inputs: Inputs) -> Compared:
        weights = weights_of(inputs, aggregate, float(inputs.mask.shape[1]) if mode.endswith("norm") else 1.0)
        changed = with_epsilon(inputs) if mode == "seq-mean-token-mean" else weights
        cadre_value, by_theirs = (
            (weight.unsqueeze(1) * inputs.now * inputs.mask).sum() for weight in (weights, changed)
        )
        return cadre_value, core_algos.agg_loss(inputs.now, inputs.mask.double(), mode), by_theirs

    return compared


def loss(name: str, mode: str, settings: LossConfig) -> Callable[[Inputs], Compared]:
    def theirs(inputs: Inputs) -> Loss:
        inputs_of_loss = (inputs.advantages, inputs.mask.double(), mode, ACTOR)
        return lambda now: core_algos.get_policy_loss_fn(name)(inputs.old, now, *inputs_of_loss)[0]

    by_theirs = policy(settings, with_epsilon) if settings.aggregate == "sequence_mean" else None
    return losses(policy(settings), theirs, by_theirs)


def clipped_values(inputs: Inputs) -> Compared:
    now, old, returns = (part[inputs.mask] for part in (inputs.now, inputs.old, inputs.advantages))
    cadre_value = value_loss(now, old, returns, torch.full((len(now),), 1.0 / len(now)), 0.2)
    library_value, _ = core_algos.compute_value_loss(
        inputs.now, inputs.advantages, inputs.old, inputs.mask.double(), 0.2
    )
    return cadre_value, library_value, cadre_value


def gdpo(inputs: Inputs) -> Compared:
    """Two parts of a reward; float32 there, which is made float64 here."""
    parts, mask = parts_of(inputs), inputs.mask.double()
    with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(np, "float32", np.float64):
        library_value, _ = core_algos.compute_gdpo_outcome_advantage(
            token_level_rewards=mask,
            response_mask=mask,
            index=np.array(inputs.group),
            config={"gdpo_reward_keys": list(parts), "gdpo_reward_weights": PART_WEIGHTS},
            non_tensor_batch={name: part.numpy() for name, part in parts.items()},
            batch={"prompts": mask[:, :1], "attention_mask": torch.cat((mask[:, :1], mask), 1).long()},
        )
    # By theirs: groups of one keep their score, and mean and deviation of the batch are those of a sample of tokens.
    normalised = [with_raw_score(replace(inputs, scores=part), part, "std") for part in parts.values()]
    sums = sum(weight * part for weight, part in zip(PART_WEIGHTS, normalised, strict=True))
    tokens = sums.repeat_interleave(inputs.lengths)
    changed = (sums - tokens.mean()) / (tokens.var() + 1e-8).sqrt()
    cadre_value = ours_by_parts(inputs, parts)
    return cadre_value.unsqueeze(1) * mask, library_value, changed.unsqueeze(1) * mask


named = core_algos.get_adv_estimator_fn
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
FUNCTIONS = on(
    drawn,
    {
        "grpo": estimator(named("grpo"), "mean", "std"),
        "grpo without std": estimator(named("grpo"), "mean", "none", norm_adv_by_std_in_grpo=False),
        "gdpo": gdpo,
        "rloo": estimator(named("rloo"), "leave_one_out", "none"),
        "rloo vectorised": estimator(named("rloo_vectorized"), "leave_one_out", "none", single="zero"),
        "gae": unwhitened_gae(core_algos, core_algos.verl_F),
        "token mean": aggregation("token-mean", "token_mean"),
        "sequence mean": aggregation("seq-mean-token-mean", "sequence_mean"),
        "sequence sum": aggregation("seq-mean-token-sum", "sequence_sum"),
        "sequence sum by divisor": aggregation("seq-mean-token-sum-norm", "sequence_sum"),
        "ppo, dual clip": loss("vanilla", "token-mean", LossConfig(dual_clip=3.0, **CLIPS)),
        "gspo": loss("gspo", "seq-mean-token-mean", LossConfig(ratio="sequence", aggregate="sequence_mean", **CLIPS)),
        "cispo": loss("cispo", "token-mean", LossConfig(ratio="cispo", **CLIPS)),
        "clipped value loss": clipped_values,
    }
    | divergences(core_algos.kl_penalty_forward),
)
