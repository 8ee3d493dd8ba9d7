"""AT-GRPO: completions of every decision, compared only with each other; the best continues."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cadre.advantages.batch import Plan
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import Credit
from cadre.algorithms.common import (
    LOOKAHEAD,
    MANY,
    PARTS,
    SCALE,
    SELECT,
    Algorithm,
    ManySiblings,
    Parts,
    Scale,
    Selection,
)
from cadre.rollout import shapes
from cadre.settings.user_code import load_function


class AtGrpo(Algorithm):
    """AT-GRPO (arXiv 2510.11062): completions of every decision, compared only with each other; the best continues."""

    name: Literal["at_grpo"]
    k: ManySiblings = Field(4, description=MANY)
    select: Selection = Field("argmax", description=SELECT)
    lookahead: int = Field(2, ge=0, description=LOOKAHEAD)
    scale: Scale = Field("std", description=SCALE)
    parts: Parts = Field(default_factory=dict, description=PARTS)

    def plan(self) -> Plan:
        """Return siblings at every decision, `(r - mean) / std` among them, the argmax continues (algorithm 1)."""
        select = load_function("algorithm.select", self.select, shapes.SELECTIONS)
        shape = shapes.greedy(self.k, select, self.lookahead)
        comparison = comparison_of("first_reward", "node", "mean", self.scale, self.alpha)
        return Plan(shape, Credit.of_parts(comparison, self.parts), tree_weight="by_decision")
