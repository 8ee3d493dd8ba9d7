"""The MAGRPO family: the same tree, return and loss; only the baseline differs (arXiv 2508.04652)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from cadre.advantages.credit import Credit
from cadre.advantages.plan import Plan
from cadre.algorithms.common import Algorithm, ManySiblings
from cadre.rollout import tree_shape
from cadre.settings import LossConfig
from cadre.settings.section import refused

# The policy gradient as MAGRPO writes it (equation 5): the sum over a completion's tokens, no ratio.
POLICY_GRADIENT = LossConfig(ratio="none", aggregate="sequence_sum")


class PlayedOut(Algorithm):
    """What the family has in common: all agents act for a joint reward, and every joint action is played out."""

    baseline: ClassVar[str] = "mean"

    k: ManySiblings = Field(4, description="completions of each agent at a node, also by turn or by role")
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount of a turn")
    stop_at: float | None = Field(None, description="grow no further below a node whose mean reward passes this")
    lenient: bool = Field(False, description="what follows a completion counts by its best, not by its mean")
    reward_model: str | None = Field(
        None, description="folder of a model that scores all that is said at once; unset: the environment's reward"
    )

    @model_validator(mode="after")
    def _stops_by_what_it_learns(self) -> Self:
        if self.stop_at is not None and self.reward_model is not None:
            raise refused(
                "stop_at",
                f"got {self.stop_at} beside a reward_model, whose scores are known when trees have grown; expected "
                "one of the two. Remove stop_at.",
            )
        return self

    def plan(self) -> Plan:
        """All joint actions played out, the return to go minus the node's baseline, the plain policy gradient."""
        return Plan(
            self.shape(),
            self.credit(self.baseline),
            POLICY_GRADIENT,
            reward_model=self.reward_model,
            joint_reward=True,
            tree_weight="alike",
        )

    def credit(self, baseline: str) -> Credit:
        """The return to go minus a baseline of the node."""
        returns = "best_to_go" if self.lenient else "reward_to_go"
        return Credit(returns, "node", baseline, "none", self.alpha, self.gamma)

    def shape(self) -> tree_shape.Shape:
        """Every joint action carries on."""
        return tree_shape.full(self.k, "aligned", self.stop_at)


class Joint(PlayedOut):
    """The family where agents answer apart, so that somebody must say which answers are tried together."""

    joint: Literal["aligned", "cross"] = Field("aligned", description="the g-th of every agent together, or all pairs")

    def shape(self) -> tree_shape.Shape:
        """Every joint action carries on, of those that `joint` makes."""
        return tree_shape.full(self.k, self.joint, self.stop_at)


class Magrpo(Joint):
    """MAGRPO (arXiv 2508.04652): return minus the node's mean, no ratio, no clip."""

    name: Literal["magrpo"]


class MaReinforce(Joint):
    """MAREINFORCE: the return itself, without a baseline."""

    baseline = "none"
    name: Literal["ma_reinforce"]


class MaRloo(Joint):
    """MARLOO: the return minus the mean of the other completions of the node."""

    baseline = "leave_one_out"
    name: Literal["ma_rloo"]


class MaRemax(Joint):
    """MAREMAX: the return minus the best of the node."""

    baseline = "max"
    name: Literal["ma_remax"]


class MagrpoCentral(PlayedOut):
    """MAGRPO with one model that writes the parts of all agents that act: the only role is `team`."""

    central = True
    name: Literal["magrpo_central"]
