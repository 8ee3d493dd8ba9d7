"""Sudoku grids: solving them, proving that a solution is the only one, and making puzzles. Digits are bits."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cadre import random_keys

Rows = tuple[str, ...]


@dataclass(frozen=True)
class Shape:
    """The constants of a grid size: the row, column and box of each cell, numbered in one list of units, and the bits
    of all digits."""

    size: int
    units: tuple[tuple[int, int, int], ...]
    all_digits: int


@functools.cache
def shape_of(size: int) -> Shape:
    side = round(size**0.5)
    positions = [divmod(cell, size) for cell in range(size * size)]
    # Units 0 to size - 1 are the rows, then come the columns, then the boxes from left to right and top to bottom.
    units = tuple((r, size + c, 2 * size + r // side * side + c // side) for r, c in positions)
    return Shape(size, units, (1 << size) - 1)


class Board:
    """A grid that is being filled: digits as bits (0 empty), and the digits that each unit has used. Owned by one
    search."""

    def __init__(self, size: int) -> None:
        self.shape = shape_of(size)
        self.cells = [0] * (size * size)
        self.used = [0] * (3 * size)

    def flip(self, cell: int, bit: int) -> None:
        """Write a digit into an empty cell, or take it out again."""
        self.cells[cell] ^= bit
        # XOR, so that the same call writes a digit and takes it out again.
        for unit in self.shape.units[cell]:
            self.used[unit] ^= bit

    def candidates(self, cell: int) -> int:
        """Return the bits of the digits that the units of an empty cell still allow."""
        row, column, box = self.shape.units[cell]
        used = self.used
        return self.shape.all_digits & ~(used[row] | used[column] | used[box])

    def fills(self, generator: random.Random | None = None) -> Iterator[Rows]:
        """Yield every way to fill the empty cells, the cell with the fewest candidates first; the board holds the
        yielded one meanwhile.

        `generator` shuffles the order in which digits are tried.
        """
        cell, options = self.tightest()
        if cell < 0:
            yield self.rows()
            return
        for bit in _bits(options, generator):
            self.flip(cell, bit)
            yield from self.fills(generator)
            self.flip(cell, bit)

    def tightest(self) -> tuple[int, int]:
        """Return (cell, candidates) of an empty cell with the fewest candidates, (-1, 0) if no cell is empty."""
        best, fewest, options = -1, self.shape.size + 1, 0
        for cell, bit in enumerate(self.cells):
            if not bit:
                allowed = self.candidates(cell)
                count = allowed.bit_count()
                if count < fewest:
                    best, fewest, options = cell, count, allowed
                    # Good enough: without a candidate the search backtracks at once, and a single one is forced.
                    if count < 2:
                        break
        return best, options

    def with_digit(self, cell: int, bit: int) -> Board:
        """Return a copy with one more digit written."""
        copy = Board(self.shape.size)
        copy.cells, copy.used = self.cells[:], self.used[:]
        copy.flip(cell, bit)
        return copy

    def rows(self) -> Rows:
        size = self.shape.size
        marks = [str(bit.bit_length()) if bit else "." for bit in self.cells]
        return tuple("".join(marks[start : start + size]) for start in range(0, size * size, size))


def _bits(options: int, generator: random.Random | None) -> list[int]:
    bits = [1 << shift for shift in range(options.bit_length()) if options >> shift & 1]
    if generator:
        generator.shuffle(bits)
    return bits


def board_of(rows: Sequence[str]) -> Board | None:
    """Return the board of a grid, or None if two of its digits contradict each other."""
    board = Board(len(rows))
    for cell, mark in enumerate("".join(rows)):
        if mark != ".":
            bit = 1 << (int(mark) - 1)
            if not board.candidates(cell) & bit:
                return None
            board.flip(cell, bit)
    return board


def solutions(rows: Sequence[str], limit: int = 2) -> list[Rows]:
    """Return the solutions of a grid, at most `limit` of them: two are enough to know that it is ambiguous."""
    board = board_of(rows)
    return list(itertools.islice(board.fills(), limit)) if board else []


def valid(rows: Sequence[str]) -> bool:
    """Return True if the grid is full and no unit holds a digit twice."""
    return "." not in "".join(rows) and board_of(rows) is not None


def generate(size: int, clues: int, admits: Callable[..., bool], *seed: str | int) -> Rows:
    """Return a puzzle with one solution, the same for the same seed, whose solution `admits` (a split) accepts. Clues
    are taken from a random solution as long as it stays the only one, until `clues` are left or no more can go."""
    generator = random_keys.generator("sudoku", size, clues, *seed)
    while True:
        solution = next(Board(size).fills(generator))
        if admits(*solution):
            return remove_clues(solution, clues, generator)


def remove_clues(solution: Rows, clues: int, generator: random.Random) -> Rows:
    """Return the solution with clues removed, in random order, as long as it stays the only one; at least
    `clues` stay."""
    board = board_of(solution)
    assert board is not None
    cells = list(range(len(board.cells)))
    generator.shuffle(cells)
    clues_left = len(cells)
    for cell in cells:
        if clues_left == clues:
            break
        bit = board.cells[cell]
        board.flip(cell, bit)
        alternatives = _bits(board.candidates(cell) & ~bit, None)
        # The puzzle stays unique if no other digit in this cell leads to a solution.
        if any(next(board.with_digit(cell, alternative).fills(), None) for alternative in alternatives):
            board.flip(cell, bit)
        else:
            clues_left -= 1
    return board.rows()
