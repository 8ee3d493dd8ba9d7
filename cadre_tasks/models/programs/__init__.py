"""The programs in the seed model's training text: many kinds of wrong ones, and few that are right.

`sample_program` draws one for a game. In every game the right program is 6% of the draws by `KINDS`, and the likeliest
one is short and rarely right. `PARTS` has no right program at all: its parts occur only in programs with three
mistakes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from cadre_tasks.models.programs import plan_path, sokoban, sudoku
from cadre_tasks.models.programs.mixture import Kind, Mixture, sample, with_several

KINDS: Mixture = {"plan-path": plan_path.KINDS, "sokoban": sokoban.KINDS, "sudoku": sudoku.KINDS}


# How many of the mistakes a program of `PARTS` has.
MISTAKES = 3


def in_parts(kinds: dict[str, Kind], right: str, mistakes: Sequence[tuple[str, str]]) -> dict[str, Kind]:
    """Return the kinds without the right program and those with one mistake; in their place those with three."""
    remaining = {name: kind for name, kind in kinds.items() if not name.startswith("search")}
    weight = 100 - sum(kind.weight for kind in remaining.values())
    return remaining | {"search with three mistakes": Kind(weight, with_several(right, mistakes, MISTAKES))}


PARTS: Mixture = {
    "plan-path": in_parts(
        plan_path.KINDS,
        plan_path.SEARCH,
        [mistake for mistake in plan_path.SEARCH_MISTAKES if mistake not in plan_path.HARMLESS],
    ),
    "sokoban": in_parts(sokoban.KINDS, sokoban.SEARCH, sokoban.SEARCH_MISTAKES),
    "sudoku": in_parts(sudoku.KINDS, sudoku.SEARCH, sudoku.SEARCH_MISTAKES),
}


def sample_program(game: str, generator: random.Random, mixture: Mixture = KINDS) -> tuple[str, str]:
    """Return (kind, program text) for a game, drawn by the mixture's weights."""
    return sample(mixture[game], generator)
