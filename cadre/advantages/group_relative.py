"""Advantages by comparison: samples in groups, a baseline for each group, a scale.

Groups come from where samples stand in the tree, never from ids or index arithmetic. A grouping, a baseline and a scale
are one function each, in the tables here and in `baselines`, or in a file of the user's.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cadre.advantages.baselines import BASELINES, Baseline, EpisodeReturn, GroupReturns, of_the_group
from cadre.advantages.credit import Credit
from cadre.advantages.returns import RETURNS, episode_rewards, episodes_through, part_of_episodes, size_of_returns
from cadre.advantages.samples import ScoredSample
from cadre.errors import ConfigError
from cadre.rollout.walk import TreeSample
from cadre.rounding import EXACT, is_constant, is_rounding
from cadre.settings.user_code import load_function
from cadre.types import Message

Key = tuple[str | int, ...]
# Exponential means of returns by role, or by role and turn; kept in the checkpoint.
BaselineState = dict[str, float]


@dataclass(frozen=True)
class AdvantageGroup:
    """Samples that are compared with each other, with the advantages that the comparison gave them. `std` is 0.0 where
    their returns differ by rounding alone."""

    key: Key
    samples: tuple[ScoredSample, ...]
    std: float

    @property
    def differs(self) -> bool:
        """Whether its returns have a standard deviation."""
        return self.std > 0.0

    @property
    def silent(self) -> bool:
        """Whether it says nothing of what was done: its returns do not differ, and no advantage comes of them, as it
        does of a baseline that is not made of the group. What a distance from the reference costs is not asked for."""
        return not self.differs and not any(scored.advantages[0] for scored in self.samples if not scored.penalties)


def valued(samples: Sequence[ScoredSample], credit: Credit) -> list[ScoredSample]:
    """The samples with what they are worth, and what they count in the statistics of their group. Raises ConfigError
    where a return is not a finite number."""
    returns_of = load_function("algorithm.returns", credit.returns, RETURNS)
    return [
        replace(
            scored,
            returns=_finite("algorithm.returns", credit.returns, returns_of(scored.tree_sample, credit)),
            size=size_of_returns(scored.tree_sample, credit),
            count=part_of_episodes(scored.tree_sample) if credit.count == "episodes" else 1.0,
        )
        for scored in samples
    ]


def _finite(setting: str, name: str, number: float) -> float:
    """The number, unless it is NaN or infinite."""
    if not math.isfinite(number):
        raise ConfigError(
            f"{setting}: {name} returned {number}; expected a finite number. Bound what it computes, or the rewards "
            "that it is computed from."
        )
    return number


def compare(
    samples: Sequence[ScoredSample], credit: Credit, state: Mapping[str, float] | None = None
) -> list[AdvantageGroup]:
    """Every sample in exactly one group, its return less what it costs held against the group's baseline.

    With a second comparison its advantage is added, and the groups are those of the first; what the distance from the
    reference costs is in the first alone. All groups are judged against the running means in `state`, none of which is
    moved; `moved` says what they become.
    """
    groups = _compared(samples, credit, state)
    if credit.second is None:
        return groups
    second = by_place(_compared([replace(scored, penalties=()) for scored in samples], credit.second))
    return [_with_second(group, second, credit) for group in groups]


def by_place(groups: Sequence[AdvantageGroup]) -> dict[tuple, tuple[float, float]]:
    """(advantage, deviation of its group) of every sample by its place."""
    return {
        scored.tree_sample.position: (scored.advantages[0], group.std) for group in groups for scored in group.samples
    }


def _with_second(group: AdvantageGroup, second: Mapping[tuple, tuple[float, float]], credit: Credit) -> AdvantageGroup:
    """The group with what the second comparison says of its samples; it differs where either does."""
    judged = tuple(
        replace(
            scored, advantages=(scored.advantages[0] + credit.second_weight * second[scored.tree_sample.position][0],)
        )
        for scored in group.samples
    )
    spread = max(second[scored.tree_sample.position][1] for scored in group.samples) if credit.second_weight else 0.0
    return AdvantageGroup(group.key, judged, max(group.std, spread))


def _compared(
    samples: Sequence[ScoredSample], credit: Credit, state: Mapping[str, float] | None = None
) -> list[AdvantageGroup]:
    """One comparison."""
    grouping = load_function("algorithm.group", credit.group, GROUPINGS)
    groups: dict[Key, list[ScoredSample]] = defaultdict(list)
    for scored in valued(samples, credit):
        groups[grouping(scored.tree_sample)].append(scored)
    return [_judge(key, members, credit, state or {}) for key, members in groups.items()]


def _judge(key: Key, members: Sequence[ScoredSample], credit: Credit, state: Mapping[str, float]) -> AdvantageGroup:
    """Advantages within one group. Without a standard deviation they are 0 under a baseline made of the group, and
    never divided.

    What the distance from the reference costs is no part of the standard deviation: there it would be divided by
    itself where rewards are equal, whatever its weight. Under a baseline made of the group it is centred by itself.
    """
    returns = group_returns(members, credit, state)
    baseline = load_function("algorithm.baseline", credit.baseline, BASELINES)
    scale = _finite("algorithm.scale", credit.scale, load_function("algorithm.scale", credit.scale, SCALES)(returns))
    divisor = 1.0 if scale <= 0.0 or is_rounding(scale, returns.size, EXACT) else scale
    if of_the_group(baseline):
        gains = _beyond(returns, baseline, divisor)
        charges = _of_distances(members, baseline, credit)
        advantages = [gain + paid for gain, paid in zip(gains, charges, strict=True)]
    else:
        paid = replace(returns, values=tuple(scored.paid for scored in members))
        advantages = _beyond(paid, baseline, divisor)
    judged = (
        replace(scored, advantages=(_finite("algorithm.baseline", credit.baseline, value),))
        for scored, value in zip(members, advantages, strict=True)
    )
    return AdvantageGroup(key, tuple(judged), returns.std)


def group_returns(
    members: Sequence[ScoredSample], credit: Credit, state: Mapping[str, float] | None = None
) -> GroupReturns:
    """What the members of a group are compared by."""
    values = [scored.earned for scored in members]
    return GroupReturns(
        tuple(values),
        tuple(scored.count for scored in members),
        tuple((state or {}).get(lasting_name(scored.tree_sample, credit.group), 0.0) for scored in members),
        _episodes(members, values, credit) if credit.count == "episodes" else (),
        max(scored.size + abs(scored.overlong) for scored in members),
    )


def _episodes(
    members: Sequence[ScoredSample], values: Sequence[float], credit: Credit
) -> tuple[tuple[EpisodeReturn, ...], ...]:
    """The episodes through each sample. Every episode counts once for each role of the group, divided among the role's
    samples on it, each of which adds what its own length costs. A return that is no sum over the episode is the
    sample's value in each of its episodes."""
    paths = [[path for path, _ in episodes_through(scored.tree_sample)] for scored in members]
    shares = Counter(
        (scored.sample.role, path) for scored, through in zip(members, paths, strict=True) for path in through
    )
    episodes = []
    for scored, value, through in zip(members, values, paths, strict=True):
        worth = dict.fromkeys(through, value)
        if credit.returns == "episode":
            rewards = episode_rewards(scored.tree_sample, credit)
            worth = {path: earned + value - scored.returns for path, earned in rewards.items()}
        weights = {path: 1.0 / shares[scored.sample.role, path] for path in through}
        episodes.append(tuple(EpisodeReturn(path, worth[path], weights[path]) for path in through))
    return tuple(episodes)


def _beyond(returns: GroupReturns, baseline: Baseline, divisor: float) -> list[float]:
    """What each value is worth beyond its baseline: 0.0 where all values and baselines differ by rounding alone. An
    optimiser that scales gradients makes a step of any residue."""
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
    beyond = []
    for value, base in zip(returns.values, bases, strict=True):
        nothing = is_rounding(value - base, max(abs(value), abs(base), returns.size), EXACT)
        beyond.append(0.0 if nothing else (value - base) / divisor)
    return beyond


def _of_distances(members: Sequence[ScoredSample], baseline: Baseline, credit: Credit) -> list[float]:
    """What each sample's distance from the reference, a cost, is worth beyond the baseline of its role's in the group;
    0 where it costs nothing, as of a frozen role."""
    advantages = [0.0] * len(members)
    places: dict[str, list[int]] = defaultdict(list)
    for place, scored in enumerate(members):
        if scored.penalties:
            places[scored.sample.role].append(place)
    distances = replace(credit, returns="step")  # costs are the sample's own, whatever its episodes earned
    for charged in places.values():
        of_role = [members[place] for place in charged]
        values = [-sum(scored.penalties) for scored in of_role]
        paid = GroupReturns(
            tuple(values),
            tuple(scored.count for scored in of_role),
            (0.0,) * len(charged),
            _episodes(of_role, values, distances) if credit.count == "episodes" else (),
        )
        for place, value in zip(charged, _beyond(paid, baseline, 1.0), strict=True):
            advantages[place] = value
    return advantages


# Which samples are compared.

GROUPINGS: dict[str, Callable[[TreeSample], Key]] = {
    "node": lambda decision: (decision.tree, decision.role, *decision.path),
    "task": lambda decision: (decision.tree,),
    "task_role": lambda decision: (decision.tree, decision.role),
    "role_turn_task": lambda decision: (decision.tree, decision.role, decision.node.turn),
    "role": lambda decision: (decision.role,),
    "subtree": lambda decision: (decision.tree, decision.role, _first(decision)),
    "observation": lambda decision: (decision.tree, decision.role, *_seen(decision)),
}


def _first(decision: TreeSample) -> int:
    """The role's own answer at the root, which the sample is or lies below; the branch there, where it did not act."""
    if not decision.above:
        return decision.index
    _, branch = decision.above[0]
    return branch.choice.get(decision.role, decision.path[0])


def _seen(decision: TreeSample) -> Key:
    """What the role was shown: samples of one task that answer the same are compared (GiGPO, arXiv 2505.10978)."""
    messages = decision.node.observations[decision.role].messages
    made = {call.id: place for place, call in enumerate(call for message in messages for call in message.tool_calls)}
    return tuple(part for message in messages for part in _said(message, made))


def _said(message: Message, made: Mapping[str, int]) -> Key:
    """All of a message but what calls are named: who speaks, its words and pictures, the calls of functions in it, and
    the place of the one that it answers among those `made`."""
    calls = (part for call in message.tool_calls for part in (call.name, call.arguments))
    answered = made.get(message.tool_call_id, -1)
    return (message.role, message.content, *calls, answered, *(image.digest for image in message.images))


# What the difference is divided by.

SCALES: dict[str, Callable[[GroupReturns], float]] = {
    "std": lambda group: group.std,
    # Of the absolute values. For returns of 0 and 1 without a baseline this is MaxRL (arXiv 2602.02710, theorem 1):
    # each success by the share that there are of them, on average the gradient of the logarithm of that share.
    "mean": lambda group: sum(w * abs(value) for value, w in group.weighted) / sum(w for _, w in group.weighted),
    "none": lambda group: 1.0,
}


# The running means.


def lasting_name(decision: TreeSample, grouping: str) -> str:
    """The running mean that a sample belongs to: its role's, by turn where samples are compared by turn."""
    by_turn = grouping in ("node", "role_turn_task")
    return f"{decision.role}/{decision.node.turn}" if by_turn else decision.role


def moved(state: Mapping[str, float], groups: Sequence[AdvantageGroup], credit: Credit) -> BaselineState:
    """The running means after a batch. A sample that counts w moves its mean by w updates, so an episode moves it once
    where episodes are what counts."""
    after = dict(state)
    for group in groups:
        for scored in group.samples:
            name, kept = lasting_name(scored.tree_sample, credit.group), credit.decay**scored.count
            after[name] = kept * after.get(name, 0.0) + (1.0 - kept) * scored.paid
    return after


# How much the comparisons say.


def of_roles(groups: Sequence[AdvantageGroup], roles: Container[str]) -> list[AdvantageGroup]:
    """The groups with their samples of these roles alone, those without any left out."""
    kept = (
        replace(group, samples=tuple(scored for scored in group.samples if scored.sample.role in roles))
        for group in groups
    )
    return [group for group in kept if group.samples]


def without_std_by_decision(groups: Sequence[AdvantageGroup]) -> dict[tuple[str, int], float]:
    """By role and number of the decision in its episode: the share of groups that are silent.

    A number of 1.0 says that nothing was learned from that decision; step after step, that nothing ever will be.
    """
    silent: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for group in groups:
        for place in dict.fromkeys((scored.sample.role, len(scored.tree_sample.path)) for scored in group.samples):
            silent[place].append(group.silent)
    return {place: fmean(flags) for place, flags in sorted(silent.items())}
