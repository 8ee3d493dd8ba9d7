"""Shares of tasks or of prompts, with their intervals."""

from __future__ import annotations

import math


def wilson(share: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95% interval of a share of n (Wilson 1927)."""
    square = z * z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
