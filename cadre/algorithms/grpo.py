"""AT-GRPO, and the algorithms that sample k whole episodes a task: GRPO, its relatives, and credit by ablation."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cadre.advantages.batch import Plan
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import Credit
from cadre.algorithms import common
from cadre.algorithms.common import Algorithm, ManySiblings, Parts, Scale, Selection
from cadre.rollout import shapes
from cadre.settings import LossConfig, Positive
from cadre.settings.section import ReadIf
from cadre.settings.user_code import load_function


class AtGrpo(Algorithm):
    """AT-GRPO (arXiv 2510.11062): completions of every decision, compared only with each other; the best continues."""

    name: Literal["at_grpo"]
    k: ManySiblings = Field(4, description=common.MANY)
    select: Selection = Field("argmax", description=common.SELECT)
    lookahead: int = Field(2, ge=0, description=common.LOOKAHEAD)
    scale: Scale = Field("std", description=common.SCALE)
    parts: Parts = Field(default_factory=dict, description=common.PARTS)

    def plan(self) -> Plan:
        """Return siblings at every decision, `(r - mean) / std` among them, the argmax continues (algorithm 1)."""
        select = load_function("algorithm.select", self.select, shapes.SELECTIONS)
        shape = shapes.greedy(self.k, select, self.lookahead)
        comparison = comparison_of("first_reward", "node", "mean", self.scale, self.alpha)
        return Plan(shape, Credit.of_parts(comparison, self.parts), tree_weight="by_decision")


# GRPO on teams.


class Episodes(Algorithm):
    """k whole episodes a task, compared by their reward within the groups of `group`."""

    group: ClassVar[str] = "task"

    k: Positive = Field(4, description="episodes per task")
    scale: Scale = Field("std", description=common.SCALE)
    parts: Parts = Field(default_factory=dict, description=common.PARTS)

    def plan(self) -> Plan:
        """Return k whole episodes and `(R - mean) / std` over them (arXiv 2402.03300, equation 3)."""
        comparison = comparison_of("episode", self.group, "mean", self.scale, self.alpha, count="episodes")
        return Plan(shapes.independent(self.k), Credit.of_parts(comparison, self.parts))


class Grpo(Episodes):
    """GRPO on whole episodes (arXiv 2402.03300): k episodes per task, one group of all roles."""

    name: Literal["grpo"]


class GrpoByRole(Episodes):
    """GRPO on whole episodes with one group per task and role, so roles are not compared with each other."""

    group = "task_role"
    name: Literal["grpo_by_role"]


class DrMas(Algorithm):
    """Dr. MAS (arXiv 2602.08847): GRPO on whole episodes, normalised by each role's own decisions across its turns."""

    name: Literal["dr_mas"]
    k: Positive = Field(4, description="episodes per task")

    def plan(self) -> Plan:
        """Return `(R - mean_role) / std_role` over all decisions of a role on a task (section 4)."""
        comparison = comparison_of("episode", "task_role", "mean", "std", self.alpha)
        return Plan(shapes.independent(self.k), Credit.of(comparison))


class DrMamr(Episodes):
    """Dr. MAMR (arXiv 2511.02303): whole episodes, and a bonus for steps that change the next role's answer."""

    group = "task_role"
    name: Literal["dr_mamr"]
    influence: float = Field(
        0.1, ge=0.0, description="weight of the influence advantage relative to the reward advantage"
    )

    def plan(self) -> Plan:
        """Return `A + influence * C` (equation 8), each turn the mean over its tokens, and no division by the turns."""
        return replace(super().plan(), loss=LossConfig(aggregate="sequence_mean"), influence=self.influence)


class Gigpo(Algorithm):
    """GiGPO (arXiv 2505.10978): k whole episodes, compared as episodes and, if observations recur, as steps."""

    name: Literal["gigpo"]
    k: Positive = Field(4, description="episodes per task")
    gamma: Annotated[
        float, ReadIf("algorithm.step_weight is above 0", lambda given: given.section.step_weight > 0.0)
    ] = Field(0.95, ge=0.0, le=1.0, description="discount per turn in the return of a step")
    step_weight: float = Field(
        1.0, ge=0.0, description="weight of the step-level advantage; the episode-level one has 1"
    )
    scale: Scale = Field("std", description=common.SCALE)

    def plan(self) -> Plan:
        """Return `A_episode + step_weight * A_step` (equation 8)."""
        step = comparison_of("reward_to_go", "observation", "mean", self.scale, self.alpha, self.gamma)
        episode = comparison_of("episode", "task_role", "mean", self.scale, self.alpha, count="episodes")
        return Plan(shapes.independent(self.k), Credit.of(episode, (step, self.step_weight)))


class StateValue(Algorithm):
    """State values from the tree (after RTMC, arXiv 2604.11037): Q(s, a) - V(s) over all visits of a state in a task's
    episodes."""

    name: Literal["state_value"]
    k: Positive = Field(4, description="episodes per task")
    gamma: float = Field(0.99, ge=0.0, le=1.0, description="discount per turn in the return of a step")
    prior: float = Field(
        2.0, ge=0.0, description="returns that the mean reward of the task's episodes counts as in V; 0 for none"
    )

    def plan(self) -> Plan:
        """Return k whole episodes and `Q - V` in the groups of equal states."""
        comparison = comparison_of("reward_to_go", "state", "state_value", "", self.alpha, self.gamma, prior=self.prior)
        return Plan(shapes.independent(self.k), Credit.of(comparison))


# A planner and its workers: the papers differ in the groups, the trained policies, and the weights.


class Matpo(Episodes):
    """MATPO (arXiv 2510.04678): planner and workers share one model; all their completions are one group per task."""

    policies = "shared"
    name: Literal["matpo"]


class FlowGrpo(Episodes):
    """Flow-GRPO (arXiv 2510.05592): one role is trained on the episode's return, the others are frozen."""

    group = "task_role"
    policies = "one_role"
    name: Literal["flow_grpo"]

    def plan(self) -> Plan:
        """Return the episode's advantage for every turn, averaged over its tokens, then over turns (equation 5)."""
        return replace(super().plan(), loss=LossConfig(aggregate="sequence_mean"), tree_weight="by_episode")


class MGrpo(Episodes):
    """M-GRPO (arXiv 2511.13288): a policy per role, a group per role, and equal weight for all episodes."""

    group = "task_role"
    policies = "by_role"
    name: Literal["m_grpo"]

    def plan(self) -> Plan:
        """Return a role's samples of an episode sharing the weight of one, the mean of the paper's resampling."""
        return replace(super().plan(), tree_weight="by_episode")


class HierarchicalGrpo(Algorithm):
    """Hierarchical GRPO (PrimeIntellect-ai/prime-rl): solvers compared on one proposal, proposers on one task."""

    name: Literal["hierarchical_grpo"]
    k: ManySiblings = Field(4, description="completions of each role at a decision, also by turn or by role")

    def plan(self) -> Plan:
        """Return `R - mean` in the groups of `proposal`, every proposal and every attempt at it rolled out."""
        comparison = comparison_of("episode", "proposal", "mean", "none", self.alpha, count="episodes")
        return Plan(shapes.full(self.k), Credit.of(comparison))


class TeamTr(Episodes):
    """TeamTR (arXiv 2605.15207): policies are updated one at a time, each on new rollouts of the present team."""

    group = "task_role"
    name: Literal["teamtr"]

    def plan(self) -> Plan:
        """Return GRPO by role under the schedule `round_robin`, each update bounded by its KL (`loss.kl_bound`)."""
        return replace(super().plan(), loss=LossConfig(kl_bound=0.05), schedule="round_robin")


# Zero-sum games and filtered supervision.


class Spiral(Algorithm):
    """SPIRAL's role-conditioned advantages (arXiv 2506.24119) for zero-sum play: a running mean by role."""

    name: Literal["spiral"]
    k: Positive = Field(4, description="episodes per task")
    decay: float = Field(0.95, gt=0.0, lt=1.0, description="decay of the running mean")

    def plan(self) -> Plan:
        """Return `R - b_role` with an exponential running mean b (section 3)."""
        comparison = comparison_of("episode", "role", "running", "none", self.alpha, count="episodes")
        credit = Credit.of(comparison, decay=self.decay)
        return Plan(shapes.independent(self.k), credit, LossConfig(ratio="none", aggregate="sequence_mean"))


class Sirius(Algorithm):
    """Sirius (arXiv 2502.04780), without its augmentation: a supervised step on successful episodes."""

    name: Literal["sirius"]
    k: Positive = Field(4, description="episodes per task")
    threshold: float = Field(1.0, description="minimum return of a role with which an episode is used to train it")

    def plan(self) -> Plan:
        """Return the mean of -log pi over the tokens of the episodes that passed."""
        credit = Credit.of(comparison_of("passed", "task_role", "none", "none", self.alpha, threshold=self.threshold))
        return Plan(shapes.independent(self.k), credit, LossConfig(ratio="none"), only_positive=True)


# Credit by ablation: a role's reward of a step, against that of the same step without the role.

BROADCAST = "weight of the episode-level advantage relative to the contribution advantage"
PART_WEIGHTS = "weights of further episode-level advantages, each of one part of the reward, such as those of tools"
NORMALISE = (
    "each: advantages are normalised and then summed with their weights; sum: the returns are summed first; history: "
    "as each, but contributions are first standardised over the run and passed through tanh"
)
# Of the mean and the variance of contributions over the run, in CCPO's public code.
HISTORY_DECAY = 0.99


class Marginal(Algorithm):
    """k whole episodes; a role's contributions to its steps are compared with the role's others on the task."""

    returns: ClassVar[str]

    k: Positive = Field(4, description="episodes per task")
    broadcast: float = Field(0.0, ge=0.0, description=BROADCAST)
    part_weights: Parts = Field(default_factory=dict, description=PART_WEIGHTS)
    scale: Scale = Field("std", description=common.SCALE)
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
            decay=HISTORY_DECAY,
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
