"""C3: what a completion is worth beside its siblings, all else being equal."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cadre.advantages.credit import Credit
from cadre.advantages.plan import Plan
from cadre.algorithms.common import Algorithm, ManySiblings
from cadre.rollout import tree_shape


class C3(Algorithm):
    """C3 (arXiv 2603.06859): the mean reward below a completion minus that below its siblings."""

    name: Literal["c3"]
    k: ManySiblings = Field(2, description="completions of each role at a decision, also by turn or by role")
    joint: Literal["aligned", "cross"] = Field("aligned", description="the g-th of every agent together, or all pairs")

    def plan(self) -> Plan:
        """Every alternative is played out from the one context, the others of its decision are the baseline."""
        credit = Credit("reward_to_go", "node", "leave_one_out", "none", self.alpha)
        return Plan(tree_shape.full(self.k, self.joint), credit, tree_weight="alike")
