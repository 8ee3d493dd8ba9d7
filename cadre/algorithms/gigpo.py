"""GiGPO: the episode's comparison, and one among samples that answer the same observation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cadre.advantages.credit import Credit
from cadre.advantages.plan import Plan
from cadre.algorithms.common import SCALE, Algorithm, Scale
from cadre.rollout import tree_shape
from cadre.settings import Positive


class Gigpo(Algorithm):
    """GiGPO (arXiv 2505.10978): k whole episodes, judged as episodes and, where observations recur, as steps."""

    name: Literal["gigpo"]
    k: Positive = Field(4, description="episodes a task")
    gamma: float = Field(0.95, ge=0.0, le=1.0, description="discount of a turn in what a step is worth")
    step_weight: float = Field(1.0, ge=0.0, description="what the comparison of steps counts beside that of episodes")
    scale: Scale = Field("std", description=SCALE)

    def plan(self) -> Plan:
        """`A_episode + step_weight * A_step` (equation 8)."""
        step = Credit("reward_to_go", "observation", "mean", self.scale, self.alpha, self.gamma)
        credit = Credit(
            "episode",
            "task_role",
            "mean",
            self.scale,
            self.alpha,
            count="episodes",
            second=step,
            second_weight=self.step_weight,
        )
        return Plan(tree_shape.independent(self.k), credit)
