"""Advantages by comparison: samples in groups, a baseline for each group, a scale.

    advantage = (return - baseline) / scale

`GROUPINGS`, `BASELINES` and `SCALES` are the tables of names; a function of the user's may stand in place of each.
`comparison_of` reads the names, once. Groups follow from the position of samples in the tree, never from ids or index
arithmetic.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, pvariance
from textwrap import shorten
from typing import Any, SupportsFloat

from cadre.advantages.returns import (
    RETURNS,
    Baseline,
    Comparison,
    Credit,
    Grouping,
    Key,
    Return,
    Scale,
    ScoredSample,
    episodes_through,
    load_record,
    only_episode,
    owner_of,
    part_of_episodes,
    size_of_return,
    trained_parts,
    value_of_root,
)
from cadre.declare import declare
from cadre.errors import ConfigError, nearest
from cadre.rollout.walk import TreeSample
from cadre.statistics import EXACT, RESOLUTION, is_constant, is_rounding
from cadre.types import Message, Sample, SamplePosition, media_of

# Exponential means of returns by role, or by role and turn; kept in the checkpoint.
BaselineState = dict[str, float]


# What a group is.


@dataclass(frozen=True)
class EpisodeReturn:
    """One episode through a sample: its path, its return, and its weight in the statistics of the group."""

    episode: tuple[int, ...]
    value: float
    weight: float


@dataclass(frozen=True)
class GroupReturns:
    """The returns of a group of N samples, all [N].

    values    the samples' returns
    weights   their weights in the group's statistics
    running   the exponential means that they belong to, from before the batch
    episodes  if whole episodes are compared, those through each sample, which may be several; mean and deviation are
              then those of the episodes: the leaves of a tree
    size      the largest sum of absolute rewards that a value was made of; 0 stands for the values themselves
    samples   the samples themselves, if a function of the user's may look at them
    prior     (mean reward of the task's episodes, how many returns it counts as), for state values
    resolution  part of the size up to which values are equal
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    running: tuple[float, ...]
    episodes: tuple[tuple[EpisodeReturn, ...], ...] = ()
    size: float = 0.0
    samples: tuple[ScoredSample, ...] = ()
    prior: tuple[float, float] = (0.0, 0.0)
    resolution: float = RESOLUTION

    @cached_property
    def weighted(self) -> list[tuple[float, float]]:
        """Return (value, weight) of all that the statistics are made of: samples, or the episodes through them."""
        if self.episodes:
            return [(episode.value, episode.weight) for through in self.episodes for episode in through]
        return list(zip(self.values, self.weights, strict=True))

    @cached_property
    def zero_variance(self) -> bool:
        """Return True if the returns differ by rounding alone."""
        return is_constant(self.values, self.size, self.resolution)

    @property
    def mean(self) -> float:
        return sum(weight * value for value, weight in self.weighted) / sum(weight for _, weight in self.weighted)

    @property
    def std(self) -> float:
        """Return the standard deviation of the population; 0.0 if the returns differ by rounding alone."""
        if self.zero_variance:
            return 0.0
        mean = self.mean
        largest = max(abs(value - mean) for value, _ in self.weighted)  # squares of 1e-200 would be 0
        squares = sum(weight * ((value - mean) / largest) ** 2 for value, weight in self.weighted)
        return largest * math.sqrt(squares / sum(weight for _, weight in self.weighted))

    def subtract(self, bases: Sequence[float]) -> list[float]:
        """Return each value less its base, 0.0 if all values and bases, or the two, differ by rounding alone. An
        optimiser that scales gradients would make a step of any residue."""
        if is_constant([*self.values, *bases], self.size, self.resolution):
            return [0.0] * len(bases)
        return [
            0.0 if is_rounding(value - base, max(abs(value), abs(base), self.size), EXACT) else value - base
            for value, base in zip(self.values, bases, strict=True)
        ]


@dataclass(frozen=True)
class AdvantageGroup:
    """Samples that were compared with each other, with their advantages. `std` is 0.0 if their returns differ by
    rounding alone; `reward_std` is the same before costs of length."""

    key: Key
    samples: tuple[ScoredSample, ...]
    std: float
    reward_std: float

    @property
    def has_variance(self) -> bool:
        """Return True if its returns have a standard deviation."""
        return self.std > 0.0

    def is_dropped(self, without_std: str) -> bool:
        """Return True if `credit.without_std` leaves it out of the update.

        `drop` goes by rewards before costs of length too, as DAPO's filter (arXiv 2503.14476, equation 11) asks for
        right and wrong answers: of wrong ones alone the shortest would be learned.
        """
        return without_std == "drop" and min(self.std, self.reward_std) == 0.0

    @property
    def has_signal(self) -> bool:
        """Return True if its returns differ, or if they give an advantage all the same. They do under a baseline that
        is not made of the group. The cost of the distance from the reference is ignored."""
        return self.has_variance or any(scored.advantages[0] for scored in self.samples if not scored.penalties)

    def is_learned(self, without_std: str) -> bool:
        """Return True if the update learns from it: it has a signal, and `credit.without_std` does not drop it."""
        return self.has_signal and not self.is_dropped(without_std)


# The groups: which samples are compared.


@declare(scope="task")
def _subtree_key(sample: TreeSample) -> Key:
    """Return the task and the role's own answer at the root, or the branch taken there if the role did not act."""
    answer = sample.above[0][1].choice.get(sample.role, sample.path[0]) if sample.above else sample.index
    return (sample.tree, sample.role, answer)


@declare(scope="task")
def _proposal_key(sample: TreeSample) -> Key:
    """Return the task for a role that acts at the root, and the branch taken there for all others."""
    root = sample.above[0][0] if sample.above else sample.node
    key = (sample.tree, sample.role)
    return key if sample.role in root.samples else (*key, sample.path[0])


def _observation_key(sample: TreeSample) -> Key:
    """Return what the role was shown: samples that answer the same are compared (GiGPO, arXiv 2505.10978). Calls count
    by their position, not by the names that they happen to have."""
    messages = sample.node.observations[sample.role].messages
    calls = {call.id: number for number, call in enumerate(call for message in messages for call in message.tool_calls)}

    def parts(message: Message) -> Key:
        functions = (part for call in message.tool_calls for part in (call.name, call.arguments))
        answered = calls.get(message.tool_call_id, -1)
        return (message.role, message.content, *functions, answered, *(medium.digest for medium in media_of([message])))

    return tuple(part for message in messages for part in parts(message))


@declare(scope="task", needs_signature=True)
def _state_key(sample: TreeSample) -> Key:
    """Return the environment's signature of the state, or what the role was shown if it has none."""
    signature = sample.node.signature
    return (sample.tree, sample.role, *((signature,) if signature else _observation_key(sample)))


GROUPINGS: dict[str, Callable[[TreeSample], Key]] = {
    "node": declare(scope="decision")(lambda sample: (sample.tree, sample.role, *sample.path)),
    "task": declare(scope="task")(lambda sample: (sample.tree,)),
    "task_role": declare(scope="task")(lambda sample: (sample.tree, sample.role)),
    "role_turn_task": declare(scope="turn")(lambda sample: (sample.tree, sample.role, sample.node.turn)),
    "role": declare(scope="batch")(lambda sample: (sample.role,)),
    "subtree": _subtree_key,
    "proposal": _proposal_key,
    "observation": declare(scope="task")(lambda sample: (sample.tree, sample.role, *_observation_key(sample))),
    "state": _state_key,
}


# The baselines: one number per sample, subtracted from its return.


@declare(needs_group=True)
def _mean(group: GroupReturns) -> list[float]:
    return [group.mean] * len(group.values)


@declare(needs_group=True)
def _leave_one_out(group: GroupReturns) -> list[float]:
    """Return the mean of the other samples (RLOO, arXiv 2402.14740, eq. 7), or of the episodes without the sample. If
    there is no other one, the baseline is the sample's own return."""
    if group.episodes:
        through = [{episode.episode for episode in episodes} for episodes in group.episodes]
        parts = [(part.episode, part.value, part.weight) for episodes in group.episodes for part in episodes]
    else:
        through = [{(index,)} for index in range(len(group.values))]
        parts = [((index,), *part) for index, part in enumerate(zip(group.values, group.weights, strict=True))]
    weight = sum(weight for _, _, weight in parts)
    total = sum(weight * value for _, value, weight in parts)
    # Totals by episode, so that a group of N samples takes N steps where each has one episode.
    by_episode: dict[tuple[int, ...], tuple[float, float]] = {}
    for episode, value, part_weight in parts:
        totals = by_episode.get(episode, (0.0, 0.0))
        by_episode[episode] = (totals[0] + part_weight, totals[1] + part_weight * value)
    means = []
    for episodes, value in zip(through, group.values, strict=True):
        if episodes.issuperset(by_episode):
            means.append(value)
            continue
        rest = weight - sum(by_episode[episode][0] for episode in episodes)
        means.append((total - sum(by_episode[episode][1] for episode in episodes)) / rest)
    return means


@declare(needs_group=True)
def _best(group: GroupReturns) -> list[float]:
    return [max(group.values)] * len(group.values)


@declare(uses_running=True)
def _running(group: GroupReturns) -> Sequence[float]:
    """Return the exponential mean of the role's past returns (SPIRAL, arXiv 2506.24119)."""
    return group.running


BASELINES: dict[str, Callable[[GroupReturns], Sequence[float]]] = {
    "mean": _mean,
    "leave_one_out": _leave_one_out,
    "max": _best,
    "none": lambda group: [0.0] * len(group.values),
    "running": _running,
}


# Advantages in place of baseline and scale.


def state_value(group: GroupReturns) -> list[float]:
    """Return `Q(s, a) - V(s)` for a group that is a state: the mean return of the equal actions, less that of all.

    Of equal actions of one episode in the state the first one counts. V is drawn towards the prior's mean as if as many
    more returns had been equal to it (RTMC, arXiv 2604.11037; equation 11 as a public port of it states it).
    """
    actions = [action_of(scored.sample) for scored in group.samples]
    positions = [scored.tree_sample.position for scored in group.samples]
    at = dict(zip(positions, actions, strict=True))

    def is_first(scored: ScoredSample, action: Key) -> bool:
        sample = scored.tree_sample
        earlier = (
            (sample.tree, sample.path[:depth], sample.role, branch.choice.get(sample.role, -1))
            for depth, (_, branch) in enumerate(sample.above)
        )
        return all(at.get(position) != action for position in earlier)

    returns: dict[Key, list[float]] = defaultdict(list)
    for scored, action, value in zip(group.samples, actions, group.values, strict=True):
        if is_first(scored, action):
            returns[action].append(value)
    firsts = [value for values in returns.values() for value in values]
    prior, weight = group.prior
    value = (math.fsum(firsts) + weight * prior) / (len(firsts) + weight)
    of_actions = replace(group, values=tuple(fmean(returns[action]) for action in actions))
    return of_actions.subtract([value] * len(actions))


def action_of(sample: Sample) -> Key:
    """Return a completion's text and calls, which are what it does; space around the text does nothing."""
    calls = sample.message.tool_calls if sample.message is not None else ()
    return (sample.text.strip(), *(part for call in calls for part in (call.name, call.arguments)))


ADVANTAGES: dict[str, Callable[[GroupReturns], Sequence[float]]] = {"state_value": state_value}


# The scales: what the difference is divided by.

SCALES: dict[str, Callable[[GroupReturns], float]] = {
    "std": lambda group: group.std,
    # Of the absolute values. For returns of 0 and 1 without a baseline this is MaxRL (arXiv 2602.02710, theorem 1):
    # each success divided by the fraction of successes, on average the gradient of the logarithm of that fraction.
    "mean": lambda group: sum(w * abs(value) for value, w in group.weighted) / sum(w for _, w in group.weighted),
    "none": lambda group: 1.0,
}


# The comparison.


def comparison_of(
    returns: str,
    group: str,
    baseline: str,
    scale: str,
    alpha: float = 1.0,
    gamma: float = 1.0,
    *,
    section: str = "algorithm",
    **options: Any,
) -> Comparison:
    """Return the comparison of functions that are named, each of a table or as `my_file.py:function`.

    Without a scale, "", `baseline` names a function of `ADVANTAGES`. `section` is the section of the settings that
    names them. `options` are the other fields of `Comparison`.
    """
    axis, table = ("baseline", BASELINES) if scale else ("advantages", ADVANTAGES)
    return Comparison(
        load_record(Return, f"{section}.returns", returns, RETURNS),
        load_record(Grouping, f"{section}.group", group, GROUPINGS),
        load_record(Baseline, f"{section}.{axis}", baseline, table),
        load_record(Scale, f"{section}.scale", scale, SCALES) if scale else None,
        alpha,
        gamma,
        **options,
    )


def compute_returns(samples: Sequence[ScoredSample], comparison: Comparison) -> list[ScoredSample]:
    """Return the samples with their returns, and their weights in the statistics of their group. Raises ConfigError if
    a return is not a finite number."""
    credited = []
    for scored in samples:
        number = comparison.returns.function(scored.tree_sample, comparison)
        count = part_of_episodes(scored.tree_sample) if comparison.count == "episodes" else 1.0
        size = size_of_return(scored.tree_sample, comparison)
        credited.append(replace(scored, returns=finite_number(comparison.returns, number), size=size, count=count))
    return credited


def sum_returns(samples: Sequence[ScoredSample], credit: Credit) -> list[ScoredSample]:
    """Return the samples with the weighted sum of the returns of all comparisons, as SHARP (arXiv 2602.08335) adds up
    rewards before it normalises them. Their weights in the statistics are those of the first comparison."""
    summed = compute_returns(samples, credit.first)
    for comparison, weight in credit.comparisons[1:]:
        summed = [
            replace(total, returns=total.returns + weight * scored.returns, size=total.size + abs(weight) * scored.size)
            for total, scored in zip(summed, compute_returns(samples, comparison), strict=True)
        ]
    return summed


def finite_number(record: Return | Baseline | Scale, number: object) -> float:
    """Return what the function returned, unless it is anything but a finite number."""
    if not isinstance(number, SupportsFloat) or not math.isfinite(number):
        raise ConfigError(
            f"{record.setting}: {record.name} returned {shorten(repr(number), 80, placeholder='...')}; expected a "
            "finite number. Bound what it computes, or the rewards that it is computed from."
        )
    return number  # type: ignore[return-value]


def call_baseline(baseline: Baseline, group: GroupReturns) -> Sequence[float]:
    """Return what the function returns for a group, unless it is anything but a finite number a sample."""
    numbers: Any = baseline.function(group)
    size = len(group.values)
    are_numbers = isinstance(numbers, list | tuple) and all(isinstance(number, int | float) for number in numbers)
    if not are_numbers or len(numbers) != size:
        text = shorten(repr(numbers), 80, placeholder="...")
        raise ConfigError(
            f"{baseline.setting}: {baseline.name} returned {text} for a group of {size}; expected a list of {size} "
            "numbers, one per sample. Return that."
        )
    return [finite_number(baseline, number) for number in numbers]


def compare_samples(
    samples: Sequence[ScoredSample], credit: Credit, state: Mapping[str, float] | None = None
) -> list[AdvantageGroup]:
    """Return the groups, every sample in exactly one, with the advantages of their samples.

    Advantages are the weighted sum of those of all comparisons. The groups are those of the first, and the cost of the
    distance from the reference is in the first alone. All groups use the running means in `state`, which stay as they
    are; `update_running_means` returns the next ones.

    GDPO (arXiv 2601.05242) normalises each part of the reward in its group, and then the sum over the batch:

        A = sum over parts k of w_k * (R_k - mean of the group) / std of the group,   advantage = (A - mean) / std

    Of a part of one role this role's samples alone are compared, and it adds 0 to the others.
    """
    roles = {scored.sample.role for scored in samples}
    comparisons = [(replace(one, owner=owner_of(one.part, roles)), weight) for one, weight in credit.comparisons]
    credit, first = replace(credit, comparisons=tuple(comparisons)), comparisons[0][0]
    if credit.sums == "returns":
        credited, comparisons = sum_returns(samples, credit), [(first, 1.0)]
    else:
        credited = compute_returns(samples, first)
    if credit.history:
        credited = bend_by_history(credited, state or {})

    # The sums by sample, and the groups that it was compared in.
    advantages: dict[SamplePosition, float] = defaultdict(float)
    returns: dict[SamplePosition, float] = defaultdict(float)
    compared_in: dict[SamplePosition, list[AdvantageGroup]] = defaultdict(list)
    for number, (comparison, weight) in enumerate(comparisons):
        compared = credited
        if number > 0:
            compared, state = compute_returns([replace(sample, penalties=()) for sample in samples], comparison), None
        compared = [scored for scored in compared if comparison.owner in ("", scored.sample.role)]
        for group in _compare(compared, comparison, state):
            for scored in group.samples:
                position = scored.tree_sample.position
                advantages[position] += weight * scored.advantages[0]
                returns[position] += weight * scored.returns
                if weight:
                    compared_in[position].append(group)

    # The groups of the first comparison. One has a deviation if any of its samples was compared in a group that has.
    groups: dict[Key, list[ScoredSample]] = defaultdict(list)
    for scored in credited:
        groups[first.group.function(scored.tree_sample)].append(scored)
    if credit.sums == "normalised":
        advantages = _normalise_by_policy([scored for members in groups.values() for scored in members], advantages)

    judged_groups = []
    for key, members in groups.items():
        judged, compared_groups = list[ScoredSample](), list[AdvantageGroup]()
        for scored in members:
            position = scored.tree_sample.position
            total = returns[position] if credit.sums == "normalised" else scored.returns
            judged.append(replace(scored, returns=total, advantages=(advantages[position],)))
            compared_groups += compared_in[position]
        deviations = ((group.std, group.reward_std) for group in compared_groups)
        std, reward_std = map(max, zip((0.0, 0.0), *deviations, strict=True))
        judged_groups.append(AdvantageGroup(key, tuple(judged), std, reward_std))
    return judged_groups


def _normalise_by_policy(
    samples: Sequence[ScoredSample], advantages: Mapping[SamplePosition, float]
) -> dict[SamplePosition, float]:
    """Return `(A - mean) / std` over the samples of each policy, which count as in the statistics of their groups: with
    whole episodes each episode counts once for a role, as each rollout does in the paper."""
    by_policy: dict[str, list[ScoredSample]] = defaultdict(list)
    for scored in samples:
        by_policy[scored.sample.policy].append(scored)
    normalised: dict[SamplePosition, float] = {}
    for members in by_policy.values():
        positions = [scored.tree_sample.position for scored in members]
        values = tuple(advantages[position] for position in positions)
        batch = GroupReturns(values, tuple(scored.count for scored in members), (0.0,) * len(values))
        # A mean that is the residue of sums, as of groups of equal weight, would be an advantage of groups without any.
        mean = 0.0 if is_rounding(batch.mean, max(map(abs, values)), EXACT) else batch.mean
        gains = batch.subtract([mean] * len(values))
        normalised |= {position: gain / (batch.std or 1.0) for position, gain in zip(positions, gains, strict=True)}
    return normalised


def check_parts_reported(samples: Sequence[ScoredSample], credit: Credit) -> None:
    """Raise ConfigError for a part of the reward that is trained on and that no step of a batch reports."""
    reported = {part for scored in samples for branch in scored.tree_sample.branches for part in branch.reward.parts}
    for part in sorted(trained_parts(credit)):
        if part not in reported:
            raise ConfigError(
                f"parts of the reward: got {part!r}, which no reward of the step reports; expected some of "
                f"{', '.join(sorted(reported)) or 'none, as the environment reports no parts'}."
                f"{nearest(part, sorted(reported))} Name one of them, or report it in every step (`Reward.parts`)."
            )


def _compare(
    samples: Sequence[ScoredSample], comparison: Comparison, state: Mapping[str, float] | None = None
) -> list[AdvantageGroup]:
    """Return the groups of one comparison, given the samples with their returns."""
    groups: dict[Key, list[ScoredSample]] = defaultdict(list)
    for scored in samples:
        groups[comparison.group.function(scored.tree_sample)].append(scored)
    compared = []
    for key, members in groups.items():
        returns = group_returns(members, comparison, state)
        reward_std = returns.std
        if any(scored.overlong for scored in members):
            reward_std = group_returns([replace(scored, overlong=0.0) for scored in members], comparison, state).std
        advantages = _group_advantages(members, returns, comparison)
        judged = [replace(scored, advantages=(value,)) for scored, value in zip(members, advantages, strict=True)]
        compared.append(AdvantageGroup(key, tuple(judged), returns.std, reward_std))
    return compared


def _group_advantages(
    members: Sequence[ScoredSample], returns: GroupReturns, comparison: Comparison
) -> Sequence[float]:
    """Return the advantages of the members of one group, 0 without a standard deviation under a function that needs the
    group.

    The cost of the distance from the reference is no part of the standard deviation: there it would be divided by
    itself where rewards are equal, whatever its weight. Under a baseline made of the group it is centred by itself.
    """
    baseline, scale = comparison.baseline, comparison.scale
    after_costs = replace(returns, values=tuple(scored.return_after_costs for scored in members))
    if scale is None:
        is_zero = baseline.needs_group and returns.zero_variance
        return [0.0] * len(members) if is_zero else call_baseline(baseline, after_costs)
    size = finite_number(scale, scale.function(returns))
    divisor = 1.0 if size <= 0.0 or is_rounding(size, returns.size, EXACT) else size
    if baseline.needs_group:
        gains = returns.subtract(call_baseline(baseline, returns))
        charges = _penalty_advantages(members, baseline, comparison)
    else:
        gains, charges = after_costs.subtract(call_baseline(baseline, after_costs)), [0.0] * len(members)
    return [finite_number(baseline, gain / divisor + charge) for gain, charge in zip(gains, charges, strict=True)]


def needs_signatures(credit: Credit) -> bool:
    """Return True if groups are made by the signatures of states."""
    return any(comparison.group.needs_signature for comparison, _ in credit.comparisons)


def group_returns(
    members: Sequence[ScoredSample], comparison: Comparison, state: Mapping[str, float] | None = None
) -> GroupReturns:
    """Return the returns of a group's members. If the history bent them, they are equal if they were before: tanh draws
    large ones together, and their rounding with them."""
    size, resolution = max(scored.size + abs(scored.overlong) for scored in members), RESOLUTION
    unbent = [scored.unbent for scored in members if scored.unbent is not None]
    if unbent:
        if is_constant(unbent, size):
            members = [replace(scored, returns=members[0].returns) for scored in members]
        size, resolution = 0.0, EXACT
    values = [scored.return_after_length for scored in members]
    mean_of_tasks = 0.0
    if comparison.prior:  # the mean reward of the episodes of the members' tasks, undiscounted
        by_tree = {scored.tree_sample.tree: scored.tree_sample for scored in members}
        mean_of_tasks = fmean(value_of_root(sample, comparison) for sample in by_tree.values())
    return GroupReturns(
        tuple(values),
        tuple(scored.count for scored in members),
        tuple((state or {}).get(running_mean_name(scored.tree_sample, comparison.group), 0.0) for scored in members),
        _episodes(members, values, comparison) if comparison.count == "episodes" else (),
        size,
        tuple(members),
        (mean_of_tasks, comparison.prior),
        resolution,
    )


def _episodes(
    members: Sequence[ScoredSample], values: Sequence[float], comparison: Comparison | None
) -> tuple[tuple[EpisodeReturn, ...], ...]:
    """Return the episodes through each sample. Every episode counts once for each role of the group, divided among the
    role's samples on it, each of which adds the cost of its own length. A return that is not of whole episodes, or a
    cost (no comparison), is the sample's value in each of its episodes."""
    paths = [[path for path, _ in episodes_through(scored.tree_sample)] for scored in members]
    counts = Counter(
        (scored.sample.role, path) for scored, through in zip(members, paths, strict=True) for path in through
    )
    episodes = []
    for scored, value, through in zip(members, values, paths, strict=True):
        returns = dict.fromkeys(through, value)
        if comparison is not None and comparison.returns.whole_episode:
            for path in through:
                sample = scored.tree_sample if len(through) == 1 else only_episode(scored.tree_sample, path)
                returns[path] = comparison.returns.function(sample, comparison) + value - scored.returns
        weights = {path: 1.0 / counts[scored.sample.role, path] for path in through}
        episodes.append(tuple(EpisodeReturn(path, returns[path], weights[path]) for path in through))
    return tuple(episodes)


def _penalty_advantages(members: Sequence[ScoredSample], baseline: Baseline, comparison: Comparison) -> list[float]:
    """Return the advantage of each sample's distance from the reference, a cost, among its role's in the group. It is 0
    where the distance costs nothing, as for a frozen role."""
    advantages = [0.0] * len(members)
    by_role: dict[str, list[int]] = defaultdict(list)
    for index, scored in enumerate(members):
        if scored.penalties:
            by_role[scored.sample.role].append(index)
    for indices in by_role.values():
        of_role = [members[index] for index in indices]
        values = [-sum(scored.penalties) for scored in of_role]
        costs = GroupReturns(
            tuple(values),
            tuple(scored.count for scored in of_role),
            (0.0,) * len(indices),
            _episodes(of_role, values, None) if comparison.count == "episodes" else (),
        )
        for index, value in zip(indices, costs.subtract(call_baseline(baseline, costs)), strict=True):
            advantages[index] = value
    return advantages


# The running means.


def running_mean_name(sample: TreeSample, grouping: Grouping) -> str:
    """Return the name of the running mean that a sample belongs to: its role's, by turn if turns are compared."""
    return f"{sample.role}/{sample.node.turn}" if grouping.scope in ("decision", "turn") else sample.role


def update_running_means(state: Mapping[str, float], groups: Sequence[AdvantageGroup], credit: Credit) -> BaselineState:
    """Return the running means after a batch. A sample that counts w moves its mean by w updates, so an episode moves
    it once where episodes are counted."""
    means = dict(state)
    for group in groups:
        for scored in group.samples:
            name, decay = running_mean_name(scored.tree_sample, credit.first.group), credit.decay**scored.count
            means[name] = decay * means.get(name, 0.0) + (1.0 - decay) * scored.return_after_costs
    return means


# The history of contributions.


def bend_by_history(samples: Sequence[ScoredSample], state: Mapping[str, float]) -> list[ScoredSample]:
    """Return the samples with the return tanh((return - mean) / (deviation + 1e-6)), as in CCPO's public code (arXiv
    2603.21563). Mean and deviation are the role's from before the batch; a deviation whose square is at most 1e-6
    counts as 1. Returns of a role without a history, as in the first step, stay as they are."""
    bent = []
    for scored in samples:
        mean_name, variance_name = history_names(scored.sample.role)
        if mean_name in state:
            mean, variance = state[mean_name], state[variance_name]
            divisor = (math.sqrt(variance) if variance > 1e-6 else 1.0) + 1e-6
            bent_return = math.tanh((scored.returns - mean) / divisor)
            scored = replace(scored, returns=bent_return, unbent=scored.returns)
        bent.append(scored)
    return bent


def update_history(state: Mapping[str, float], samples: Sequence[ScoredSample], credit: Credit) -> BaselineState:
    """Return the exponential means, by role, of the mean and variance of each batch's returns, set by the first."""
    by_role: dict[str, list[float]] = defaultdict(list)
    for scored in compute_returns(samples, credit.first):
        by_role[scored.sample.role].append(scored.returns)
    history = {}
    for role, values in by_role.items():
        for name, new in zip(history_names(role), (fmean(values), pvariance(values)), strict=True):
            history[name] = credit.decay * state[name] + (1.0 - credit.decay) * new if name in state else new
    return history


def history_names(role: str) -> tuple[str, str]:
    """Return the names of a role's mean and variance in the state."""
    return f"{role}/return/mean", f"{role}/return/variance"


# What the comparisons tell, for metrics and warnings.


def groups_of_roles(groups: Sequence[AdvantageGroup], roles: Container[str]) -> list[AdvantageGroup]:
    """Return the groups with their samples of these roles alone, without those that have none."""
    filtered = (
        replace(group, samples=tuple(scored for scored in group.samples if scored.sample.role in roles))
        for group in groups
    )
    return [group for group in filtered if group.samples]


def no_signal_fractions(groups: Sequence[AdvantageGroup], without_std: str = "keep") -> dict[tuple[str, int], float]:
    """Return the fraction of groups that nothing is learned from, by role and number of the decision in its episode.
    1.0 means that nothing was learned from that decision; step after step, that nothing ever will be."""
    flags: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for group in groups:
        for decision in dict.fromkeys((scored.sample.role, len(scored.tree_sample.path)) for scored in group.samples):
            flags[decision].append(not group.is_learned(without_std))
    return {decision: fmean(values) for decision, values in sorted(flags.items())}
