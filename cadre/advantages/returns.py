"""Returns: the reward that a sample is credited with, before anything is subtracted from it.

`Credit` says how rewards become an advantage, `ScoredSample` is the record that is filled in, and `RETURNS` is the
table of return functions: each takes a sample of a tree and the comparison, and gives one number. What else must be
known of a function it declares (`cadre.declare`), a bundled one like one of the user's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any, Literal, TypeVar

from cadre.declare import declare, declared
from cadre.errors import ConfigError
from cadre.rollout import walk
from cadre.rollout.grow import Ablation, absent_key, action_key, is_rewarded
from cadre.rollout.walk import TreeSample
from cadre.settings.user_code import load_function
from cadre.statistics import EXACT, RESOLUTION, is_rounding
from cadre.types import Branch, Node, Sample, Targets, TrainingSequence, Tree

Count = Literal["episodes", "decisions"]
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Component:
    """A function that a comparison is made of, by its name: the setting that named it, and what it declares."""

    setting: str = field(compare=False)
    name: str


@dataclass(frozen=True)
class Return(Component):
    """How the return of a sample is computed."""

    function: Callable[[TreeSample, Comparison], float]
    sums_rewards: bool
    of_future: bool
    whole_episode: bool
    takes_best: bool
    discounted: bool | None
    uses_lookahead: bool | None
    ablates: Ablation


@dataclass(frozen=True)
class Grouping(Component):
    """Which samples are compared: those with equal keys."""

    function: Callable[[TreeSample], Key]
    scope: Literal["decision", "turn", "task", "batch"] | None
    needs_signature: bool


@dataclass(frozen=True)
class Baseline(Component):
    """What is subtracted from the returns of a group, or in a comparison without a scale the advantages themselves."""

    function: Callable[[Any], Sequence[float]]
    needs_group: bool
    uses_running: bool


@dataclass(frozen=True)
class Scale(Component):
    """What the returns of a group are divided by."""

    function: Callable[[Any], float]


Record = TypeVar("Record", Return, Grouping, Baseline, Scale)


def load_record(kind: type[Record], setting: str, reference: str, table: Mapping[str, Callable[..., Any]]) -> Record:
    """Return the function of `table`, or of the user's file, that the setting names, with what it declares."""
    function: Any = load_function(setting, reference, table)
    properties = {option.name: declared(function, option.name) for option in fields(kind)[3:]}
    return kind(setting, reference, function, **properties)


@dataclass(frozen=True)
class Comparison:
    """How the return of a sample is computed, and against which others it is held.

    scale          None if the function `baseline` returns the advantages themselves (the setting `advantages`)
    alpha          weight of the team's reward beside the local one
    gamma          discount of a round
    count          the unit of a group's statistics: a whole episode, however many decisions a role makes in it, or
                   every decision
    threshold      reward from which an episode has passed, for the return `passed`
    prior          how many returns of a group the mean reward of its task's episodes counts as, for `state_value`
    part           the only part of the reward that returns are made of; "" for the reward
    owner          the only role that this part rewards; "" for all roles
    of_size        rewards are replaced by their absolute values, so that a return is its size
    """

    returns: Return
    group: Grouping
    baseline: Baseline
    scale: Scale | None
    alpha: float = 1.0
    gamma: float = 1.0
    count: Count = "decisions"
    threshold: float = 1.0
    prior: float = 0.0
    part: str = ""
    owner: str = ""
    of_size: bool = False

    def reward(self, branch: Branch, role: str) -> float:
        """Return the reward of a role on one branch, or the part of it. A part is 0.0 where it is not reported. It
        rewards the `owner` alone, at whichever step it is reported."""
        if self.part:
            part = 0.0 if self.owner and self.owner != role else branch.reward.parts.get(self.part, 0.0)
            return abs(part) if self.of_size else part
        if self.of_size:
            return abs(self.alpha * branch.reward.team) + abs(branch.reward.local.get(role, 0.0))
        return role_reward(branch, role, self.alpha)


@dataclass(frozen=True)
class Credit:
    """How advantages are computed: a weighted sum of comparisons. Groups and running means are those of the first.

    comparisons  (comparison, weight)
    sums         what is summed: advantages; advantages that are then normalised over the batch (GDPO), and returns; or
                 returns alone, which the first comparison compares
    decay        of the running means, and of the history
    history      the first comparison's returns are standardised by their role's mean and variance over the run and bent
                 by tanh (CCPO)

    With a critic only `alpha` and `gamma` of the first comparison matter.
    """

    comparisons: tuple[tuple[Comparison, float], ...]
    sums: Literal["advantages", "normalised", "returns"] = "advantages"
    decay: float = 0.95
    history: bool = False

    @classmethod
    def of(cls, first: Comparison, *others: tuple[Comparison, float], **options: Any) -> Credit:
        """Return the credit of a comparison of weight 1 and of others with their weights."""
        return cls(((first, 1.0), *others), **options)

    @classmethod
    def of_parts(cls, comparison: Comparison, parts: Mapping[str, float]) -> Credit:
        """Return the credit of a comparison of each part of the reward with its weight (GDPO), or of the reward."""
        if not parts:
            return cls.of(comparison)
        return cls(tuple((replace(comparison, part=part), weight) for part, weight in parts.items()), "normalised")

    @property
    def first(self) -> Comparison:
        return self.comparisons[0][0]

    @property
    def alpha(self) -> float:
        return self.first.alpha


@dataclass(frozen=True)
class ScoredSample:
    """A sample of T tokens with its scores; every stage from rewards to the loss fills in its part.

    tree_sample  the sample and its position in which tree
    reference    [T] log-probabilities under the reference model, empty if no stage needs them
    penalties    [T] cost of each token for its distance from the reference, empty for none
    overlong     cost of its length, on its last token
    returns      its return, before costs
    size         the sum of absolute rewards that `returns` is made of, which rounding is relative to
    unbent       its return before the history bent it, None without a history
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
    unbent: float | None = None
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


def role_reward(branch: Branch, role: str, alpha: float) -> float:
    """Return `alpha * team + local[role]` (AT-GRPO, arXiv 2510.11062, eq. 4); no local reward for who did not act."""
    return alpha * branch.reward.team + branch.reward.local.get(role, 0.0)


def owner_of(part: str, roles: Container[str]) -> str:
    """Return the role whose part it is: "tool" of "tool/ran" if that is one of the roles; "" if it is everybody's."""
    owner, slash, _ = part.partition("/")
    return owner if slash and owner in roles else ""


def trained_parts(credit: Credit) -> set[str]:
    """Return the names of the parts of the reward that are trained on."""
    return {comparison.part for comparison, _ in credit.comparisons if comparison.part}


# Returns that need no more than the sample's own step.


@declare(sums_rewards=True, discounted=False, uses_lookahead=False)
def step(sample: TreeSample, comparison: Comparison) -> float:
    """Return the reward of the step itself (AT-GRPO), the mean over the joint actions that contain the sample."""
    return fmean(comparison.reward(branch, sample.role) for branch in sample.branches)


@declare(sums_rewards=True, discounted=False, uses_lookahead=True)
def first_reward(sample: TreeSample, comparison: Comparison) -> float:
    """Return the reward up to the first rewarded step.

    That is the step's own reward, or if it rewards nobody and the shape looked ahead, the sum of the role's rewards on
    the way that the shape selects from the sample on, up to the first decision that rewards the role. Without the
    look-ahead it is the step's own reward in any case.
    """
    node, role = sample.node, sample.role
    is_decided = any(is_step_rewarded(node, acting, comparison.alpha) for acting in node.samples)
    # The search looked ahead if what follows is known of every branch after which the episode continues.
    if is_decided or not all(branch.over or child_of(node, branch) is not None for branch in node.branches):
        return step(sample, comparison)
    return fmean(
        comparison.reward(branch, role) + _reward_ahead(child_of(node, branch), role, comparison)
        for branch in sample.branches
    )


def is_step_rewarded(node: Node, role: str, alpha: float) -> bool:
    """Return True if the step gives the role a reward on any branch, a local one of zero included."""
    return any(is_rewarded(branch.reward, role, alpha) for branch in node.branches if branch.failure is None)


def child_of(node: Node, branch: Branch) -> Node | None:
    """Return the decision after a branch. Equal actions lead to one state, which is played below one of them."""
    if branch.child is not None or branch.failure is not None or branch.over:
        return branch.child

    def key(branch: Branch) -> object:
        return action_key({role: node.samples[role][index] for role, index in branch.choice.items()})

    action = key(branch)
    return next((twin.child for twin in node.branches if twin.child and key(twin) == action), None)


def _reward_ahead(node: Node | None, role: str, comparison: Comparison) -> float:
    """Return the role's reward from `node` on, along selected branches, up to the first decision that rewards it."""
    if node is None:
        return 0.0
    is_last = is_step_rewarded(node, role, comparison.alpha)
    branches = [branch for branch in node.branches if branch.selected] or node.branches  # all if the shape ends there
    return fmean(
        comparison.reward(branch, role) + (0.0 if is_last else _reward_ahead(branch.child, role, comparison))
        for branch in branches
    )


# Returns of what follows the sample.


@declare(sums_rewards=True, of_future=True, discounted=True, uses_lookahead=False)
def reward_to_go(sample: TreeSample, comparison: Comparison) -> float:
    """Return `R = r + gamma * mean(child returns)` (MAGRPO, arXiv 2508.04652, section 4.2), gamma once a round."""
    return _to_go(sample, comparison, fmean)


@declare(sums_rewards=True, of_future=True, takes_best=True, discounted=True, uses_lookahead=False)
def best_to_go(sample: TreeSample, comparison: Comparison) -> float:
    """Return `R = r + gamma * max(child returns)`: the best that was tried below the sample. This is the return of
    lenient learners (Panait, Tuyls and Luke, "Theoretical Advantages of Lenient Learners", JMLR 9, 2008)."""
    return _to_go(sample, comparison, max)


def _to_go(sample: TreeSample, comparison: Comparison, reduce: Reduce) -> float:
    def branch_reward(branch: Branch) -> float:
        return comparison.reward(branch, sample.role)

    number = sample.node.round
    return fmean(branch_return(branch, number, comparison.gamma, branch_reward, reduce) for branch in sample.branches)


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


@declare(sums_rewards=True, of_future=True, whole_episode=True, discounted=False, uses_lookahead=False)
def episode(sample: TreeSample, comparison: Comparison) -> float:
    """Return the undiscounted reward of the whole episode (GRPO on trajectories, arXiv 2402.03300), its past included.
    If several episodes go through the sample, it is the mean over them, each counting once."""
    return fmean(episode_rewards(sample, comparison).values())


def episode_rewards(sample: TreeSample, comparison: Comparison) -> dict[tuple[int, ...], float]:
    """Return the role's reward in each episode through the sample, from root to leaf, by tree number and branches."""
    return {
        path: sum(comparison.reward(branch, sample.role) for branch in branches)
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


def only_episode(sample: TreeSample, episode: tuple[int, ...]) -> TreeSample:
    """Return the sample in a tree of one of the episodes through it, given by tree number and branch indices."""

    def prune(node: Node, numbers: Sequence[int]) -> Node:
        branch = node.branches[numbers[0]]
        child = None if branch.child is None else prune(branch.child, numbers[1:])
        return replace(node, branches=(replace(branch, child=child),))

    path = [node for node, _ in sample.above] + [sample.node]
    above, node = [], prune(path[0], episode[1:])
    for _ in sample.above:
        (branch,) = node.branches
        above.append((node, branch))
        assert branch.child is not None
        node = branch.child
    return replace(sample, above=tuple(above), path=(0,) * len(above), node=node)


@declare(sums_rewards=True, of_future=True, whole_episode=True, discounted=False, uses_lookahead=False)
def passed(sample: TreeSample, comparison: Comparison) -> float:
    """Return the fraction of episodes through the sample that rewarded the role with `comparison.threshold` or more.
    This is rejection sampling, as Sirius (arXiv 2502.04780) selects its training data."""
    sizes = episode_rewards(sample, replace(comparison, of_size=True))
    return fmean(
        # Sums that should reach the threshold may miss it by rounding.
        total >= comparison.threshold or is_rounding(total - comparison.threshold, sizes[path])
        for path, total in episode_rewards(sample, comparison).items()
    )


@declare(sums_rewards=True, of_future=True, discounted=False, uses_lookahead=False)
def difference(sample: TreeSample, comparison: Comparison) -> float:
    """Return `([V(sample) - V(root)] + [V(sample) - V(node)]) / sqrt(L)` (TreeRL, arXiv 2506.11902, eq. 5 to 7). V is
    the mean reward of the episodes below, their past included; L is their number below the sample."""
    value, root_value, node_value, episodes = _mean_rewards(sample, comparison)
    total = 2 * max(value, root_value, node_value) if comparison.of_size else 2 * value - root_value - node_value
    return total / math.sqrt(episodes)


def _mean_rewards(sample: TreeSample, comparison: Comparison) -> tuple[float, float, float, int]:
    """Return V of the sample, of the root and of the node, and the number of episodes below the sample."""
    role = sample.role

    def leaf_rewards(branches: Sequence[Branch]) -> list[float]:
        """Return the role's reward from these branches on, one number an episode."""
        return [
            comparison.reward(branch, role) + later
            for branch in branches
            for later in (leaf_rewards(branch.child.branches) if branch.child else [0.0])
        ]

    root = sample.above[0][0] if sample.above else sample.node
    past = sum(comparison.reward(branch, role) for _, branch in sample.above)
    of_sample = [past + later for later in leaf_rewards(sample.branches)]
    of_node = [past + later for later in leaf_rewards(sample.node.branches)]
    return fmean(of_sample), fmean(leaf_rewards(root.branches)), fmean(of_node), len(of_sample)


# Returns against the step without some roles.


@declare(sums_rewards=True, ablates="each", discounted=False, uses_lookahead=False)
def counterfactual(sample: TreeSample, comparison: Comparison) -> float:
    """Return `R(all) - R(all but the role)`: the role's reward of the step, less that of its ablated branch.

    It is the mean over the joint actions that contain the sample, as CCPO (arXiv 2603.21563) describes its marginal
    contribution and COMA (1705.08926) its counterfactual, with a default action in place of an expectation.
    """
    return _ablation_sum(sample, comparison, [(1.0, ())])


@declare(sums_rewards=True, ablates="all", discounted=False, uses_lookahead=False)
def shapley(sample: TreeSample, comparison: Comparison) -> float:
    """Return the role's Shapley value in the step: `R(S and the role) - R(S)`, averaged over the orders of the roles.
    For a reward of the team the values of all roles sum to `R(all) - R(nobody)` (Shapley 1953, axiom of efficiency)."""
    return _ablation_sum(sample, comparison, _shapley_weights(sample))


def _shapley_weights(sample: TreeSample) -> list[tuple[float, tuple[str, ...]]]:
    """Return (weight, absent roles) for every set of the roles that act beside the sample's: |S|! (n - |S| - 1)! / n!
    for the S that are present."""
    partners = [role for role in sample.node.samples if role != sample.role]
    count = len(partners)
    return [
        (math.factorial(size) * math.factorial(count - size) / math.factorial(count + 1), absent)
        for size in range(count + 1)
        for absent in itertools.combinations(partners, size)
    ]


def _ablation_sum(
    sample: TreeSample, comparison: Comparison, absences: Sequence[tuple[float, tuple[str, ...]]]
) -> float:
    """Return the sum over weighted sets of absent roles of `R(without them) - R(without them and the role)`."""
    sign = 1.0 if comparison.of_size else -1.0

    def value(branch: Branch, absent: tuple[str, ...]) -> float:
        key = absent_key(absent)
        if absent and key not in branch.ablated and branch.failure is None:
            raise ConfigError(
                f"{comparison.returns.setting}: {comparison.returns.name} found no step without "
                f"{' and '.join(absent)}; expected one for every branch. Grow trees with the rollout of the "
                "experiment, or with its ablation."
            )
        # Where the step failed with and without them, their absence changed nothing.
        ablated = branch if not absent else replace(branch, reward=branch.ablated.get(key, branch.reward))
        return comparison.reward(ablated, sample.role)

    return fmean(
        sum(
            weight * (value(branch, absent) + sign * value(branch, (*absent, sample.role)))
            for weight, absent in absences
        )
        for branch in sample.branches
    )


def required_ablation(credit: Credit) -> Ablation:
    """Return which steps without roles the returns of a credit read."""
    return max((comparison.returns.ablates for comparison, _ in credit.comparisons), key=("none", "each", "all").index)


def value_of_root(sample: TreeSample, comparison: Comparison) -> float:
    """Return the mean reward of the role in the episodes of the sample's tree."""
    return _mean_rewards(sample, comparison)[1]


RETURNS: dict[str, Callable[[TreeSample, Comparison], float]] = {
    "step": step,
    "first_reward": first_reward,
    "reward_to_go": reward_to_go,
    "best_to_go": best_to_go,
    "episode": episode,
    "difference": difference,
    "passed": passed,
    "counterfactual": counterfactual,
    "shapley": shapley,
}


def size_of_return(sample: TreeSample, comparison: Comparison) -> float:
    """Return the sum of absolute rewards that the sample's return is made of, which its rounding is relative to."""
    of_size = replace(comparison, of_size=True)
    if comparison.returns.sums_rewards:
        return comparison.returns.function(sample, of_size)
    # Another function of the user's may scale rewards down: only the residue of float64 can be told from signal.
    return episode(sample, of_size) * EXACT / RESOLUTION


def decisions_in_episode(sample: TreeSample) -> float:
    """Return how often the role acts in the sample's episode, on average over what was tried below it."""

    def below(branch: Branch) -> float:
        child = branch.child
        return 0.0 if child is None else (sample.role in child.samples) + fmean(map(below, child.branches))

    return 1 + sum(sample.role in node.samples for node, _ in sample.above) + fmean(map(below, sample.branches))


def part_of_episodes(sample: TreeSample) -> float:
    """Return the number of episodes through the sample, divided by the role's decisions that share each."""
    return len(list(episodes_through(sample))) / decisions_in_episode(sample)
