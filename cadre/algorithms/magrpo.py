"""Algorithms that roll out every joint action to the end: the MAGRPO family (arXiv 2508.04652), C3, multi-agent DPO."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from cadre.advantages.batch import Plan
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import Credit
from cadre.algorithms.common import Algorithm, ManySiblings
from cadre.rollout import shapes
from cadre.settings import LossConfig
from cadre.settings.section import setting_error

# The policy gradient as MAGRPO writes it (equation 5): the sum over a completion's tokens, no ratio.
POLICY_GRADIENT = LossConfig(ratio="none", aggregate="sequence_sum")
JOINT = "aligned: the g-th completions of all agents are a joint action; cross: all combinations are"


class RolledOut(Algorithm):
    """The base of the family: all agents act for a joint reward, and every joint action is rolled out to the end."""

    baseline: ClassVar[str] = "mean"

    k: ManySiblings = Field(4, description="completions of each agent at a node, also by turn or by role")
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount per turn")
    stop_at: float | None = Field(None, description="no further growth below a node whose mean reward exceeds this")
    lenient: bool = Field(False, description="the return of a completion takes the best of what follows, not the mean")
    reward_model: str | None = Field(
        None, description="folder of a model that scores joint actions; unset: the environment's reward"
    )

    @model_validator(mode="after")
    def _stops_by_what_it_learns(self) -> Self:
        if self.stop_at is not None and self.reward_model is not None:
            raise setting_error(
                "stop_at",
                f"got {self.stop_at} beside a reward_model, whose scores are known when trees have grown; expected "
                "one of the two. Remove stop_at.",
            )
        return self

    def plan(self) -> Plan:
        """Return all joint actions rolled out, return to go minus the node's baseline, plain policy gradient."""
        returns = "best_to_go" if self.lenient else "reward_to_go"
        credit = Credit.of(comparison_of(returns, "node", self.baseline, "none", self.alpha, self.gamma))
        loss, model = POLICY_GRADIENT, self.reward_model
        return Plan(self.shape(), credit, loss, reward_model=model, joint_reward=True, tree_weight="alike")

    def shape(self) -> shapes.Shape:
        """Return the shape that continues every joint action."""
        return shapes.full(self.k, "aligned", self.stop_at)


class Joint(RolledOut):
    """The family for agents that answer separately, with the choice of answers that are tried together."""

    joint: Literal["aligned", "cross"] = Field("aligned", description=JOINT)

    def shape(self) -> shapes.Shape:
        """Return the shape that continues every joint action that `joint` makes."""
        return shapes.full(self.k, self.joint, self.stop_at)


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


class MagrpoCentral(RolledOut):
    """MAGRPO with one model that writes the parts of all agents that act: the only role is `team`."""

    central = True
    name: Literal["magrpo_central"]


class C3(Algorithm):
    """C3 (arXiv 2603.06859): the mean reward below a completion minus that below the other completions."""

    name: Literal["c3"]
    k: ManySiblings = Field(2, description="completions of each role at a decision, also by turn or by role")
    joint: Literal["aligned", "cross"] = Field("aligned", description=JOINT)

    def plan(self) -> Plan:
        """Return every alternative rolled out from the one context, with the others of its decision as the baseline."""
        credit = Credit.of(comparison_of("reward_to_go", "node", "leave_one_out", "none", self.alpha))
        return Plan(shapes.full(self.k, self.joint), credit, tree_weight="alike")


class MaDpo(Joint):
    """DPO (arXiv 2305.18290) on joint actions: each role's gradient, the others' distances from the reference held
    fixed."""

    name: Literal["ma_dpo"]
    beta: float = Field(0.1, gt=0.0, description="beta of DPO: weight of the log-ratio to the reference")

    def plan(self) -> Plan:
        """Return all joint actions rolled out; better ones are preferred to worse ones of their decision."""
        return replace(super().plan(), preference=self.beta)
