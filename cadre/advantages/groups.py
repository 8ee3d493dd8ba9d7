"""Advantages by comparison: samples in groups, a baseline for each group, a scale.

    advantage = (return - baseline) / scale

`GROUPINGS`, `BASELINES` and `SCALES` are the tables of names; a function of the user's may stand in place of each.
Groups follow from the position of samples in the tree, never from ids or index arithmetic.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import fmean, pvariance
from textwrap import shorten

from cadre.advantages.returns import (
    RETURNS,
    SUMS,
    Credit,
    ScoredSample,
    episode_rewards,
    episodes_through,
    owner_of,
    part_of_episodes,
    reward_of,
    size_of_returns,
    trained_parts,
    value_of_root,
)
from cadre.declare import declare, declared
from cadre.errors import ConfigError, nearest
from cadre.rollout.walk import TreeSample
from cadre.settings.user_code import load_function
from cadre.statistics import EXACT, is_constant, is_rounding
from cadre.types import Message, Sample, SamplePosition, media_of

Key = tuple[str | int, ...]
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
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    running: tuple[float, ...]
    episodes: tuple[tuple[EpisodeReturn, ...], ...] = ()
    size: float = 0.0
    samples: tuple[ScoredSample, ...] = ()
    prior: tuple[float, float] = (0.0, 0.0)

    @cached_property
    def weighted(self) -> list[tuple[float, float]]:
        """Return (value, weight) of all that the statistics are made of: samples, or the episodes through them."""
        if self.episodes:
            return [(episode.value, episode.weight) for through in self.episodes for episode in through]
        return list(zip(self.values, self.weights, strict=True))

    @cached_property
    def zero_variance(self) -> bool:
        """Return True if the returns differ by rounding alone."""
        return is_constant(self.values, self.size)

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


@dataclass(frozen=True)
class AdvantageGroup:
    """Samples that were compared with each other, with their advantages.

    `std` is 0.0 if their returns differ by rounding alone; `reward_std` is the same before costs of length.
    """

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
        """Return True if its returns differ, or if they give an advantage all the same.

        They do under a baseline that is not made of the group. The cost of the distance from the reference is ignored.
        """
        return self.has_variance or any(scored.advantages[0] for scored in self.samples if not scored.penalties)

    def is_learned(self, without_std: str) -> bool:
        """Return True if the update learns from it: it has a signal, and `credit.without_std` does not drop it."""
        return self.has_signal and not self.is_dropped(without_std)


# The groups: which samples are compared.


def _answer_at_root(sample: TreeSample) -> int:
    """Return the role's own answer at the root, or the branch taken there if the role did not act."""
    if not sample.above:
        return sample.index
    _, branch = sample.above[0]
    return branch.choice.get(sample.role, sample.path[0])


def _proposal_key(sample: TreeSample) -> Key:
    """Return the task for a role that acts at the root, and the branch taken there for all others."""
    root = sample.above[0][0] if sample.above else sample.node
    key = (sample.tree, sample.role)
    return key if sample.role in root.samples else (*key, sample.path[0])


def _observation_key(sample: TreeSample) -> Key:
    """Return what the role was shown: samples that answer the same are compared (GiGPO, arXiv 2505.10978).

    Calls count by their position, not by the names that they happen to have.
    """
    messages = sample.node.observations[sample.role].messages
    calls = {call.id: number for number, call in enumerate(call for message in messages for call in message.tool_calls)}

    def parts(message: Message) -> Key:
        functions = (part for call in message.tool_calls for part in (call.name, call.arguments))
        answered = calls.get(message.tool_call_id, -1)
        return (message.role, message.content, *functions, answered, *(medium.digest for medium in media_of([message])))

    return tuple(part for message in messages for part in parts(message))


@declare(needs_signature=True)
def _state_key(sample: TreeSample) -> Key:
    """Return the environment's signature of the state, or what the role was shown if it has none."""
    signature = sample.node.signature
    return (sample.tree, sample.role, *((signature,) if signature else _observation_key(sample)))


GROUPINGS: dict[str, Callable[[TreeSample], Key]] = {
    "node": lambda sample: (sample.tree, sample.role, *sample.path),
    "task": lambda sample: (sample.tree,),
    "task_role": lambda sample: (sample.tree, sample.role),
    "role_turn_task": lambda sample: (sample.tree, sample.role, sample.node.turn),
    "role": lambda sample: (sample.role,),
    "subtree": lambda sample: (sample.tree, sample.role, _answer_at_root(sample)),
    "proposal": _proposal_key,
    "observation": lambda sample: (sample.tree, sample.role, *_observation_key(sample)),
    "state": _state_key,
}


# The baselines: one number per sample, subtracted from its return.

Baseline = Callable[[GroupReturns], Sequence[float]]


@declare(needs_group=True)
def _mean(group: GroupReturns) -> list[float]:
    return [group.mean] * len(group.values)


@declare(needs_group=True)
def _leave_one_out(group: GroupReturns) -> list[float]:
    """Return the mean of the other samples (RLOO, arXiv 2402.14740, eq. 7), or of the episodes without the sample.

    If there is no other one, the baseline is the sample's own return.
    """
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


def _none(group: GroupReturns) -> list[float]:
    return [0.0] * len(group.values)


def _running(group: GroupReturns) -> Sequence[float]:
    """Return the exponential mean of the role's past returns (SPIRAL, arXiv 2506.24119)."""
    return group.running


BASELINES: dict[str, Baseline] = {
    "mean": _mean,
    "leave_one_out": _leave_one_out,
    "max": _best,
    "none": _none,
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
    if is_constant([*firsts, prior] if weight else firsts, group.size):
        return [0.0] * len(actions)
    value = (math.fsum(firsts) + weight * prior) / (len(firsts) + weight)
    gains = {action: fmean(values) - value for action, values in returns.items()}
    return [0.0 if is_rounding(gains[action], group.size, EXACT) else gains[action] for action in actions]


def action_of(sample: Sample) -> Key:
    """Return a completion's text and calls, which are what it does; space around the text does nothing."""
    calls = sample.message.tool_calls if sample.message is not None else ()
    return (sample.text.strip(), *(part for call in calls for part in (call.name, call.arguments)))


ADVANTAGES: dict[str, Callable[[GroupReturns], Sequence[float]]] = {"state_value": state_value}


# The scales: what the difference is divided by.

Scale = Callable[[GroupReturns], float]
SCALES: dict[str, Scale] = {
    "std": lambda group: group.std,
    # Of the absolute values. For returns of 0 and 1 without a baseline this is MaxRL (arXiv 2602.02710, theorem 1):
    # each success divided by the fraction of successes, on average the gradient of the logarithm of that fraction.
    "mean": lambda group: sum(w * abs(value) for value, w in group.weighted) / sum(w for _, w in group.weighted),
    "none": lambda group: 1.0,
}


# The comparison.


def compute_returns(samples: Sequence[ScoredSample], credit: Credit) -> list[ScoredSample]:
    """Return the samples with their returns, and their weights in the statistics of their group.

    Raises ConfigError if a return is not a finite number.
    """
    if credit.part:  # it is summed as the reward is
        values = [SUMS[credit.returns](scored.tree_sample, credit, reward_of(credit)) for scored in samples]
    else:
        returns_of = load_function("algorithm.returns", credit.returns, RETURNS)
        values = [returns_of(scored.tree_sample, credit) for scored in samples]
    return [
        replace(
            scored,
            returns=_finite("algorithm.returns", credit.returns, value),
            size=size_of_returns(scored.tree_sample, credit),
            count=count_of(scored.tree_sample, credit),
        )
        for scored, value in zip(samples, values, strict=True)
    ]


def count_of(sample: TreeSample, credit: Credit) -> float:
    """Return a sample's weight in the statistics of its group."""
    return part_of_episodes(sample) if credit.count == "episodes" else 1.0


def sum_returns(samples: Sequence[ScoredSample], credit: Credit) -> list[ScoredSample]:
    """Return the samples with the weighted sum of the returns of all comparisons, as SHARP (arXiv 2602.08335) adds up
    rewards before it normalises them. Their weights in the statistics are those of the first comparison."""
    summed, weight = compute_returns(samples, replace(credit, second=None)), 1.0
    while credit.second is not None:
        weight, credit = weight * credit.second_weight, credit.second
        summed = [
            replace(total, returns=total.returns + weight * one.returns, size=total.size + abs(weight) * one.size)
            for total, one in zip(summed, compute_returns(samples, credit), strict=True)
        ]
    return summed


def with_owners(credit: Credit, roles: Container[str]) -> Credit:
    """Return the comparisons with the role, of these, that the part of each rewards alone."""
    second = None if credit.second is None else with_owners(credit.second, roles)
    return replace(credit, owner=owner_of(credit.part, roles), second=second)


def _finite(setting: str, name: str, number: float) -> float:
    """Return the number, unless it is NaN or infinite."""
    if not math.isfinite(number):
        raise ConfigError(
            f"{setting}: {name} returned {number}; expected a finite number. Bound what it computes, or the rewards "
            "that it is computed from."
        )
    return number


def compare_samples(
    samples: Sequence[ScoredSample], credit: Credit, state: Mapping[str, float] | None = None
) -> list[AdvantageGroup]:
    """Return the groups, every sample in exactly one, with the advantages of their samples.

    With a second comparison its advantage is added, and the groups are those of the first; the cost of the distance
    from the reference is in the first alone. All groups use the running means in `state`, which stay as they are;
    `update_running_means` returns the next ones.
    """
    if credit.parts:
        return compare_parts(samples, credit)
    credit = with_owners(credit, {scored.sample.role for scored in samples})
    groups = _compare_once(samples, credit, state)
    if credit.second is None or credit.sums_returns:
        return groups
    second_groups = compare_samples([replace(scored, penalties=()) for scored in samples], credit.second)
    second = {
        scored.tree_sample.position: (scored.advantages[0], group)
        for group in second_groups
        for scored in group.samples
    }
    summed = []
    for group in groups:
        members = tuple(
            replace(
                scored,
                advantages=(scored.advantages[0] + credit.second_weight * second[scored.tree_sample.position][0],),
            )
            for scored in group.samples
        )
        second_groups_of = [second[scored.tree_sample.position][1] for scored in group.samples if credit.second_weight]
        # It has a deviation if either comparison has.
        std = max(group.std, *(one.std for one in second_groups_of), 0.0)
        reward_std = max(group.reward_std, *(one.reward_std for one in second_groups_of), 0.0)
        summed.append(AdvantageGroup(group.key, members, std, reward_std))
    return summed


def compare_parts(samples: Sequence[ScoredSample], credit: Credit) -> list[AdvantageGroup]:
    """Return the groups with the advantages of GDPO (arXiv 2601.05242): each part of the reward is normalised in its
    group, the advantages are summed with their weights, and the sum is normalised over the batch.

        A = sum over parts k of w_k * (R_k - mean of the group) / std of the group,   advantage = (A - mean) / std

    Mean and deviation of A are those of all samples of a policy, which count as in the statistics of their groups. A
    sum of rewards that is normalised once gives equal advantages to groups whose parts differ in size. Of a part of one
    role this role's samples alone are compared, and it adds 0 to the others. A sample's return is the weighted sum of
    those of its parts.
    """
    roles = {scored.sample.role for scored in samples}
    totals: dict[SamplePosition, float] = defaultdict(float)
    returns: dict[SamplePosition, float] = defaultdict(float)
    stds: dict[Key, float] = defaultdict(float)
    reward_stds: dict[Key, float] = defaultdict(float)
    for part, weight in credit.parts:
        owner = owner_of(part, roles)
        rewarded = [scored for scored in samples if owner in ("", scored.sample.role)]
        for group in _compare_once(rewarded, replace(credit, parts=(), part=part, owner=owner)):
            stds[group.key] = max(stds[group.key], group.std if weight else 0.0)
            reward_stds[group.key] = max(reward_stds[group.key], group.reward_std if weight else 0.0)
            for scored in group.samples:
                totals[scored.tree_sample.position] += weight * scored.advantages[0]
                returns[scored.tree_sample.position] += weight * scored.returns

    # The groups, and the batch of each policy.
    grouping = load_function("algorithm.group", credit.group, GROUPINGS)
    groups: dict[Key, list[ScoredSample]] = defaultdict(list)
    for scored in samples:
        sample = scored.tree_sample
        groups[grouping(sample)].append(
            replace(scored, returns=returns[sample.position], count=count_of(sample, credit))
        )
    by_policy: dict[str, list[ScoredSample]] = defaultdict(list)
    for group_samples in groups.values():
        for scored in group_samples:
            by_policy[scored.sample.policy].append(scored)
    advantages: dict[SamplePosition, float] = {}
    for members in by_policy.values():
        values = tuple(totals[scored.tree_sample.position] for scored in members)
        batch = GroupReturns(values, tuple(scored.count for scored in members), (0.0,) * len(values))
        divisor = batch.std or 1.0
        advantages |= {
            scored.tree_sample.position: advantage
            for scored, advantage in zip(members, _subtract_baseline(batch, _mean_of_all, divisor), strict=True)
        }

    return [
        AdvantageGroup(
            key,
            tuple(replace(scored, advantages=(advantages[scored.tree_sample.position],)) for scored in group_samples),
            stds[key],
            reward_stds[key],
        )
        for key, group_samples in groups.items()
    ]


def _mean_of_all(group: GroupReturns) -> list[float]:
    """Return the mean of all values for each; exactly 0 if it is a residue of rounding, as it is of equal groups."""
    mean, largest = group.mean, max(map(abs, group.values))
    return [0.0 if is_rounding(mean, largest, EXACT) else mean] * len(group.values)


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


def _compare_once(
    samples: Sequence[ScoredSample], credit: Credit, state: Mapping[str, float] | None = None
) -> list[AdvantageGroup]:
    grouping = load_function("algorithm.group", credit.group, GROUPINGS)
    if credit.advantages:
        compare: Callable[[Sequence[ScoredSample], GroupReturns], tuple[ScoredSample, ...]] = partial(
            _call_advantages, load_function("algorithm.advantages", credit.advantages, ADVANTAGES), credit.advantages
        )
    else:
        baseline = load_function("algorithm.baseline", credit.baseline, BASELINES)
        scale = load_function("algorithm.scale", credit.scale, SCALES)
        compare = partial(_compare_group, credit=credit, baseline=baseline, scale=scale)
    groups: dict[Key, list[ScoredSample]] = defaultdict(list)
    credited = sum_returns(samples, credit) if credit.sums_returns else compute_returns(samples, credit)
    for scored in bend_by_history(credited, state or {}) if credit.history else credited:
        groups[grouping(scored.tree_sample)].append(scored)
    compared = []
    for key, members in groups.items():
        returns = group_returns(members, credit, state)
        reward_std = returns.std
        if any(scored.overlong for scored in members):
            reward_std = group_returns([replace(scored, overlong=0.0) for scored in members], credit, state).std
        compared.append(AdvantageGroup(key, compare(members, returns), returns.std, reward_std))
    return compared


def _compare_group(
    members: Sequence[ScoredSample], returns: GroupReturns, credit: Credit, baseline: Baseline, scale: Scale
) -> tuple[ScoredSample, ...]:
    """Return the members of one group with their advantages, which are 0 without a standard deviation under a baseline
    made of the group.

    The cost of the distance from the reference is no part of the standard deviation: there it would be divided by
    itself where rewards are equal, whatever its weight. Under a baseline made of the group it is centred by itself.
    """
    size = _finite("algorithm.scale", credit.scale, scale(returns))
    divisor = 1.0 if size <= 0.0 or is_rounding(size, returns.size, EXACT) else size
    if declared(baseline, "needs_group"):
        gains = _subtract_baseline(returns, baseline, divisor)
        charges = _penalty_advantages(members, baseline, credit)
        advantages = [gain + charge for gain, charge in zip(gains, charges, strict=True)]
    else:
        after_costs = replace(returns, values=tuple(scored.return_after_costs for scored in members))
        advantages = _subtract_baseline(after_costs, baseline, divisor)
    return tuple(
        replace(scored, advantages=(_finite("algorithm.baseline", credit.baseline, value),))
        for scored, value in zip(members, advantages, strict=True)
    )


def _call_advantages(
    function: Callable[[GroupReturns], Sequence[float]],
    name: str,
    members: Sequence[ScoredSample],
    returns: GroupReturns,
) -> tuple[ScoredSample, ...]:
    """Return the members of one group with the advantages that a function of the user's returns.

    It gets the returns after all costs. If it declares that it needs the group, one without a deviation has 0.
    """
    if declared(function, "needs_group") and returns.zero_variance:
        return tuple(members)
    after_costs = replace(returns, values=tuple(scored.return_after_costs for scored in members))
    numbers = check_advantages(name, function(after_costs), len(members))
    return tuple(replace(scored, advantages=(number,)) for scored, number in zip(members, numbers, strict=True))


def check_advantages(name: str, numbers: object, size: int) -> Sequence[float]:
    """Return what `algorithm.advantages` returned, unless it is anything but a finite number a sample."""
    if (
        not isinstance(numbers, list | tuple)
        or len(numbers) != size
        or not all(isinstance(number, int | float) for number in numbers)
    ):
        text = shorten(repr(numbers), 80, placeholder="...")
        raise ConfigError(
            f"algorithm.advantages: {name} returned {text} for a group of {size}; expected a list of {size} "
            "numbers, one per sample. Return that."
        )
    for number in numbers:
        _finite("algorithm.advantages", name, number)
    return numbers


def named_baseline(credit: Credit) -> str:
    """Return the reference of the function that decides if a group of equal returns has advantages."""
    return credit.advantages or credit.baseline


def needs_group(credit: Credit) -> bool:
    """Return True if a group of equal returns has no advantages."""
    function = load_function("algorithm.baseline", named_baseline(credit), {**BASELINES, **ADVANTAGES})
    return bool(declared(function, "needs_group"))


def needs_signatures(credit: Credit) -> bool:
    """Return True if groups are made by the signatures of states."""
    functions = (load_function("algorithm.group", part.group, GROUPINGS) for part in credit.comparisons)
    return any(declared(function, "needs_signature") for function in functions)


def group_returns(
    members: Sequence[ScoredSample], credit: Credit, state: Mapping[str, float] | None = None
) -> GroupReturns:
    """Return the returns of a group's members."""
    values = [scored.return_after_length for scored in members]
    return GroupReturns(
        tuple(values),
        tuple(scored.count for scored in members),
        tuple((state or {}).get(running_mean_name(scored.tree_sample, credit.group), 0.0) for scored in members),
        _episodes(members, values, credit) if credit.count == "episodes" else (),
        max(scored.size + abs(scored.overlong) for scored in members),
        tuple(members),
        (_mean_of_tasks(members, credit), credit.prior) if credit.prior else (0.0, 0.0),
    )


def _mean_of_tasks(members: Sequence[ScoredSample], credit: Credit) -> float:
    """Return the mean reward of the episodes of the members' tasks, undiscounted."""
    by_tree = {scored.tree_sample.tree: scored.tree_sample for scored in members}
    return fmean(value_of_root(sample, credit, reward_of(credit)) for sample in by_tree.values())


def _episodes(
    members: Sequence[ScoredSample], values: Sequence[float], credit: Credit
) -> tuple[tuple[EpisodeReturn, ...], ...]:
    """Return the episodes through each sample.

    Every episode counts once for each role of the group, divided among the role's samples on it, each of which adds the
    cost of its own length. A return that is no sum over the episode is the sample's value in each of its episodes.
    """
    paths = [[path for path, _ in episodes_through(scored.tree_sample)] for scored in members]
    counts = Counter(
        (scored.sample.role, path) for scored, through in zip(members, paths, strict=True) for path in through
    )
    episodes = []
    for scored, value, through in zip(members, values, paths, strict=True):
        returns = dict.fromkeys(through, value)
        if credit.returns == "episode":
            rewards = episode_rewards(scored.tree_sample, credit, reward_of(credit))
            returns = {path: reward + value - scored.returns for path, reward in rewards.items()}
        weights = {path: 1.0 / counts[scored.sample.role, path] for path in through}
        episodes.append(tuple(EpisodeReturn(path, returns[path], weights[path]) for path in through))
    return tuple(episodes)


def _subtract_baseline(returns: GroupReturns, baseline: Baseline, divisor: float) -> list[float]:
    """Return `(value - baseline) / divisor` of each value.

    They are 0.0 if all values and baselines differ by rounding alone. An optimiser that scales gradients would make a
    step of any residue.
    """
    bases, name = list(baseline(returns)), getattr(baseline, "__name__", "the function").removeprefix("_")
    if len(bases) != len(returns.values):
        raise ConfigError(
            f"algorithm.baseline: {name} returned {len(bases)} numbers for a group of {len(returns.values)}; expected "
            "one a sample. Return as many."
        )
    for base in bases:
        _finite("algorithm.baseline", name, base)
    if is_constant([*returns.values, *bases], returns.size):
        return [0.0] * len(bases)
    advantages = []
    for value, base in zip(returns.values, bases, strict=True):
        is_zero = is_rounding(value - base, max(abs(value), abs(base), returns.size), EXACT)
        advantages.append(0.0 if is_zero else (value - base) / divisor)
    return advantages


def _penalty_advantages(members: Sequence[ScoredSample], baseline: Baseline, credit: Credit) -> list[float]:
    """Return the advantage of each sample's distance from the reference, a cost, among its role's in the group.

    It is 0 where the distance costs nothing, as for a frozen role.
    """
    advantages = [0.0] * len(members)
    by_role: dict[str, list[int]] = defaultdict(list)
    for index, scored in enumerate(members):
        if scored.penalties:
            by_role[scored.sample.role].append(index)
    own_costs = replace(credit, returns="step")  # costs are the sample's own, whatever its episodes earned
    for indices in by_role.values():
        of_role = [members[index] for index in indices]
        values = [-sum(scored.penalties) for scored in of_role]
        costs = GroupReturns(
            tuple(values),
            tuple(scored.count for scored in of_role),
            (0.0,) * len(indices),
            _episodes(of_role, values, own_costs) if credit.count == "episodes" else (),
        )
        for index, value in zip(indices, _subtract_baseline(costs, baseline, 1.0), strict=True):
            advantages[index] = value
    return advantages


# The running means.


def running_mean_name(sample: TreeSample, grouping: str) -> str:
    """Return the name of the running mean that a sample belongs to: its role's, by turn if turns are compared."""
    by_turn = grouping in ("node", "role_turn_task")
    return f"{sample.role}/{sample.node.turn}" if by_turn else sample.role


def update_running_means(state: Mapping[str, float], groups: Sequence[AdvantageGroup], credit: Credit) -> BaselineState:
    """Return the running means after a batch.

    A sample that counts w moves its mean by w updates, so an episode moves it once where episodes are counted.
    """
    means = dict(state)
    for group in groups:
        for scored in group.samples:
            name, decay = running_mean_name(scored.tree_sample, credit.group), credit.decay**scored.count
            means[name] = decay * means.get(name, 0.0) + (1.0 - decay) * scored.return_after_costs
    return means


# The history of contributions.


def bend_by_history(samples: Sequence[ScoredSample], state: Mapping[str, float]) -> list[ScoredSample]:
    """Return the samples with the return tanh((return - mean) / (deviation + 1e-6)), as in CCPO's public code (arXiv
    2603.21563).

    Mean and deviation are the role's from before the batch; a deviation whose square is at most 1e-6 counts as 1.
    Returns of a role without a history, as in the first step, stay as they are.
    """
    bent = []
    for scored in samples:
        mean_name, variance_name = history_names(scored.sample.role)
        if mean_name in state:
            mean, variance = state[mean_name], state[variance_name]
            divisor = (math.sqrt(variance) if variance > 1e-6 else 1.0) + 1e-6
            size = (scored.size + abs(mean)) / divisor
            scored = replace(scored, returns=math.tanh((scored.returns - mean) / divisor), size=size)
        bent.append(scored)
    return bent


def update_history(state: Mapping[str, float], samples: Sequence[ScoredSample], credit: Credit) -> BaselineState:
    """Return the exponential means, by role, of the mean and variance of each batch's returns, set by the first."""
    by_role: dict[str, list[float]] = defaultdict(list)
    for scored in compute_returns(samples, replace(credit, second=None)):
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

    1.0 means that nothing was learned from that decision; step after step, that nothing ever will be.
    """
    flags: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for group in groups:
        for decision in dict.fromkeys((scored.sample.role, len(scored.tree_sample.path)) for scored in group.samples):
            flags[decision].append(not group.is_learned(without_std))
    return {decision: fmean(values) for decision, values in sorted(flags.items())}
