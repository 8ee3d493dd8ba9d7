"""What an audit comes to: how far advantages and executed effects agree, with intervals by bootstrap over tasks."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import reduce
from operator import add
from statistics import fmean
from typing import Any

from cadre import random_keys
from cadre.experiment.audit import Audited
from cadre.intervals import Interval, with_floor
from cadre.rounding import EXACT, is_rounding

RESAMPLES = 1000
LEAST = (-1.0, 0.0, 0.0, 0.0)  # that each of the figures can be; the most is 1
SHUFFLES = 200


@dataclass(frozen=True)
class Agreement:
    """What decisions say together, each figure (value, low, high) at 95%.

    decisions    how many were audited
    correlation  Pearson's, of advantages and executed effects over all siblings; 0 where either never varies
    explained    its square: the share of the effects' variance that the advantages explain
    ceiling      the share of that variance that is no noise of the plays: the most that can be explained
    matter       the share of decisions whose siblings differ by more than their plays' noise (permutation test, 5%)
    """

    decisions: int
    correlation: Interval
    explained: Interval
    ceiling: Interval
    matter: Interval

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def report(audited: Sequence[Audited], seed: int = 0) -> dict[str, Agreement]:
    """Of all decisions (`all`), of each role (`tool`), and of each role's at each depth of the tree (`tool/0`)."""
    parts: dict[str, list[Audited]] = defaultdict(list)
    for decision in audited:
        for name in ("all", decision.role, f"{decision.role}/{decision.depth}"):
            parts[name].append(decision)
    matters = {id(one): matter(one, random_keys.generator(seed, "matter", n)) for n, one in enumerate(audited)}
    return {
        name: agreement(part, matters, random_keys.generator(seed, "bootstrap", name)) for name, part in parts.items()
    }


@dataclass(frozen=True)
class Sums:
    """What the figures of some decisions are made of: sums over their siblings of advantages a and effects e, the part
    of `ee` that is noise, and over the decisions of those that matter. Sums of tasks add up."""

    siblings: float
    a: float
    e: float
    aa: float
    ee: float
    ae: float
    noise: float
    decisions: float
    mattering: float

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def figures(self) -> tuple[float, float, float, float]:
        """The correlation, its square, the ceiling, and the share that matters."""
        product = self.ae - self.a * self.e / self.siblings
        of_a, of_e = (self.aa - self.a**2 / self.siblings, self.ee - self.e**2 / self.siblings)
        constant = is_rounding(of_a, self.aa, EXACT) or is_rounding(of_e, self.ee, EXACT)
        correlation = 0.0 if constant else product / (math.sqrt(of_a) * math.sqrt(of_e))
        ceiling = min(1.0, max(0.0, 1.0 - self.noise / self.ee)) if self.ee > 0.0 else 0.0
        return correlation, correlation**2, ceiling, self.mattering / self.decisions


def sums(one: Audited, matters: bool) -> Sums:
    """Those of one decision."""
    pairs = list(zip(one.advantages, one.effects, strict=True))
    return Sums(
        siblings=len(pairs),
        a=sum(a for a, _ in pairs),
        e=sum(e for _, e in pairs),
        aa=sum(a * a for a, _ in pairs),
        ee=sum(e * e for _, e in pairs),
        ae=sum(a * e for a, e in pairs),
        noise=noise(one),
        decisions=1,
        mattering=float(matters),
    )


def agreement(part: Sequence[Audited], matters: Mapping[int, bool], generator: random.Random) -> Agreement:
    """The figures of some decisions, each with the 2.5th and the 97.5th percentile over resampled tasks; those of one
    stay together. One task says nothing about others: the intervals are all that there could be."""
    by_tree: dict[int, list[Sums]] = defaultdict(list)
    for one in part:
        by_tree[one.tree].append(sums(one, matters[id(one)]))
    trees = [reduce(add, of_tree) for of_tree in by_tree.values()]
    values = reduce(add, trees).figures
    if len(trees) < 2:
        return Agreement(len(part), *((value, low, 1.0) for value, low in zip(values, LEAST, strict=True)))
    drawn = [reduce(add, generator.choices(trees, k=len(trees))).figures for _ in range(RESAMPLES)]
    return Agreement(len(part), *map(interval, values, zip(*drawn, strict=True), LEAST, itertools.repeat(len(trees))))


def interval(value: float, drawn: Sequence[float], least: float, tasks: int) -> Interval:
    """Return a figure from `least` to 1 with the percentiles of what was drawn over so many tasks."""
    value, low, high = with_floor((value, percentile(drawn, 0.025), percentile(drawn, 0.975)), tasks)
    return value, max(least, low), min(1.0, high)


def percentile(values: Sequence[float], share: float) -> float:
    """Of the values in order, the one at that share of them."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def noise(one: Audited) -> float:
    """The sum over siblings of the variance that an effect has by the noise of its plays.

    A mean of M plays has the variance s^2 / M, and an effect (K - 1) / K of it, as the mean of K is taken off.
    """
    plays = len(one.earned[0])
    if plays < 2:
        return 0.0
    variances = [sum((pay - fmean(pays)) ** 2 for pay in pays) / (plays - 1) for pays in one.earned]
    return sum(variances) / plays * (len(variances) - 1) / len(variances)


def matter(one: Audited, generator: random.Random) -> bool:
    """Whether siblings differ by more than plays of one of them would: few shuffles of all plays spread as widely."""
    plays, pooled = len(one.earned[0]), [pay for pays in one.earned for pay in pays]
    seen = _between(pooled, plays)
    if not any(one.effects):
        return False
    wider = 0
    for _ in range(SHUFFLES):
        generator.shuffle(pooled)
        drawn = _between(pooled, plays)
        wider += drawn >= seen or is_rounding(drawn - seen, seen)
    return (wider + 1) / (SHUFFLES + 1) <= 0.05


def _between(pooled: Sequence[float], plays: int) -> float:
    """The sum of squares between the means of so many plays in a row."""
    means = [fmean(pooled[start : start + plays]) for start in range(0, len(pooled), plays)]
    return sum((mean - fmean(means)) ** 2 for mean in means)
