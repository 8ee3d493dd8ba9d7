"""Contents of an answer: moves in their forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadre_tasks.answers import numbered, parse_moves


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("RRD", "RRD"),
        ("1R 2R 3D", "RRD"),
        ("R, R, D\n", "RRD"),
        ("I go right.\nMoves: R R D", "RRD"),
        ("moves: U\nno, wait. Moves: RRD", "RRD"),
        ("I see.\n`Moves: RRD`", "RRD"),
        ("**Moves:** RRD", "RRD"),
        ("**Moves**: `RRD`", "RRD"),
        ("**Moves: RRD**", "RRD"),
        ("", None),
        ("right", None),
        ("Moves: RRD.", "RRD"),
        ("**Moves: RRD.**", "RRD"),
        ("Moves: `RRD`.", "RRD"),
        ("Moves: R, R, D.\n", "RRD"),
        ("Moves: [R, R, D]", "RRD"),
        ('Moves: ["R", "R", "D"].', "RRD"),
        ('Moves: "RRD"', "RRD"),
        ("Moves: (RRD)!", "RRD"),
        ("Moves: RRD. These moves would reach the goal.", None),
        ("Moves: R.R.D", None),
        ("Moves: .", None),
        ("Moves:", None),
    ],
)
def test_answers(text: str, moves: str | None) -> None:
    assert parse_moves(text) == moves


@given(st.text("UDLR", min_size=1, max_size=40))
def test_numbering_is_read_back(moves: str) -> None:
    assert parse_moves(numbered(moves)) == moves
