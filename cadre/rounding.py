"""Equality of numbers that are computed from rewards: one rule for groups, pairs, ties, critics and audits.

The comparison is relative, as rewards may be 1e-10 or 1e6. `size` is always the sum of the absolute rewards that a
number was made of, which is larger than the number itself if rewards cancel: 0.3 + 0.4 - 0.7 is no reward of 1e-17.
"""

from __future__ import annotations

from collections.abc import Sequence

# Eight roundings of float32, in which many tasks add up their rewards: about a hundred terms in any order. 1e6 and
# 1e6 + 1 still differ.
RESOLUTION = 2.0**-20
# The residue of sums in float64, in which rewards are added up here.
EXACT = 2.0**-44


def is_rounding(difference: float, size: float, resolution: float = RESOLUTION) -> bool:
    """Return whether a difference of two numbers of `size` is no more than rounding."""
    return abs(difference) <= resolution * size


def is_constant(values: Sequence[float], size: float = 0.0) -> bool:
    """Return whether the values differ by rounding alone, for their own size or the larger `size`."""
    return is_rounding(max(values) - min(values), max(size, max(map(abs, values))))
