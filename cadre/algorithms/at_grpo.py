"""AT-GRPO: completions of every decision, compared only with each other; the best continues."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cadre.advantages.batch import Plan
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import Credit
from cadre.algorithms.common import CARRY, LOOKAHEAD, MANY, PARTS, SCALE, Algorithm, Carry, ManySiblings, Parts, Scale
from cadre.rollout import shapes
from cadre.settings.user_code import load_function


class AtGrpo(Algorithm):
    """AT-GRPO (arXiv 2510.11062): completions of every decision, compared only with each other; the best continues."""

    name: Literal["at_grpo"]
    k: ManySiblings = Field(4, description=MANY)
    carry: Carry = Field("argmax", description=CARRY)
    lookahead: int = Field(2, ge=0, description=LOOKAHEAD)
    scale: Scale = Field("std", description=SCALE)
    parts: Parts = Field(default_factory=dict, description=PARTS)

    def plan(self) -> Plan:
        """Return siblings at every decision, `(r - mean) / std` among them, the argmax continues (algorithm 1)."""
        carry = load_function("algorithm.carry", self.carry, shapes.CARRIES)
        shape = shapes.greedy(self.k, carry, self.lookahead)
        comparison = comparison_of("first_paid", "node", "mean", self.scale, self.alpha)
        return Plan(shape, Credit.of_parts(comparison, self.parts), tree_weight="by_decision")
