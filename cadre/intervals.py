"""95% intervals of rates and of means over tasks, the one way for evaluations, audits, reward models and comparisons.

No interval of equal values has width zero: twenty tasks that are all solved in half of their episodes do not say that
the twenty-first is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from cadre.rounding import EXACT, is_rounding

Interval = tuple[float, float, float]  # value, low, high
Z = 1.96


def rate_interval(values: Sequence[float], z: float = Z) -> Interval:
    """Return the mean of rates from 0 to 1, one a task, with its interval; that of `mean_interval` where some are less
    or more. Raises ValueError for no values and for some that are not finite.

    With every rate 0 or 1 it is Wilson's (1927). For others n p (1 - p), the sum of squares of n such values about
    their mean, is that of the rates themselves: samples of one task are not independent, and tasks are counted.
    """
    rates = [min(1.0, max(0.0, value)) for value in values]
    if not all(is_rounding(value - rate, 1.0, EXACT) for value, rate in zip(values, rates, strict=True)) or not rates:
        return mean_interval(values, z)
    count, mean = len(rates), fmean(rates)
    squares = sum((rate - mean) ** 2 for rate in rates)
    centre = (count * mean + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * math.sqrt(squares + z * z / 4)
    return mean, max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float], z: float = Z) -> Interval:
    """Return the mean of numbers of any size, one a task, with the interval of their standard error and a floor; all
    numbers where there is one task. Raises ValueError for no values and for some that are not finite."""
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"An interval needs one or more finite values, one a task; got {list(values)}.")
    count, mean = len(values), fmean(values)
    if count < 2:
        return mean, -math.inf, math.inf
    half = z * stdev(values) / math.sqrt(count)
    return with_floor((mean, mean - half, mean + half), count, max(map(abs, values)))


def with_floor(interval: Interval, count: int, size: float = 1.0) -> Interval:
    """Return an interval over `count` tasks at least as wide as if one task more might have moved the mean by `size`,
    the largest that a value may be: resampling equal values gives an interval without width."""
    value, low, high = interval
    least = size / (count + 1)
    return value, min(low, value - least), max(high, value + least)
