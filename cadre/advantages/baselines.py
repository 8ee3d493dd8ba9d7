"""What is subtracted from returns. `BASELINES` is the table of names: each function says one number a sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from cadre.rounding import is_constant


@dataclass(frozen=True)
class EpisodeReturn:
    """One episode through a sample: its path, what it is worth, and the sample's part in the group's count of it."""

    episode: tuple[int, ...]
    value: float
    weight: float


@dataclass(frozen=True)
class GroupReturns:
    """What a group of N samples is judged by, all [N].

    `values` are their returns, `weights` their parts in the group's statistics, `running` the exponential means that
    they belong to, as they were before the batch. Where whole episodes are compared, `episodes` has those through each
    sample, which may be several, and mean and deviation are those of the episodes: the leaves of a tree. `size` is the
    largest sum of absolute rewards that a value was made of; 0 stands for the values themselves.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    running: tuple[float, ...]
    episodes: tuple[tuple[EpisodeReturn, ...], ...] = ()
    size: float = 0.0

    @cached_property
    def weighted(self) -> list[tuple[float, float]]:
        """(value, weight) of all that the statistics are made of: samples, or the episodes through them."""
        if self.episodes:
            return [(one.value, one.weight) for through in self.episodes for one in through]
        return list(zip(self.values, self.weights, strict=True))

    @cached_property
    def zero_variance(self) -> bool:
        """Whether the returns differ by rounding alone."""
        return is_constant(self.values, self.size)

    @property
    def mean(self) -> float:
        return sum(weight * value for value, weight in self.weighted) / sum(weight for _, weight in self.weighted)

    @property
    def std(self) -> float:
        """The standard deviation of the population; 0.0 where the returns differ by rounding alone."""
        if self.zero_variance:
            return 0.0
        mean = self.mean
        largest = max(abs(value - mean) for value, _ in self.weighted)  # squares of 1e-200 would be 0
        squares = sum(weight * ((value - mean) / largest) ** 2 for value, weight in self.weighted)
        return largest * math.sqrt(squares / sum(weight for _, weight in self.weighted))


Baseline = Callable[[GroupReturns], Sequence[float]]


def _mean(group: GroupReturns) -> list[float]:
    return [group.mean] * len(group.values)


def _leave_one_out(group: GroupReturns) -> list[float]:
    """RLOO (arXiv 2402.14740, equation 7): the mean of the other samples, or of the episodes that do not go through the
    sample; what has no other stands against itself."""
    through = [{one.episode for one in episodes} for episodes in group.episodes]
    parts = [(one.episode, one.value, one.weight) for episodes in group.episodes for one in episodes]
    if not group.episodes:
        through = [{(index,)} for index in range(len(group.values))]
        parts = [((index,), *part) for index, part in enumerate(zip(group.values, group.weights, strict=True))]
    weight = sum(weight for _, _, weight in parts)
    total = sum(weight * value for _, value, weight in parts)
    # Totals by episode, so that a group of N samples takes N steps where each has one episode.
    by_episode: dict[tuple[int, ...], tuple[float, float]] = {}
    for episode, value, share in parts:
        before = by_episode.get(episode, (0.0, 0.0))
        by_episode[episode] = (before[0] + share, before[1] + share * value)
    means = []
    for own, value in zip(through, group.values, strict=True):
        if own.issuperset(by_episode):
            means.append(value)
            continue
        rest = weight - sum(by_episode[episode][0] for episode in own)
        means.append((total - sum(by_episode[episode][1] for episode in own)) / rest)
    return means


def _best(group: GroupReturns) -> list[float]:
    return [max(group.values)] * len(group.values)


def _none(group: GroupReturns) -> list[float]:
    return [0.0] * len(group.values)


def _running(group: GroupReturns) -> Sequence[float]:
    """The exponential mean of the role's past returns (SPIRAL, arXiv 2506.24119, role-conditioned advantages)."""
    return group.running


BASELINES: dict[str, Baseline] = {
    "mean": _mean,
    "leave_one_out": _leave_one_out,
    "max": _best,
    "none": _none,
    "running": _running,
}


def of_the_group(baseline: Baseline) -> bool:
    """Whether a baseline is made of the group alone, so that equal returns give no advantage."""
    return all(
        list(baseline(GroupReturns((value,) * 2, (1.0,) * 2, (0.0,) * 2))) == [value] * 2 for value in (1.0, 2.0)
    )
