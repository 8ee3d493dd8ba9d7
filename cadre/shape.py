"""How a tree grows: how many siblings a role samples, which joint actions are tried, which of them carry on.

Three shapes, each a small function. `rollout.grow` asks a shape its three questions and knows nothing else about it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

Carry = Literal["argmax", "sample", "random"]
Joint = Literal["aligned", "cross"]


@dataclass(frozen=True)
class Shape:
    """`count(depth)`: siblings a role samples at that depth. `expand(scores, random)`: indices of the branches that
    carry on, given one score a branch. `joint`: "aligned" tries the g-th siblings of all roles together, "cross" all
    combinations."""

    name: str
    count: Callable[[int], int]
    expand: Callable[[Sequence[float], random.Random], Sequence[int]]
    joint: Joint = "aligned"

    def choices(self, roles: Sequence[str], depth: int) -> list[dict[str, int]]:
        """The joint actions to try: K of them when aligned, K to the power of the number of roles when crossed."""
        siblings = range(self.count(depth))
        if self.joint == "aligned":
            return [dict.fromkeys(roles, index) for index in siblings]
        return [dict(zip(roles, picks, strict=True)) for picks in itertools.product(siblings, repeat=len(roles))]


def independent(k: int) -> Shape:
    """`k` whole episodes of one task side by side: they part at the first decision and never branch again."""
    return Shape(f"independent({k})", lambda depth: k if depth == 0 else 1, _all)


def greedy(k: int, carry: Carry = "argmax") -> Shape:
    """At every decision `k` siblings are tried and one carries on (AT-GRPO, arXiv 2510.11062, section 3)."""
    return Shape(f"greedy({k}, {carry})", lambda depth: k, CARRIES[carry])


def full(k: int, joint: Joint = "aligned", stop_at: float | None = None) -> Shape:
    """Every joint action carries on: k^T leaves aligned, k^(nT) crossed (MAGRPO, arXiv 2508.04652, section 4).

    Below a node whose branches' mean score passes `stop_at` the tree grows no further.
    """

    def expand(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
        return () if stop_at is not None and fmean(scores) > stop_at else range(len(scores))

    return Shape(f"full({k}, {joint})", lambda depth: k, expand, joint)


def leaves(shape: Shape, acting: Sequence[int]) -> int:
    """How many leaves a tree can grow to, given how many roles act at each decision of an episode."""
    total = carried = 1
    for depth, roles in enumerate(acting):
        branches = len(shape.choices([str(role) for role in range(roles)], depth))
        total = carried * branches
        carried *= len(shape.expand([0.0] * branches, random.Random(0)))
    return total


def _all(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    return range(len(scores))


def _argmax(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    """The best branch. Ties go to a random one of them: the first would favour no skill, only an index."""
    best = max(scores)
    return [generator.choice([index for index, score in enumerate(scores) if score == best])]


def _sample(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    """A branch drawn in proportion to its score above the worst, uniformly where all are equal."""
    worst = min(scores)
    weights = [score - worst for score in scores]
    return generator.choices(range(len(scores)), weights if any(weights) else None)


def _random(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    return [generator.randrange(len(scores))]


CARRIES: dict[Carry, Callable[[Sequence[float], random.Random], Sequence[int]]] = {
    "argmax": _argmax,
    "sample": _sample,
    "random": _random,
}
