"""Returns: the reward that a sample is credited with, before anything is subtracted from it.

`Credit` names the four choices that turn rewards into an advantage, `ScoredSample` is the record that they fill in, and
`RETURNS` is the table of return functions: each takes a sample of a tree and the credit, and gives one number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from cadre.declare import declare, declared
from cadre.errors import ConfigError
from cadre.rollout import walk
from cadre.rollout.grow import Ablation, absent_key, action_key, is_rewarded
from cadre.rollout.walk import TreeSample
from cadre.settings.user_code import load_function
from cadre.statistics import EXACT, RESOLUTION, is_rounding
from cadre.types import Branch, Node, Sample, Targets, TrainingSequence, Tree

Count = Literal["episodes", "decisions"]


@dataclass(frozen=True)
class Credit:
    """How a sample's advantage is computed: its return, the group it is compared in, the baseline, the scale.

    `returns`, `group`, `baseline` and `scale` are names of the tables in this module and in `cadre.advantages.groups`,
    or `my_file.py:function`.

    alpha          weight of the team's reward beside the local one
    gamma          discount of a round
    count          the unit of a group's statistics: a whole episode, however many decisions a role makes in it, or
                   every decision
    decay          of the running means, and of the history
    threshold      reward from which an episode has passed, for the return `passed`
    second         another comparison, whose advantage is added, times `second_weight`
    sums_returns   the returns of all comparisons are added in place of their advantages, and compared as this one's
    history        returns are standardised by their role's mean and variance over the run and bent by tanh (CCPO)
    parts          (part of the reward, weight): each part is compared by itself, and the advantages are summed (GDPO)
    part           the only part of the reward that returns are made of; "" for the reward
    owner          the only role that this part rewards; "" for all roles
    advantages     name of `cadre.advantages.groups.ADVANTAGES`, or function of the user's, that returns a group's
                   advantages in place of baseline and scale
    prior          how many returns of a group the mean reward of its task's episodes counts as, for `advantages`

    With a critic only `alpha` and `gamma` matter.
    """

    returns: str
    group: str
    baseline: str
    scale: str
    alpha: float = 1.0
    gamma: float = 1.0
    count: Count = "decisions"
    decay: float = 0.95
    threshold: float = 1.0
    second: Credit | None = None
    second_weight: float = 1.0
    sums_returns: bool = False
    history: bool = False
    parts: tuple[tuple[str, float], ...] = ()
    part: str = ""
    owner: str = ""
    advantages: str = ""
    prior: float = 0.0

    @property
    def comparisons(self) -> list[Credit]:
        """Return this comparison and those that are added to it."""
        return [self, *(self.second.comparisons if self.second else [])]


@dataclass(frozen=True)
class ScoredSample:
    """A sample of T tokens with its scores; every stage from rewards to the loss fills in its part.

    tree_sample  the sample and its position in which tree
    reference    [T] log-probabilities under the reference model, empty if no stage needs them
    penalties    [T] cost of each token for its distance from the reference, empty for none
    overlong     cost of its length, on its last token
    returns      its return, before costs
    size         the sum of absolute rewards that `returns` is made of, which rounding is relative to
    count        its weight in the statistics of its group
    advantages   one for all of its tokens, or [T]
    weight       its weight in the loss
    trains       False if its policy does not learn from it; a critic still may
    targets      what a value head should predict on its sequence
    values       a critic's predictions before the update, empty without a critic
    """

    tree_sample: TreeSample
    reference: tuple[float, ...] = ()
    penalties: tuple[float, ...] = ()
    overlong: float = 0.0
    returns: float = 0.0
    size: float = 0.0
    count: float = 1.0
    advantages: tuple[float, ...] = (0.0,)
    weight: float = 1.0
    trains: bool = True
    targets: Targets | None = None
    values: tuple[float, ...] = ()

    @property
    def sample(self) -> Sample:
        return self.tree_sample.sample

    @property
    def has_gain(self) -> bool:
        """Return True if any of its tokens is to become likelier."""
        return any(advantage > 0.0 for advantage in self.advantages)

    @property
    def costs(self) -> tuple[float, ...]:
        """Return the total cost of each token, [T]."""
        if not self.sample.token_ids:
            return ()
        *rest, last = self.penalties or (0.0,) * len(self.sample.token_ids)
        return (*rest, last + self.overlong)

    @property
    def return_after_length(self) -> float:
        """Return the return less the cost of its length."""
        return self.returns - self.overlong

    @property
    def return_after_costs(self) -> float:
        """Return the return less all of its costs."""
        return self.return_after_length - sum(self.penalties)

    @property
    def logprob_diffs(self) -> tuple[float, ...]:
        """Return `log pi - log reference` of every token, none without a reference.

        It is the estimator k1 of their divergence. The sum is that of the sequence,
        http://joschu.net/blog/kl-approx.html. A positive one means that the policy has become more certain of the
        completion than it was before any training.
        """
        if not self.reference:
            return ()
        return tuple(now - then for now, then in zip(self.sample.logprobs, self.reference, strict=True))


def samples_of(trees: Sequence[Tree]) -> list[ScoredSample]:
    """Return every sample of the trees, parents before their children."""
    return [ScoredSample(tree_sample) for tree_sample in walk.tree_samples(trees)]


def sequence_of(sample: Sample, advantage: float, temperature: float) -> TrainingSequence:
    """Return the training sequence of one sample with the same advantage on every token of its completion."""
    prompt, completion = len(sample.prompt_ids), len(sample.token_ids)
    return TrainingSequence(
        policy=sample.policy,
        role=sample.role,
        token_ids=sample.prompt_ids + sample.token_ids,
        mask=(False,) * prompt + (True,) * completion,
        logprobs=(0.0,) * prompt + sample.logprobs,
        advantages=(0.0,) * prompt + (advantage,) * completion,
        version=sample.version,
        temperature=temperature,
        images=sample.images,
    )


# Rewards of a role on one branch.

Reduce = Callable[[Iterable[float]], float]
# The reward of a role on a branch, given alpha.
RoleReward = Callable[[Branch, str, float], float]


def role_reward(branch: Branch, role: str, alpha: float) -> float:
    """Return `alpha * team + local[role]` (AT-GRPO, arXiv 2510.11062, eq. 4); no local reward for who did not act."""
    return alpha * branch.reward.team + branch.reward.local.get(role, 0.0)


def absolute_reward(branch: Branch, role: str, alpha: float) -> float:
    """Return `|alpha * team| + |local[role]|`, from which the size of a return is computed."""
    return abs(alpha * branch.reward.team) + abs(branch.reward.local.get(role, 0.0))


def part_reward(part: str, owner: str = "") -> RoleReward:
    """Return the reward of a role that is one part of a branch's reward, 0.0 where it is not reported.

    It rewards the `owner` alone, at whichever step it is reported, or every role if there is none.
    """
    return lambda branch, role, alpha: 0.0 if owner and owner != role else branch.reward.parts.get(part, 0.0)


def owner_of(part: str, roles: Container[str]) -> str:
    """Return the role whose part it is: "tool" of "tool/ran" if that is one of the roles; "" if it is everybody's."""
    owner, slash, _ = part.partition("/")
    return owner if slash and owner in roles else ""


def trained_parts(credit: Credit) -> set[str]:
    """Return the names of the parts of the reward that are trained on."""
    return {part for one in credit.comparisons for part in (one.part, *dict(one.parts)) if part}


def reward_of(credit: Credit) -> RoleReward:
    """Return the reward that returns are made of: a role's reward, or one part of it."""
    return part_reward(credit.part, credit.owner) if credit.part else role_reward


def absolute_reward_of(credit: Credit) -> RoleReward:
    """Return the absolute reward from which the size of a return is computed."""
    if not credit.part:
        return absolute_reward
    reward = part_reward(credit.part, credit.owner)
    return lambda branch, role, alpha: abs(reward(branch, role, alpha))


# Returns that need no more than the sample's own step.


def step(sample: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """Return the reward of the step itself (AT-GRPO), the mean over the joint actions that contain the sample."""
    return fmean(reward(branch, sample.role, credit.alpha) for branch in sample.branches)


def first_paid(sample: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """Return the reward up to the first rewarded step.

    That is the step's own reward, or if it rewards nobody and the shape looked ahead, the sum of the role's rewards on
    the way that the shape selects from the sample on, up to the first decision that rewards the role. Without the
    look-ahead it is the step's own reward in any case.
    """
    node, role, alpha = sample.node, sample.role, credit.alpha
    is_decided = any(is_step_rewarded(node, acting, alpha) for acting in node.samples)
    # The search looked ahead if what follows is known of every branch after which the episode continues.
    if is_decided or not all(branch.over or child_of(node, branch) is not None for branch in node.branches):
        return step(sample, credit, reward)
    return fmean(
        reward(branch, role, alpha) + _reward_ahead(child_of(node, branch), role, alpha, reward)
        for branch in sample.branches
    )


def is_step_rewarded(node: Node, role: str, alpha: float) -> bool:
    """Return True if the step gives the role a reward on any branch, a local one of zero included."""
    return any(is_rewarded(branch.reward, role, alpha) for branch in node.branches if branch.failure is None)


def child_of(node: Node, branch: Branch) -> Node | None:
    """Return the decision after a branch. Equal actions lead to one state, which is played below one of them."""
    if branch.child is not None or branch.failure is not None:
        return branch.child

    def key(branch: Branch) -> object:
        return action_key({role: node.samples[role][index] for role, index in branch.choice.items()})

    action = key(branch)
    return next((twin.child for twin in node.branches if twin.child and key(twin) == action), None)


def _reward_ahead(node: Node | None, role: str, alpha: float, reward: RoleReward) -> float:
    """Return the role's reward from `node` on, along selected branches, up to the first decision that rewards it."""
    if node is None:
        return 0.0
    is_last = is_step_rewarded(node, role, alpha)
    branches = [branch for branch in node.branches if branch.selected] or node.branches  # all if the shape ends there
    return fmean(
        reward(branch, role, alpha) + (0.0 if is_last else _reward_ahead(branch.child, role, alpha, reward))
        for branch in branches
    )


# Returns of what follows the sample.


def reward_to_go(sample: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """Return `R = r + gamma * mean(child returns)` (MAGRPO, arXiv 2508.04652, section 4.2), gamma once a round."""
    return _to_go(sample, credit, fmean, reward)


def best_to_go(sample: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """Return `R = r + gamma * max(child returns)`: the best that was tried below the sample.

    This is the return of lenient learners (Panait, Tuyls and Luke, "Theoretical Advantages of Lenient Learners", JMLR
    9, 2008).
    """
    return _to_go(sample, credit, max, reward)


def _to_go(sample: TreeSample, credit: Credit, reduce: Reduce, reward: RoleReward) -> float:
    def branch_reward(branch: Branch) -> float:
        return reward(branch, sample.role, credit.alpha)

    number = sample.node.round
    return fmean(branch_return(branch, number, credit.gamma, branch_reward, reduce) for branch in sample.branches)


def branch_return(
    branch: Branch, round_number: int, gamma: float, reward: Callable[[Branch], float], reduce: Reduce
) -> float:
    """Return the reward of a branch and `reduce` of the returns after it, discounted once a round."""
    child = branch.child
    if child is None:
        return reward(branch)
    discount = gamma if child.round > round_number else 1.0
    returns = (branch_return(child_branch, child.round, gamma, reward, reduce) for child_branch in child.branches)
    return reward(branch) + discount * reduce(returns)


# Returns of whole episodes.


def episode(sample: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """Return the undiscounted reward of the whole episode (GRPO on trajectories, arXiv 2402.03300), its past included.

    If several episodes go through the sample, it is the mean over them, each counting once.
    """
    return fmean(episode_rewards(sample, credit, reward).values())


def episode_rewards(
    sample: TreeSample, credit: Credit, reward: RoleReward = role_reward
) -> dict[tuple[int, ...], float]:
    """Return the role's reward in each episode through the sample, from root to leaf, by tree number and branches."""
    return {
        path: sum(reward(branch, sample.role, credit.alpha) for branch in branches)
        for path, branches in episodes_through(sample)
    }


def episodes_through(sample: TreeSample) -> Iterator[tuple[tuple[int, ...], list[Branch]]]:
    """Yield every episode that contains the sample: (tree number and branch indices, branches), from root to leaf."""

    def below(path: tuple[int, ...], branches: list[Branch]) -> Iterator[tuple[tuple[int, ...], list[Branch]]]:
        child = branches[-1].child
        if child is None:
            yield path, branches
            return
        for number, child_branch in enumerate(child.branches):
            yield from below((*path, number), [*branches, child_branch])

    start, above = (sample.tree, *sample.path), [branch for _, branch in sample.above]
    for number in sample.numbers:
        yield from below((*start, number), [*above, sample.node.branches[number]])


def passed(sample: TreeSample, credit: Credit) -> float:
    """Return the fraction of episodes through the sample that rewarded the role with `credit.threshold` or more.

    This is rejection sampling, as Sirius (arXiv 2502.04780) selects its training data.
    """
    sizes = episode_rewards(sample, credit, absolute_reward)
    return fmean(
        # Sums that should reach the threshold may miss it by rounding.
        total >= credit.threshold or is_rounding(total - credit.threshold, sizes[path])
        for path, total in episode_rewards(sample, credit).items()
    )


def difference(sample: TreeSample, credit: Credit) -> float:
    """Return `([V(sample) - V(root)] + [V(sample) - V(node)]) / sqrt(L)` (TreeRL, arXiv 2506.11902, eq. 5 to 7).

    V is the mean reward of the episodes below, their past included; L is their number below the sample.
    """
    value, root_value, node_value, episodes = _mean_rewards(sample, credit, role_reward)
    return (2 * value - root_value - node_value) / math.sqrt(episodes)


def _mean_rewards(sample: TreeSample, credit: Credit, reward: RoleReward) -> tuple[float, float, float, int]:
    """Return V of the sample, of the root and of the node, and the number of episodes below the sample."""
    role, alpha = sample.role, credit.alpha

    def leaf_rewards(branches: Sequence[Branch]) -> list[float]:
        """Return the role's reward from these branches on, one number an episode."""
        return [
            reward(branch, role, alpha) + later
            for branch in branches
            for later in (leaf_rewards(branch.child.branches) if branch.child else [0.0])
        ]

    root = sample.above[0][0] if sample.above else sample.node
    past = sum(reward(branch, role, alpha) for _, branch in sample.above)
    of_sample = [past + later for later in leaf_rewards(sample.branches)]
    of_node = [past + later for later in leaf_rewards(sample.node.branches)]
    return fmean(of_sample), fmean(leaf_rewards(root.branches)), fmean(of_node), len(of_sample)


# Returns against the step without some roles.


@declare(ablates="each")
def counterfactual(sample: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """Return `R(all) - R(all but the role)`: the role's reward of the step, less that of its ablated branch.

    It is the mean over the joint actions that contain the sample, as CCPO (arXiv 2603.21563) describes its marginal
    contribution and COMA (1705.08926) its counterfactual, with a default action in place of an expectation.
    """
    return _ablation_sum(sample, credit, reward, [(1.0, ())], -1.0)


@declare(ablates="all")
def shapley(sample: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """Return the role's Shapley value in the step: `R(S and the role) - R(S)`, averaged over the orders of the roles.

    For a reward of the team the values of all roles sum to `R(all) - R(nobody)` (Shapley 1953, axiom of efficiency).
    """
    return _ablation_sum(sample, credit, reward, _shapley_weights(sample), -1.0)


def _shapley_weights(sample: TreeSample) -> list[tuple[float, tuple[str, ...]]]:
    """Return (weight, absent roles) for every set of the roles that act beside the sample's: |S|! (n - |S| - 1)! / n!
    for the S that are present."""
    others = [role for role in sample.node.samples if role != sample.role]
    count = len(others)
    return [
        (math.factorial(size) * math.factorial(count - size) / math.factorial(count + 1), absent)
        for size in range(count + 1)
        for absent in itertools.combinations(others, size)
    ]


def _ablation_sum(
    sample: TreeSample,
    credit: Credit,
    reward: RoleReward,
    absences: Sequence[tuple[float, tuple[str, ...]]],
    sign: float,
) -> float:
    """Return the sum over weighted sets of absent roles of `R(without them) + sign * R(without them and the role)`."""

    def value(branch: Branch, absent: tuple[str, ...]) -> float:
        key = absent_key(absent)
        if absent and key not in branch.ablated and branch.failure is None:
            raise ConfigError(
                f"algorithm.returns: {credit.returns} found no step without {' and '.join(absent)}; expected one for "
                "every branch. Grow trees with the rollout of the experiment, or with its ablation."
            )
        # Where the step failed with and without them, their absence changed nothing.
        ablated = branch if not absent else replace(branch, reward=branch.ablated.get(key, branch.reward))
        return reward(ablated, sample.role, credit.alpha)

    return fmean(
        sum(
            weight * (value(branch, absent) + sign * value(branch, (*absent, sample.role)))
            for weight, absent in absences
        )
        for branch in sample.branches
    )


def required_ablation(credit: Credit) -> Ablation:
    """Return which steps without roles the returns of a credit read."""
    functions = [load_function("algorithm.returns", part.returns, RETURNS) for part in credit.comparisons]
    kinds = {declared(function, "ablates") for function in functions}
    return "all" if "all" in kinds else "each" if "each" in kinds else "none"


def value_of_root(sample: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """Return the mean reward of the role in the episodes of the sample's tree."""
    return _mean_rewards(sample, credit, reward)[1]


RETURNS: dict[str, Callable[[TreeSample, Credit], float]] = {
    "step": step,
    "first_paid": first_paid,
    "reward_to_go": reward_to_go,
    "best_to_go": best_to_go,
    "episode": episode,
    "difference": difference,
    "passed": passed,
    "counterfactual": counterfactual,
    "shapley": shapley,
}
# The returns that are sums of rewards, and can be computed of one part of them.
SUMS: dict[str, Callable[[TreeSample, Credit, RoleReward], float]] = {
    "step": step,
    "first_paid": first_paid,
    "reward_to_go": reward_to_go,
    "best_to_go": best_to_go,
    "episode": episode,
    "counterfactual": counterfactual,
    "shapley": shapley,
}


def size_of_returns(sample: TreeSample, credit: Credit) -> float:
    """Return the sum of absolute rewards that the sample's return is made of, which its rounding is relative to."""
    if credit.returns in ("counterfactual", "shapley"):
        absences = [(1.0, ())] if credit.returns == "counterfactual" else _shapley_weights(sample)
        return _ablation_sum(sample, credit, absolute_reward_of(credit), absences, 1.0)
    if credit.returns in SUMS:
        return SUMS[credit.returns](sample, credit, absolute_reward_of(credit))
    if credit.returns == "difference":
        value, root_value, node_value, episodes = _mean_rewards(sample, credit, absolute_reward)
        return 2 * max(value, root_value, node_value) / math.sqrt(episodes)
    if credit.returns == "passed":
        return 1.0
    # A function of the user's may scale rewards down, so that only the residue of float64 can be told from signal.
    return episode(sample, credit, absolute_reward) * EXACT / RESOLUTION


def decisions_in_episode(sample: TreeSample) -> float:
    """Return how often the role acts in the sample's episode, on average over what was tried below it."""

    def below(branch: Branch) -> float:
        child = branch.child
        return 0.0 if child is None else (sample.role in child.samples) + fmean(map(below, child.branches))

    return 1 + sum(sample.role in node.samples for node, _ in sample.above) + fmean(map(below, sample.branches))


def part_of_episodes(sample: TreeSample) -> float:
    """Return the number of episodes through the sample, divided by the role's decisions that share each."""
    return len(list(episodes_through(sample))) / decisions_in_episode(sample)
