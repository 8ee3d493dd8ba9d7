"""The tree shapes: how many completions a role samples, which joint actions are tried, which branches continue.

`SHAPES` is the table of names. Each function takes the completions a decision `k` and, by keyword, the options that
mean something to it; a file of the user's makes a `Shape` in the same way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean

from cadre.declare import declared
from cadre.errors import ConfigError
from cadre.rollout.branching import Priority, branching_grower, entropy
from cadre.rollout.grow import Joint as Joint
from cadre.rollout.grow import Select as Select
from cadre.rollout.grow import Shape as Shape
from cadre.statistics import is_constant, is_rounding

# Completions a decision: one number, one a turn (the last repeats), or either by role.
PerTurn = int | tuple[int, ...]
Siblings = PerTurn | Mapping[str, PerTurn]


def every_decision(k: Siblings) -> Callable[[str, int, int], int]:
    """Return a shape's `count` that samples at every decision: `k` for all, by turn (the last repeats), or by role."""

    def count(role: str, turn: int, depth: int) -> int:
        numbers = k[role] if isinstance(k, Mapping) else k
        return numbers if isinstance(numbers, int) else numbers[min(turn, len(numbers) - 1)]

    return count


def independent(k: Siblings) -> Shape:
    """Return the shape of `k` whole episodes side by side: they part at the first decision and never branch again."""
    if not isinstance(k, int):
        raise ConfigError(
            f"algorithm.k: got {k} with shape independent, where whole episodes are played side by side; expected one "
            "number. Set it, or a shape that samples siblings at every decision."
        )
    return Shape(
        f"independent({k})",
        lambda role, turn, depth: k if depth == 0 else 1,
        _all,
        selects="all",
        tree_weight="by_sample",
    )


def greedy(k: Siblings, select: Select | None = None, lookahead: int = 0) -> Shape:
    """Return the shape that tries `k` completions at every decision and continues one (AT-GRPO, arXiv 2510.11062).

    `select` chooses it, by default the best; one that continues several declares so (`cadre.declare`). With `lookahead`
    what follows is tried too where a decision itself rewards nobody (`grow.select`).
    """
    select = select or _argmax
    return Shape(
        f"greedy({k})",
        every_decision(k),
        select,
        lookahead=lookahead,
        selects=declared(select, "selects"),
        tree_weight="by_decision",
    )


def full(k: Siblings, joint: Joint = "aligned", stop_at: float | None = None) -> Shape:
    """Return the shape that continues every joint action (MAGRPO, arXiv 2508.04652, section 4).

    There are k^T leaves aligned and k^(nT) crossed, for T decisions of n roles. Below a node whose
    branches' mean score passes `stop_at` the tree grows no further.
    """

    def select(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
        if stop_at is None:
            return range(len(scores))
        mean = fmean(scores)
        passes = mean > stop_at and not is_rounding(mean - stop_at, max(abs(mean), abs(stop_at)))
        return () if passes else range(len(scores))

    return Shape(f"full({k}, {joint})", every_decision(k), select, joint, selects="all" if stop_at is None else None)


def branch(
    k: Siblings,
    where: Priority | None = None,
    decisions: int = 1,
    siblings: int = 1,
    rounds: int = 1,
    budget: int = 0,
) -> Shape:
    """Return the shape of `k` whole episodes that branch afterwards (`branching.branching_grower` has the options).

    They do so at random (Tree-GRPO, arXiv 2509.21240), or where entropy is high (ARPO, 2507.19849), under a budget of
    tokens. The first decision, which has `k` completions already, is never chosen.
    """
    if not isinstance(k, int):
        raise ConfigError(
            f"algorithm.k: got {k} with shape branch, which begins with whole episodes side by side; expected one "
            "number. Set it, and algorithm.siblings for how many more a chosen decision gets."
        )
    grower = branching_grower(where or entropy, decisions, siblings, rounds, budget)
    return Shape(f"branch({k})", lambda role, turn, depth: k if depth == 0 else 1, _all, grower=grower, selects="all")


SHAPES: dict[str, Callable[..., Shape]] = {
    "independent": independent,
    "greedy": greedy,
    "full": full,
    "branch": branch,
}


def _all(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    return range(len(scores))


def _argmax(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    """Return the best branch. Ties go to a random one of them: the first would favour no skill, only an index."""
    best = max(scores)
    ties = [n for n, score in enumerate(scores) if is_rounding(best - score, max(abs(best), abs(score)))]
    return [generator.choice(ties)]


def _sample(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    """Return a branch drawn in proportion to its score above the worst, uniformly if all are equal."""
    worst = min(scores)
    weights = None if is_constant(scores) else [score - worst for score in scores]
    return generator.choices(range(len(scores)), weights)


def _random(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    return [generator.randrange(len(scores))]


def success_label(shape: Shape, roles: Collection[str]) -> str:
    """Return "best-of-8" where every decision selects the best of 8 branches: the success of a training step is then
    that of the selected path, and higher than the policy's. Return "success" for other shapes, and for one branch."""
    if shape.select is not _argmax:
        return "success"
    # A list of numbers a turn is rarely longer; a range says that turns or roles differ.
    counts = {shape.count(role, turn, turn) for role in roles for turn in range(8)}
    fewest, largest = min(counts, default=1), max(counts, default=1)
    if largest == 1:
        return "success"
    return f"best-of-{largest}" if fewest == largest else f"best-of-{fewest}-to-{largest}"


# The rules by which a greedy shape selects the branch to continue: the setting `algorithm.select`.
SELECTIONS: dict[str, Select] = {"argmax": _argmax, "sample": _sample, "random": _random}


def count_leaves(shape: Shape, acting: Sequence[Sequence[str]], unrewarded: Collection[int] = ()) -> int:
    """Return the widest that a tree can grow, given the roles that act at each decision of an episode.

    A shape that does not declare how many branches it continues counts as one that continues all. `unrewarded` are the
    numbers of the decisions that reward nobody, so that the shape looks ahead.
    """
    widest, selected, width, fans = 1, 1, 1, 0
    turns: Counter[str] = Counter()
    for depth, roles in enumerate(acting):
        branches = len(shape.joint_actions({role: shape.count(role, turns[role], depth) for role in roles}))
        widest = max(widest, width * branches)
        selected *= min(shape.selects, branches) if isinstance(shape.selects, int) else branches
        if not shape.lookahead or depth not in unrewarded:
            width, fans = selected, 0
        elif fans < shape.lookahead:
            width, fans = width * branches, fans + 1
        turns.update(roles)
    return widest
