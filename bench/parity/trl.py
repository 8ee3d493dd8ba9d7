"""TRL's GRPOTrainer and RLOOTrainer for `make parity`: the advantages they make of rewards, and their losses.

Groups have one size, as there, and a sequence has one advantage where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from bench.parity.shared import (
    PART_WEIGHTS,
    Compared,
    Inputs,
    Loss,
    by_group,
    drawn_in,
    gradients,
    losses,
    on,
    ours_among,
    ours_by_group,
    ours_by_parts,
    over_sample_deviation,
    parts_of,
    policy,
    summed,
)
from bench.parity.trees import leaf, node, sample
from bench.parity.trl_trainers import LONGEST, model_of, scored, trainer_of
from cadre.advantages.batch import charge_divergence
from cadre.advantages.returns import ScoredSample
from cadre.learn.loss_functions import Clip, clipped_surrogate
from cadre.rollout.walk import TreeSample
from cadre.settings import LossConfig

CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
# Draws.


def alike(generator: torch.Generator) -> Inputs:
    """Three groups of one size, 2 to 6."""
    return drawn_in([int(torch.randint(2, 7, (), generator=generator))] * 3, generator)


def by_sequence(generator: torch.Generator) -> Inputs:
    """Give every token the advantage of its sequence, as TRL does."""
    inputs = alike(generator)
    return replace(inputs, advantages=inputs.advantages[:, :1] * inputs.mask)


def at_first_step(generator: torch.Generator) -> Inputs:
    """Set the current policy to the old one."""
    inputs = by_sequence(generator)
    return replace(inputs, now=inputs.old)


# Advantages.


def grpo(scale_rewards: str, scale: str) -> Callable[[Inputs], Compared]:
    def compared(inputs: Inputs) -> Compared:
        cadre_value = ours_by_group(inputs, "mean", scale)
        changed = over_sample_deviation(inputs, 1e-4) if scale == "std" else cadre_value
        return cadre_value, scored(inputs, scale_rewards=scale_rewards)["advantages"], changed

    return compared


def rloo(inputs: Inputs) -> Compared:
    cadre_value = ours_by_group(inputs, "leave_one_out", "none")
    return cadre_value, scored(inputs, RLOOTrainer)["advantages"], cadre_value


def rloo_with_distance(inputs: Inputs) -> Compared:
    """RLOO with the k1 divergence from the reference model taken from the reward."""
    returns = torch.tensor([charged.return_after_costs for charged in charge_divergence(told(inputs), 0.1)])
    cadre_value = by_group(inputs, returns, lambda values: ours_among(values, "leave_one_out", "none"))
    return cadre_value, scored(inputs, RLOOTrainer, beta=0.1)["advantages"], cadre_value


def gdpo(inputs: Inputs) -> Compared:
    """Two parts of a reward, each normalised in its group, weighted, summed, and normalised over the batch."""
    parts = parts_of(inputs)
    cadre_value = ours_by_parts(inputs, parts)
    library_value = scored(
        inputs,
        rewards=torch.stack(list(parts.values()), 1),
        reward_funcs=[None] * len(parts),
        reward_func_names=list(parts),
        reward_weights=torch.tensor(PART_WEIGHTS),
        multi_objective_aggregation="normalize_then_sum",
    )["advantages"]
    # By their deviations: of a sample, with 1e-4 added.
    normalised = [over_sample_deviation(replace(inputs, scores=part), 1e-4) for part in parts.values()]
    sums = sum(weight * part for weight, part in zip(PART_WEIGHTS, normalised, strict=True))
    return cadre_value, library_value, (sums - sums.mean()) / (sums.std() + 1e-4)


def told(inputs: Inputs) -> list[ScoredSample]:
    """Every sequence as a sample that is worth its score, with the log-probabilities of both models."""
    samples = []
    for row, length in enumerate(inputs.lengths.tolist()):
        answer = replace(sample("a", "a"), token_ids=(7,) * length, logprobs=tuple(inputs.old[row, :length].tolist()))
        root = replace(node(0, {"a": 1}, [leaf({"a": 0})]), samples={"a": (answer,)})
        reference = tuple(inputs.reference[row, :length].tolist())
        samples.append(
            ScoredSample(TreeSample(row, (), (), root, "a", 0), reference, returns=float(inputs.scores[row]))
        )
    return samples


# Losses.


def theirs(**options: Any) -> Callable[[Inputs], Loss]:
    def of(inputs: Inputs) -> Loss:
        batch = scored(inputs, **options) | {"advantages": inputs.advantages}
        trainer = trainer_of(inputs, GRPOTrainer, **options)
        return lambda now: GRPOTrainer._compute_loss(trainer, model_of(now), batch)

    return of


def loss(
    settings: LossConfig, by_theirs: Callable[[Inputs], Loss] | None = None, **options: Any
) -> Callable[[Inputs], Compared]:
    return losses(policy(settings), theirs(**options), by_theirs)


def rloo_loss(inputs: Inputs) -> Loss:
    batch = scored(inputs, RLOOTrainer) | {"advantages": inputs.advantages[:, 0]}
    trainer = trainer_of(inputs, RLOOTrainer)
    return lambda now: RLOOTrainer._compute_loss(trainer, model_of(now), batch)


def clipped_product(inputs: Inputs) -> Loss:
    """The clipped surrogate of the product of a sequence's ratios."""

    def of(now: Tensor) -> Tensor:
        ratio = ((now - inputs.old) * inputs.mask).sum(1).exp()
        return -clipped_surrogate(ratio, inputs.advantages[:, 0], Clip(0.2, 0.28))[0].mean()

    return of


def one_ratio(inputs: Inputs) -> Loss:
    """GSPO's ratio with a gradient through every token of the sequence, whatever each one's advantage."""

    def of(now: Tensor) -> Tensor:
        ratio = ((now - inputs.old) * inputs.mask).sum(1) / inputs.lengths
        clipped = clipped_surrogate(ratio.exp().unsqueeze(1), inputs.advantages, Clip(0.2, 0.28))[0]
        return -summed(inputs, "sequence_mean", clipped)

    return of


def with_k3(inputs: Inputs) -> Loss:
    """Our loss with k3 in place of k2."""
    bare = policy(LossConfig(aggregate="sequence_mean", **CLIPS))(inputs)

    def of(now: Tensor) -> Tensor:
        gap = now - inputs.reference
        return bare(now) + 0.3 * summed(inputs, "sequence_mean", (-gap).exp() - 1.0 + gap)

    return of


def with_mean_entropy(inputs: Inputs) -> Loss:
    """Our loss less the mean entropy of all tokens."""
    bare = policy(LossConfig(aggregate="sequence_mean", **CLIPS))(inputs)
    return lambda now: bare(now) - 0.3 * summed(inputs, "token_mean", now.square())


def correction(mode: str, kind: str, level: str) -> Callable[[Inputs], Compared]:
    """The weight against the mismatch of sampler and learner; theirs has an upper bound only, ours none below."""
    settings = LossConfig(correction=kind, correction_level=level, correction_low=0.0, correction_high=2.0, **CLIPS)
    return loss(settings, loss_type="bnpo", use_vllm=True, vllm_importance_sampling_mode=mode)


SEQUENCE, TOKEN = LossConfig(aggregate="sequence_mean", **CLIPS), LossConfig(**CLIPS)
OF_SEQUENCE = {"ratio": "sequence", **CLIPS}
CISPO = {"ratio": "cispo", "clip_high": 0.28}
REINFORCE = LossConfig(ratio="none", aggregate="sequence_sum")
FUNCTIONS = (
    on(
        alike,
        {
            "grpo": grpo("group", "std"),
            "grpo without std": grpo("none", "none"),
            "gdpo": gdpo,
            "rloo": rloo,
            "rloo, k1 in the reward": rloo_with_distance,
            "gspo, advantages by token": losses(
                policy(LossConfig(aggregate="sequence_mean", **OF_SEQUENCE)),
                theirs(importance_sampling_level="sequence"),
                one_ratio,
            ),
        },
    )
    | on(
        by_sequence,
        {
            "grpo loss": loss(SEQUENCE, loss_type="grpo"),
            "bnpo loss": loss(TOKEN, loss_type="bnpo"),
            "dr_grpo loss": loss(LossConfig(aggregate="sequence_sum", divisor=LONGEST, **CLIPS), loss_type="dr_grpo"),
            "dapo loss": loss(TOKEN, loss_type="dapo"),
            "two-sided clipping": loss(LossConfig(dual_clip=1.5, **CLIPS), loss_type="dapo", delta=1.5),
            "gspo": loss(LossConfig(aggregate="sequence_mean", **OF_SEQUENCE), importance_sampling_level="sequence"),
            "gspo, dapo loss": loss(LossConfig(**OF_SEQUENCE), loss_type="dapo", importance_sampling_level="sequence"),
            "luspo": loss(
                LossConfig(aggregate="sequence_sum", **OF_SEQUENCE),
                loss_type="luspo",
                importance_sampling_level="sequence",
            ),
            # their bound is the ratio's own, ours what is above 1; one below is out of reach at 0.001
            "cispo": loss(
                LossConfig(clip_low=0.2, **CISPO),
                policy(LossConfig(clip_low=0.999, **CISPO)),
                loss_type="cispo",
                epsilon_high=1.28,
            ),
            "kl in the loss": loss(
                LossConfig(aggregate="sequence_mean", kl=0.3, **CLIPS), with_k3, loss_type="grpo", beta=0.3
            ),
            "entropy bonus": loss(
                LossConfig(aggregate="sequence_mean", entropy=0.3, **CLIPS),
                with_mean_entropy,
                loss_type="grpo",
                _entropy_bonus_enabled=True,
            ),
            "token weights, truncated": correction("token_truncate", "truncate", "token"),
            "token weights, masked": correction("token_mask", "mask", "token"),
            "sequence weights, truncated": correction("sequence_truncate", "truncate", "sequence"),
            "sequence weights, masked": correction("sequence_mask", "mask", "sequence"),
            "rloo loss": losses(policy(REINFORCE), rloo_loss, clipped_product),
        },
    )
    | on(
        at_first_step,
        {
            "rloo loss, first step": gradients(policy(REINFORCE), rloo_loss),
            "kl times the ratio, first step": gradients(
                policy(LossConfig(aggregate="sequence_mean", kl=0.3, **CLIPS)),
                theirs(loss_type="grpo", beta=0.3, use_bias_correction_kl=True),
            ),
        },
    )
)
