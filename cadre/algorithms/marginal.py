"""Credit by ablation: a role's reward of a step, against that of the same step without the role."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cadre.advantages.batch import Plan
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import Credit
from cadre.algorithms.common import SCALE, Algorithm, Parts, Scale
from cadre.rollout import shapes
from cadre.settings import Positive
from cadre.settings.section import ReadIf

BROADCAST = "weight of the episode-level advantage relative to the contribution advantage"
PARTS = "weights of further episode-level advantages, each of one part of the reward, such as those of tools"
NORMALISE = (
    "each: advantages are normalised and then summed with their weights; sum: the returns are summed first; history: "
    "as each, but contributions are first standardised over the run and passed through tanh"
)
# Of the mean and the variance of contributions over the run, in CCPO's public code.
DECAY = 0.99


class Marginal(Algorithm):
    """k whole episodes; a role's contributions to its steps are compared with the role's others on the task."""

    returns: ClassVar[str]

    k: Positive = Field(4, description="episodes per task")
    broadcast: float = Field(0.0, ge=0.0, description=BROADCAST)
    part_weights: Parts = Field(default_factory=dict, description=PARTS)
    scale: Scale = Field("std", description=SCALE)
    normalise: Annotated[
        Literal["each", "sum", "history"],
        ReadIf(
            "algorithm.broadcast or part_weights add a comparison, for sum",
            lambda given: given.value != "sum" or len(given.experiment.plan.credit.comparisons) > 1,
        ),
    ] = Field("each", description=NORMALISE)

    def plan(self) -> Plan:
        """Return the weighted sum of comparisons, each `(R - mean) / std` over a role's samples of a task, or the one
        comparison of their weighted sum."""
        marginal, episode = (
            comparison_of(returns, "task_role", "mean", self.scale, self.alpha, count=count)
            for returns, count in ((self.returns, "decisions"), ("episode", "episodes"))
        )
        added = [(replace(episode, part=part), weight) for part, weight in self.part_weights.items() if weight]
        if self.broadcast:
            added.insert(0, (episode, self.broadcast))
        credit = Credit.of(
            marginal,
            *added,
            sums="returns" if self.normalise == "sum" else "advantages",
            history=self.normalise == "history",
            decay=DECAY,
        )
        return Plan(shapes.independent(self.k), credit)


class Counterfactual(Marginal):
    """Counterfactual credit: the reward of a step less that of the step without the role (after CCPO, arXiv
    2603.21563)."""

    returns = "counterfactual"
    name: Literal["counterfactual"]


class Shapley(Marginal):
    """Shapley credit: the team's reward, the role's exact Shapley value in each step, and parts of the reward (after
    SHARP, arXiv 2602.08335)."""

    returns = "shapley"
    name: Literal["shapley"]
    broadcast: float = Field(1.0, ge=0.0, description=BROADCAST)
