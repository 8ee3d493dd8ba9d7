"""How a tree grows: how many siblings a role samples, which joint actions are tried, which of them carry on.

Each shape is a small function of the table `cadre.rollout.shapes.SHAPES`; one's own stands in a file of the user's and
makes a `Shape` as they do. `rollout.grow` asks a shape its three questions and knows nothing else about it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from cadre.errors import ConfigError
from cadre.rounding import is_constant, is_rounding
from cadre.types import Node

Joint = Literal["aligned", "cross"]
# Siblings a decision: one number, one a turn (the last repeats), or either by role.
PerTurn = int | tuple[int, ...]
Siblings = PerTurn | Mapping[str, PerTurn]
# Which branches carry on: their indices, given one score a branch.
Expand = Callable[[Sequence[float], random.Random], Sequence[int]]


@dataclass(frozen=True)
class Shape:
    """How a tree grows.

    count      (role, turn, depth): siblings that a role samples which acted `turn` times before, at that depth
    expand     (scores, random): indices of the branches that carry on, given one score a branch
    joint      "aligned" tries the g-th siblings of all roles together, "cross" all combinations
    lookahead  how many decisions in a row that pay nobody fan out, to choose by what follows them
    grower     what samples the whole tree in place of `rollout.grow.grow`, given that function's first arguments
    """

    name: str
    count: Callable[[str, int, int], int]
    expand: Expand
    joint: Joint = "aligned"
    lookahead: int = 0
    grower: Callable[..., Awaitable[Node | None]] | None = None

    @property
    def plays_all(self) -> bool:
        """Whether every branch carries on, so that what follows it is known."""
        return len(self.expand(range(64), random.Random(0))) == 64

    def parts_later(self, roles: Sequence[str], depths: int) -> bool:
        """Whether more than one sibling may be sampled behind the first of so many decisions, so that a state has to be
        reached a second time."""
        later = [(turn, depth) for depth in range(1, depths) for turn in range(depth + 1)]
        return self.grower is not None or any(self.count(role, *place) > 1 for role in roles for place in later)

    def choices(self, counts: Mapping[str, int]) -> list[dict[str, int]]:
        """The joint actions to try, given the siblings of each acting role: K of them when aligned, the product of
        their numbers when crossed. Raises ConfigError where unequally many would have to be aligned."""
        if self.joint == "cross":
            ranges = itertools.product(*(range(count) for count in counts.values()))
            return [dict(zip(counts, picks, strict=True)) for picks in ranges]
        if len(set(counts.values())) > 1:
            drawn = " and ".join(f"{count} of {role}" for role, count in counts.items())
            raise ConfigError(
                f"algorithm.k: {drawn} act at once under {self.name}, which tries the g-th siblings of all together; "
                "expected equally many. Give them the same k, or use algorithm.joint=cross where there is one."
            )
        return [dict.fromkeys(counts, index) for index in range(min(counts.values()))]


def every_decision(k: Siblings) -> Callable[[str, int, int], int]:
    """A shape's `count` where every decision is sampled: `k` for all, by turn (the last repeats), or either by role."""

    def count(role: str, turn: int, depth: int) -> int:
        numbers = k[role] if isinstance(k, Mapping) else k
        return numbers if isinstance(numbers, int) else numbers[min(turn, len(numbers) - 1)]

    return count


def independent(k: Siblings) -> Shape:
    """`k` whole episodes of one task side by side: they part at the first decision and never branch again."""
    if not isinstance(k, int):
        raise ConfigError(
            f"algorithm.k: got {k} with shape independent, where whole episodes are played side by side; expected one "
            "number. Set it, or a shape that samples siblings at every decision."
        )
    return Shape(f"independent({k})", lambda role, turn, depth: k if depth == 0 else 1, _all)


def greedy(k: Siblings, carry: Expand | None = None, lookahead: int = 0) -> Shape:
    """At every decision `k` siblings are tried and one carries on (AT-GRPO, arXiv 2510.11062, section 3).

    With `lookahead` what follows is tried too where a decision itself pays nobody (`rollout.grow.choose`).
    """
    return Shape(f"greedy({k})", every_decision(k), carry or _argmax, lookahead=lookahead)


def full(k: Siblings, joint: Joint = "aligned", stop_at: float | None = None) -> Shape:
    """Every joint action carries on: k^T leaves aligned, k^(nT) crossed (MAGRPO, arXiv 2508.04652, section 4).

    Below a node whose branches' mean score passes `stop_at` the tree grows no further.
    """

    def expand(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
        if stop_at is None:
            return range(len(scores))
        mean = fmean(scores)
        passes = mean > stop_at and not is_rounding(mean - stop_at, max(abs(mean), abs(stop_at)))
        return () if passes else range(len(scores))

    return Shape(f"full({k}, {joint})", every_decision(k), expand, joint)


def leaves(shape: Shape, acting: Sequence[Sequence[str]], unpaid: Collection[int] = ()) -> int:
    """The widest that a tree can grow, given the roles that act at each decision of an episode.

    `unpaid` are the numbers of the decisions that pay nobody, so that the shape looks ahead.
    """
    widest, carried, width, looked = 1, 1, 1, 0
    turns: Counter[str] = Counter()
    for depth, roles in enumerate(acting):
        branches = len(shape.choices({role: shape.count(role, turns[role], depth) for role in roles}))
        widest = max(widest, width * branches)
        carried *= len(shape.expand([0.0] * branches, random.Random(0)))
        if not shape.lookahead or depth not in unpaid:
            width, looked = carried, 0
        elif looked < shape.lookahead:
            width, looked = width * branches, looked + 1
        turns.update(roles)
    return widest


def _all(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    return range(len(scores))


def _argmax(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    """The best branch. Ties go to a random one of them: the first would favour no skill, only an index."""
    best = max(scores)
    ties = [n for n, score in enumerate(scores) if is_rounding(best - score, max(abs(best), abs(score)))]
    return [generator.choice(ties)]


def _sample(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    """A branch drawn in proportion to its score above the worst, uniformly where all are equal."""
    worst = min(scores)
    weights = None if is_constant(scores) else [score - worst for score in scores]
    return generator.choices(range(len(scores)), weights)


def _random(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    return [generator.randrange(len(scores))]


CARRIES: dict[str, Expand] = {"argmax": _argmax, "sample": _sample, "random": _random}
