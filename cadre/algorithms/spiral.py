"""SPIRAL's role-conditioned advantages for zero-sum play."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cadre.advantages.credit import Credit
from cadre.advantages.plan import Plan
from cadre.algorithms.common import Algorithm
from cadre.rollout import tree_shape
from cadre.settings import LossConfig, Positive


class Spiral(Algorithm):
    """SPIRAL's role-conditioned advantages (arXiv 2506.24119) for zero-sum play: a running mean by role."""

    name: Literal["spiral"]
    k: Positive = Field(4, description="episodes a task")
    decay: float = Field(0.95, gt=0.0, lt=1.0, description="of the running mean")

    def plan(self) -> Plan:
        """`R - b_role` with an exponential running mean b (section 3)."""
        credit = Credit("episode", "role", "running", "none", self.alpha, count="episodes", decay=self.decay)
        return Plan(tree_shape.independent(self.k), credit, LossConfig(ratio="none", aggregate="sequence_mean"))
