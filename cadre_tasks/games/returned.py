"""Reads what a function of a model's program returned: moves, cells of a path, or rows of a grid.

A value arrives as plain data (`cadre_sandbox.Called`): None, numbers, texts and lists of these. It is read in every
form that has one meaning. Anything else is an `UnreadableError`, whose text is the end of "It returned VALUE: ...".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from cadre_tasks.answers import MOVES, Cell

WORDS = {"up": "U", "down": "D", "left": "L", "right": "R"}
BY_STEP = {step: move for move, step in MOVES.items()}
SHOWN = 200  # characters of a value


class UnreadableError(ValueError):
    """A value with no meaning, or more than one, as an answer."""


def show_value(value: Any) -> str:
    """Return a plain value as Python writes it, cut short."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def read_moves(value: Any) -> str:
    """Return the letters of moves: of "RRD", "R, R, D", ["R", "R"], ["right", "Right"], in any case. Raises
    UnreadableError."""
    if isinstance(value, str):
        words: Sequence[Any] = re.findall(r"[A-Za-z]+|[^\sA-Za-z,]", value)
        if len(words) == 1 and words[0].lower() not in WORDS:
            words = list(words[0])
    elif isinstance(value, list):
        words = value
    else:
        raise UnreadableError(f"this is {described(value)}.")
    if not words:
        raise UnreadableError("there are no moves in it.")
    letters = [WORDS.get(word.lower(), word.upper()) if isinstance(word, str) else "" for word in words]
    for word, letter in zip(words, letters, strict=True):
        if letter not in MOVES:
            raise UnreadableError(f"{show_value(word)} in it is not a move.")
    return "".join(letters)


def read_path(value: Any, start: Cell) -> str:
    """Return the letters of the moves along a path: a list of its cells from `start` on, which may be left out, or the
    moves themselves as `read_moves` reads them. Raises UnreadableError."""
    if not isinstance(value, list) or (value and all(isinstance(item, str) for item in value)):
        return read_moves(value)
    cells = [read_cell(item) for item in value]
    if not cells:
        raise UnreadableError("the list is empty.")
    if cells[0] != start:
        if not is_beside(start, cells[0]):
            raise UnreadableError(f"the path begins at {cells[0]}, which is neither start {start} nor beside it.")
        cells = [start, *cells]
    for cell, target in itertools.pairwise(cells):
        if not is_beside(cell, target):
            raise UnreadableError(f"{cell} and {target} follow each other in it and are not side by side.")
    if len(cells) == 1:
        raise UnreadableError("the path has no cell but start.")
    return "".join(BY_STEP[(b[0] - a[0], b[1] - a[1])] for a, b in itertools.pairwise(cells))


def read_cell(value: Any) -> Cell:
    """Return a (row, column). Raises UnreadableError."""
    # Not isinstance: True is an int.
    if isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value):
        return (value[0], value[1])
    raise UnreadableError(f"{show_value(value)} in it is not a cell (row, column).")


def is_beside(a: Cell, b: Cell) -> bool:
    return abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1


def read_grid(value: Any, size: int) -> str:
    """Return the rows of a grid, separated by spaces, a dot for an empty cell: of a list of rows, each a list of
    numbers or digits or a text, or of one text with a row a line. Raises UnreadableError."""
    rows = value.split() if isinstance(value, str) else value
    if not isinstance(rows, list):
        raise UnreadableError(f"this is {described(value)}.")
    if len(rows) != size:
        raise UnreadableError(f"it has {len(rows)} rows; expected {size}.")
    return " ".join(read_row(row, size) for row in rows)


def read_row(row: Any, size: int) -> str:
    """Return a row of a grid as digits and dots. Raises UnreadableError."""
    if not isinstance(row, str | list) or len(row) != size:
        raise UnreadableError(f"the row {show_value(row)} has not {size} digits.")
    marks = ["." if str(cell) == "0" else str(cell) for cell in row if type(cell) in (int, str)]
    if len(marks) != size or not set(marks) <= set(".123456789"[: size + 1]):
        raise UnreadableError(f"the row {show_value(row)} has more in it than the digits 1 to {size} and 0 for empty.")
    return "".join(marks)


def described(value: Any) -> str:
    """Return the type of a plain value in words."""
    if value is None:
        return "nothing"
    return {bool: "a bool", int: "a number", float: "a number", str: "a text", list: "a list"}.get(
        type(value), "an object"
    )
