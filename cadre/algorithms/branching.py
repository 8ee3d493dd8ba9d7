"""Algorithms whose episodes branch afterwards: four papers that differ in where, and in the return of a branch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cadre.advantages.batch import Plan
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import Credit
from cadre.algorithms.common import Algorithm
from cadre.rollout.shapes import WHERE, Shape, branch
from cadre.settings import Positive, TreeWeight
from cadre.settings.user_code import load_function, one_of

Where = Annotated[str, one_of(WHERE)]
WHERE_WORDS = "the decisions that are sampled again: entropy takes the least certain, random any"
DECISIONS = "decisions per round that are sampled again, in each initial episode"
SIBLINGS = "further completions at each of these decisions"
ROUNDS = "number of rounds in which decisions are chosen"
BUDGET = "tokens of a tree after which no further round begins; 0 for no bound"


class Branching(Algorithm):
    """The base of the family: k whole episodes a task, then branches from their decisions."""

    tree_weight: ClassVar[TreeWeight] = "by_sample"

    k: Positive = Field(4, description="initial episodes per task")
    where: Where = Field("entropy", description=WHERE_WORDS)
    decisions: int = Field(2, ge=1, le=100, description=DECISIONS)
    siblings: int = Field(1, ge=1, le=100, description=SIBLINGS)
    rounds: int = Field(1, ge=1, le=100, description=ROUNDS)
    budget: int = Field(0, ge=0, description=BUDGET)

    def plan(self) -> Plan:
        """Return the shape with the subclass's credit."""
        return Plan(self.shape(), self.credit(), tree_weight=self.tree_weight)

    def shape(self) -> Shape:
        """Return `k` episodes and the branches of `rounds` rounds."""
        where = load_function("algorithm.where", self.where, WHERE)
        return branch(self.k, where, self.decisions, self.siblings, self.rounds, self.budget)

    def credit(self) -> Credit:
        """Return how a sample's advantage is computed."""
        raise NotImplementedError


class TreeGrpo(Branching):
    """Tree-GRPO (arXiv 2509.21240): branches at random, compared within their own tree and within the task."""

    name: Literal["tree_grpo"]
    where: Where = Field("random", description=WHERE_WORDS)

    def credit(self) -> Credit:
        """Return the sum of two comparisons, each `(R - mean) / std` (equations 4 to 6)."""
        tree, task = (
            comparison_of("episode", group, "mean", "std", self.alpha, count="episodes")
            for group in ("subtree", "task_role")
        )
        return Credit.of(tree, (task, 1.0))


class TreeRl(Branching):
    """TreeRL (arXiv 2506.11902): branches where entropy is high; the return of a step is its change in the chance of
    success, from the root and from its parent."""

    name: Literal["tree_rl"]
    k: Positive = Field(6, description="initial episodes per task")

    def credit(self) -> Credit:
        """Return `([V - V(root)] + [V - V(parent)]) / sqrt(episodes below)` itself, without a baseline."""
        return Credit.of(comparison_of("difference", "node", "none", "none", self.alpha))


class Arpo(Branching):
    """ARPO (arXiv 2507.19849): branches where entropy is high, episodes compared over the task."""

    name: Literal["arpo"]

    def credit(self) -> Credit:
        """Return `(R - mean) / std` over the task; a shared part has the mean of its episodes (the soft estimate)."""
        return Credit.of(comparison_of("episode", "task", "mean", "std", self.alpha, count="episodes"))


class Bpo(Branching):
    """BPO (arXiv 2607.14171): branches where entropy is high; completions of a decision are compared."""

    tree_weight = "by_decision"
    name: Literal["bpo"]
    siblings: int = Field(3, ge=1, le=100, description=SIBLINGS)

    def credit(self) -> Credit:
        """Return `R - mean` of the siblings; decisions with one sample teach nothing."""
        return Credit.of(comparison_of("episode", "node", "mean", "none", self.alpha))
