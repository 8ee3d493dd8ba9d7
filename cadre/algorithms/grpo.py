"""GRPO on whole episodes, applied to a team."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cadre.advantages.credit import Credit
from cadre.advantages.plan import Plan
from cadre.algorithms.common import SCALE, Algorithm, Scale
from cadre.rollout import tree_shape
from cadre.settings import Positive


class Grpo(Algorithm):
    """GRPO on whole episodes (arXiv 2402.03300): k episodes a task, group = task and role."""

    name: Literal["grpo"]
    k: Positive = Field(4, description="episodes a task")
    scale: Scale = Field("std", description=SCALE)

    def plan(self) -> Plan:
        """k whole episodes, `(R - mean) / std` over them by task and role (equation 3)."""
        credit = Credit("episode", "task_role", "mean", self.scale, self.alpha, count="episodes")
        return Plan(tree_shape.independent(self.k), credit)
