"""Filtered supervised steps: what led to success is said again."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cadre.advantages.credit import Credit
from cadre.advantages.plan import Plan
from cadre.algorithms.common import Algorithm
from cadre.rollout import tree_shape
from cadre.settings import LossConfig, Positive


class Sirius(Algorithm):
    """Sirius (arXiv 2502.04780), without its augmentation: a supervised step on all that successful episodes said."""

    name: Literal["sirius"]
    k: Positive = Field(4, description="episodes a task")
    threshold: float = Field(1.0, description="an episode is kept for a role that it paid this or more")

    def plan(self) -> Plan:
        """The mean of -log pi over the tokens of what is kept."""
        credit = Credit("passed", "task_role", "none", "none", self.alpha, threshold=self.threshold)
        return Plan(tree_shape.independent(self.k), credit, LossConfig(ratio="none"), only_positive=True)
