"""The shapes by name; each takes the siblings `k` and, by keyword, the options that mean something to it."""

from __future__ import annotations

from collections.abc import Callable

from cadre.rollout.branching import branch
from cadre.rollout.tree_shape import Shape, full, greedy, independent

SHAPES: dict[str, Callable[..., Shape]] = {
    "independent": independent,
    "greedy": greedy,
    "full": full,
    "branch": branch,
}
