"""Solving and making grids, against brute force."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from cadre_tasks.games.sudoku import Sudoku
from cadre_tasks.games.sudoku_grid import generate, solutions, valid


def brute_force(rows: list[str]) -> int:
    """Count the ways to fill the rows by permutations that solve the grid."""
    orders = ["".join(order) for order in itertools.permutations("1234")]
    fitting = [[o for o in orders if all(m in (".", x) for m, x in zip(row, o, strict=True))] for row in rows]
    return sum(valid(choice) for choice in itertools.product(*fitting))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9_999))
def test_generated_puzzles_have_one_solution_by_brute_force(index: int) -> None:
    rows = Sudoku.tasks("test")[index].data["grid"]
    assert brute_force(rows) == 1
    (solution,) = solutions(rows)
    assert valid(solution)
    assert "".join(rows).count(".") == 10


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("1234...", min_size=4, max_size=4), min_size=4, max_size=4))
def test_the_solver_counts_as_brute_force_does(rows: list[str]) -> None:
    assert len(solutions(rows, limit=300)) == brute_force(rows)


def test_few_clues_are_never_ambiguous() -> None:
    rows = generate(9, 20, lambda *solution: True, "few")
    assert len(solutions(rows)) == 1
    assert 20 <= 81 - "".join(rows).count(".") < 32
