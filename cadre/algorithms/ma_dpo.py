"""Multi-agent DPO on the trees that the team samples."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cadre.advantages.plan import Plan
from cadre.algorithms.magrpo import POLICY_GRADIENT, Joint


class MaDpo(Joint):
    """DPO (arXiv 2305.18290) on joint actions: each role's gradient, the others' distances from the reference held
    fixed."""

    name: Literal["ma_dpo"]
    beta: float = Field(0.1, gt=0.0, description="what a nat of distance from the reference weighs")

    def plan(self) -> Plan:
        """All joint actions played out; better ones preferred to worse ones of their decision."""
        credit = self.credit("mean")
        return Plan(
            self.shape(),
            credit,
            POLICY_GRADIENT,
            tree_weight="alike",
            preference=self.beta,
            reward_model=self.reward_model,
            joint_reward=True,
        )
