"""The plan of an experiment: how it samples, what its samples are worth, and how that becomes a gradient."""

from __future__ import annotations

from dataclasses import dataclass

from cadre.advantages.credit import Credit
from cadre.advantages.critic_inputs import Critic
from cadre.rollout.tree_shape import Shape
from cadre.settings import CreditConfig, LossConfig, TreeWeight

# PPO's clipped ratio over the tokens of the whole batch; every sample is learned from, whatever its role or length.
CLIPPED = LossConfig()
ALL = CreditConfig()


@dataclass(frozen=True)
class Plan:
    """A point in the choices of DESIGN that makes an algorithm.

    With a `critic` the samples are worth what they earned beyond its values, else what `credit` makes of their groups;
    `kl` weighs the penalty k1 in the reward; `reward_model` is the folder of the model that pays in place of the task:
    each answer, or with `joint_reward` the team for all that is said at once.
    `tree_weight` is what weighs alike in an update, `selection` which samples are learned from, and how much; with
    `only_positive` those without a positive advantage are left out. With `preference`, the beta of DPO, joint actions
    of one decision are preferred to those that earned less, and nothing else is learned.
    """

    shape: Shape
    credit: Credit
    loss: LossConfig = CLIPPED
    critic: Critic | None = None
    kl: float = 0.0
    reward_model: str | None = None
    joint_reward: bool = False
    tree_weight: TreeWeight = "by_sample"
    selection: CreditConfig = ALL
    only_positive: bool = False
    preference: float | None = None
