"""Numbers that are computed from rewards: when two are equal, and the 95% intervals of rates and means over tasks.

One rule of equality serves groups, pairs, ties, critics and audits. It is relative, as rewards may be 1e-10 or 1e6:
`size` is the sum of the absolute rewards that a number was made of, as 0.3 + 0.4 - 0.7 is no reward of 1e-17.

No interval of equal values has width zero: of twenty tasks that are all solved the next one may still differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

# Eight roundings of float32, in which many tasks add up their rewards: about a hundred terms in any order. 1e6 and
# 1e6 + 1 still differ.
RESOLUTION = 2.0**-20
# The residue of sums in float64, in which rewards are added up here.
EXACT = 2.0**-44

Interval = tuple[float, float, float]  # value, low, high
Z = 1.96


def is_rounding(difference: float, size: float, resolution: float = RESOLUTION) -> bool:
    """Return whether a difference of two numbers of `size` is no more than rounding."""
    return abs(difference) <= resolution * size


def is_constant(values: Sequence[float], size: float = 0.0, resolution: float = RESOLUTION) -> bool:
    """Return whether the values differ by rounding alone, for their own size or the larger `size`."""
    return is_rounding(max(values) - min(values), max(size, max(map(abs, values))), resolution)


def rate_interval(values: Sequence[float], z: float = Z) -> Interval:
    """Return the mean of rates from 0 to 1, one a task, with its interval. Raises ValueError like `mean_interval`.

    If some values are less than 0 or more than 1, the interval is that of `mean_interval`. With every rate 0 or 1 it is
    Wilson's (1927). For others n p (1 - p), the sum of squares of n such values about their mean, is that of the rates
    themselves: samples of one task are not independent, and tasks are counted.
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
    """Return the mean of numbers of any size, one a task, with the interval of their standard error and a floor. With
    one task it is infinite. Raises ValueError for no values and for values that are not finite."""
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"An interval needs one or more finite values, one a task; got {list(values)}.")
    count, mean = len(values), fmean(values)
    if count < 2:
        return mean, -math.inf, math.inf
    half = z * stdev(values) / math.sqrt(count)
    return with_floor((mean, mean - half, mean + half), count, max(map(abs, values)))


def with_floor(interval: Interval, count: int, size: float = 1.0) -> Interval:
    """Return an interval over `count` tasks that is wide enough for one more task of the largest value, `size`.
    Resampling equal values would give an interval without width."""
    value, low, high = interval
    floor = size / (count + 1)
    return value, min(low, value - floor), max(high, value + floor)
