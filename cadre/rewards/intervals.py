"""95% intervals of rates and of means over tasks, the one way for evaluations, audits, reward models and comparisons.

No interval of equal values has width zero: twenty tasks that are all solved in half of their episodes do not say that
the twenty-first is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

Interval = tuple[float, float, float]  # value, low, high
Z = 1.96


def rate_interval(values: Sequence[float], z: float = Z) -> Interval:
    """Return the mean of rates from 0 to 1, one a task, with its interval.

    With every rate 0 or 1 it is Wilson's (1927). For others n p (1 - p), the sum of squares of n such values about
    their mean, is that of the rates themselves: samples of one task are not independent, and tasks are counted.
    """
    count, mean = len(values), fmean(values)
    squares = sum((value - mean) ** 2 for value in values)
    centre = (count * mean + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * math.sqrt(squares + z * z / 4)
    return mean, max(0.0, centre - half), min(1.0, centre + half)


def with_floor(interval: Interval, count: int, size: float = 1.0) -> Interval:
    """Return an interval over `count` tasks at least as wide as if one task more might have moved the mean by `size`,
    the largest that a value may be: resampling equal values gives an interval without width."""
    value, low, high = interval
    least = size / (count + 1)
    return value, min(low, value - least), max(high, value + least)
