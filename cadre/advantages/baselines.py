"""What is subtracted from returns. `BASELINES` is the table of names: each function says one number a sample."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cadre.advantages.returns import episodes_through
from cadre.rollout.walk import Decision


@dataclass(frozen=True)
class GroupReturns:
    """What a group of N samples is judged by, all [N].

    `values` are their returns, `weights` their parts in the group's statistics, `running` the exponential means that
    they belong to, as they were before the batch. `decisions` are those that they were sampled at where whole episodes
    are compared, of which a role may have several.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    running: tuple[float, ...]
    decisions: tuple[Decision, ...] = ()

    @property
    def mean(self) -> float:
        return sum(w * value for w, value in zip(self.weights, self.values, strict=True)) / sum(self.weights)

    @property
    def std(self) -> float:
        """The standard deviation of the population."""
        mean, weighed = self.mean, zip(self.weights, self.values, strict=True)
        return math.sqrt(sum(w * (value - mean) ** 2 for w, value in weighed) / sum(self.weights))


Baseline = Callable[[GroupReturns], Sequence[float]]


def _mean(group: GroupReturns) -> list[float]:
    return [group.mean] * len(group.values)


def _leave_one_out(group: GroupReturns) -> list[float]:
    """RLOO (arXiv 2402.14740, equation 7): the mean of the others, and where whole episodes are compared of what no
    episode of the sample's holds; what has no other stands against itself."""
    episodes: list[frozenset] = [episodes_through(decision) for decision in group.decisions]
    weights: dict[frozenset, float] = defaultdict(float)
    totals: dict[frozenset, float] = defaultdict(float)
    places = episodes or [frozenset({place}) for place in range(len(group.values))]
    for held, weight, value in zip(places, group.weights, group.values, strict=True):
        weights[held] += weight
        totals[held] += weight * value
    whole, total = sum(weights.values()), sum(totals.values())
    means = {}
    for held in weights:
        alike = [one for one in weights if not one.isdisjoint(held)] if episodes else [held]
        if len(alike) < len(weights):
            rest = whole - sum(weights[one] for one in alike)
            means[held] = (total - sum(totals[one] for one in alike)) / rest
    return [means.get(held, value) for held, value in zip(places, group.values, strict=True)]


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
