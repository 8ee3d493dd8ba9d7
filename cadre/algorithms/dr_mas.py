"""Dr. MAS: GRPO on whole episodes, normalised by each role's own decisions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cadre.advantages.credit import Credit
from cadre.advantages.plan import Plan
from cadre.algorithms.common import Algorithm
from cadre.rollout import tree_shape
from cadre.settings import Positive


class DrMas(Algorithm):
    """Dr. MAS (arXiv 2602.08847): GRPO on whole episodes, normalised by each role's own decisions across its turns."""

    name: Literal["dr_mas"]
    k: Positive = Field(4, description="episodes a task")

    def plan(self) -> Plan:
        """`(R - mean_role) / std_role` over all decisions of a role on a task (section 4)."""
        credit = Credit("episode", "task_role", "mean", "std", self.alpha)
        return Plan(tree_shape.independent(self.k), credit)
