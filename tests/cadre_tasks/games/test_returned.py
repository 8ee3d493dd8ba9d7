"""Return values of programs' functions, read as moves, paths and grids: every form with one meaning, no other."""

import pytest

from cadre_tasks.games.returned import UnreadableError, read_grid, read_moves, read_path, show_value

START = (3, 4)


@pytest.mark.parametrize(
    ("value", "moves"),
    [
        ("RRD", "RRD"),
        ("rrd", "RRD"),
        ("R, R, D", "RRD"),
        ("R R\nD", "RRD"),
        ("right", "R"),
        ("up down LEFT Right", "UDLR"),
        (["R", "r", "D"], "RRD"),
        (["Right", "down"], "RD"),
    ],
)
def test_moves_are_read(value: object, moves: str) -> None:
    assert read_moves(value) == moves
    assert read_path(value, START) == moves


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "there are no moves in it."),
        ([], "there are no moves in it."),
        ("RRX", "'X' in it is not a move."),
        ("no path", "'no' in it is not a move."),
        ("R;D", "';' in it is not a move."),
        ("1R 2D", "'1' in it is not a move."),
        (["R", 3], "3 in it is not a move."),
        (["RD"], "'RD' in it is not a move."),
        ([["R"]], "['R'] in it is not a move."),
        (None, "this is nothing."),
        (True, "this is a bool."),
        (7, "this is a number."),
    ],
)
def test_anything_else_is_no_moves(value: object, reason: str) -> None:
    with pytest.raises(UnreadableError) as raised:
        read_moves(value)
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    ("value", "moves"),
    [
        ([[3, 4], [3, 5], [4, 5]], "RD"),
        ([[3, 5], [4, 5]], "RD"),  # without start
        ([[2, 4]], "U"),
        ([[3, 4], [3, 3], [3, 4]], "LR"),
        ([[3, 4], [-1 + 3, 4]], "U"),
    ],
)
def test_a_path_of_cells_becomes_moves(value: list[list[int]], moves: str) -> None:
    assert read_path(value, START) == moves


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "the list is empty."),
        ([[3, 4]], "the path has no cell but start."),
        ([[5, 5], [4, 5], [3, 5]], "the path begins at (5, 5), which is neither start (3, 4) nor beside it."),
        ([[3, 4], [4, 5]], "(3, 4) and (4, 5) follow each other in it and are not side by side."),
        ([[3, 4], [3, 4], [3, 5]], "(3, 4) and (3, 4) follow each other in it and are not side by side."),
        ([[3, 4], [3, 5.0]], "[3, 5.0] in it is not a cell (row, column)."),
        ([[True, 4]], "[True, 4] in it is not a cell (row, column)."),
        ([[3, 4], "R"], "'R' in it is not a cell (row, column)."),
        ([[3, 4, 0]], "[3, 4, 0] in it is not a cell (row, column)."),
        ([[[3, 4], [3, 5]], 1], "[[3, 4], [3, 5]] in it is not a cell (row, column)."),
        (None, "this is nothing."),
        (-1, "this is a number."),
        ({"path": 1}, "this is an object."),
    ],
)
def test_any_other_path_is_unreadable(value: object, reason: str) -> None:
    with pytest.raises(UnreadableError) as raised:
        read_path(value, START)
    assert str(raised.value) == reason


ROWS = "1234 34.2 2143 4321"


@pytest.mark.parametrize(
    "value",
    [
        [[1, 2, 3, 4], [3, 4, 0, 2], [2, 1, 4, 3], [4, 3, 2, 1]],
        [["1", "2", "3", "4"], ["3", "4", "0", "2"], ["2", "1", "4", "3"], ["4", "3", "2", "1"]],
        ["1234", "34.2", "2143", "4321"],
        "1234\n3402\n2143\n4321",
        "1234 34.2 2143 4321\n",
    ],
)
def test_a_grid_is_read(value: object) -> None:
    assert read_grid(value, 4) == ROWS


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        [],
        [[1, 2, 3, 4]],
        [1, 2, 3, 4],
        [[1, 2, 3, 5]] * 4,
        [[1, 2, 3, True]] * 4,
        [[1, 2, 3, None]] * 4,
        [[1, 2, 3, 4.0]] * 4,
        [["12", "", "3", "4"]] * 4,
        ["123"] * 4,
        ["12 4"] * 4,
        "1234",
        [[1, 2, 3, -4]] * 4,
    ],
)
def test_any_other_grid_is_unreadable(value: object) -> None:
    with pytest.raises(UnreadableError):
        read_grid(value, 4)


def test_a_long_value_is_cut_short() -> None:
    assert show_value("R" * 1000) == "'" + "R" * 199 + "..."
