"""GRPO on whole episodes, applied to a team: one group a task, or one a role of it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from cadre.advantages.credit import Credit
from cadre.advantages.plan import Plan
from cadre.algorithms.common import SCALE, Algorithm, Scale
from cadre.rollout import tree_shape
from cadre.settings import Positive


class Episodes(Algorithm):
    """k whole episodes a task, compared by their reward; `group` says whose are compared."""

    group: ClassVar[str] = "task"

    k: Positive = Field(4, description="episodes a task")
    scale: Scale = Field("std", description=SCALE)

    def plan(self) -> Plan:
        """k whole episodes, `(R - mean) / std` over them (arXiv 2402.03300, equation 3)."""
        credit = Credit("episode", self.group, "mean", self.scale, self.alpha, count="episodes")
        return Plan(tree_shape.independent(self.k), credit)


class Grpo(Episodes):
    """GRPO on whole episodes (arXiv 2402.03300): k episodes a task, one group of all roles."""

    name: Literal["grpo"]


class GrpoByRole(Episodes):
    """GRPO on whole episodes with a group a role of the task, so that roles are never compared with each other."""

    group = "task_role"
    name: Literal["grpo_by_role"]
