"""Sudoku, 4x4 or 9x9: fill the grid so that every row, column and box holds every digit once, keeping the clues.

The role `tool` writes a program that prints a grid, the role `planner` decides on the grid (`cadre.envs.tool_planner`).
An answer is the whole grid, `.` for a cell left empty, and becomes the state; one that contradicts a clue is refused.
Every puzzle has one solution, which is proven when it is made and again when it is played.

The shaping is a true potential difference (gamma 1): the cells that are right less those that are wrong, as a share of
the cells to fill. What is written and taken back pays nothing and costs a hundredth a cell.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre import noise
from cadre.env import GeneratedTasks, Split
from cadre.envs.tool_planner import SPLIT_SIZES, Alone, Outcome, Prompts, Rewards, Solo, Tool, ToolPlanner, in_split
from cadre.errors import ConfigError
from cadre.types import Task

CLUES = {4: 6, 9: 36}  # what is left of a solution, by size

Rows = tuple[str, ...]

# What every program finds defined; it reads the puzzle from standard input.
PRELUDE = """\
import sys
grid = [[0 if x == "." else int(x) for x in row] for row in sys.stdin.read().split()]
size = len(grid)
side = int(size ** 0.5)
digits = range(1, size + 1)
empty = [(r, c) for r in range(size) for c in range(size) if not grid[r][c]]
def fits(r, c, v):
    a, b = r - r % side, c - c % side
    box = [x for row in grid[a:a + side] for x in row[b:b + side]]
    return v not in grid[r] and v not in [row[c] for row in grid] and v not in box
"""


@dataclass(frozen=True)
class Shape:
    """What a size fixes: the row, column and box of each cell, numbered in one list of units, and all digits' bits."""

    size: int
    units: tuple[tuple[int, int, int], ...]
    every: int


@functools.cache
def shape_of(size: int) -> Shape:
    side = round(size**0.5)
    places = [divmod(cell, size) for cell in range(size * size)]
    units = tuple((r, size + c, 2 * size + r // side * side + c // side) for r, c in places)
    return Shape(size, units, (1 << size) - 1)


class Board:
    """A grid being filled: digits as bits (0 empty), and what each unit has used. Owned by one search."""

    def __init__(self, size: int) -> None:
        self.shape = shape_of(size)
        self.cells = [0] * (size * size)
        self.used = [0] * (3 * size)

    def flip(self, cell: int, bit: int) -> None:
        """Write a digit into an empty cell, or take it out again."""
        self.cells[cell] ^= bit
        for unit in self.shape.units[cell]:
            self.used[unit] ^= bit

    def candidates(self, cell: int) -> int:
        """The bits of the digits that the units of an empty cell still allow."""
        row, column, box = self.shape.units[cell]
        used = self.used
        return self.shape.every & ~(used[row] | used[column] | used[box])

    def fills(self, generator: random.Random | None = None) -> Iterator[Rows]:
        """Every way to fill the empty cells, the cell with the fewest candidates first; the board holds it meanwhile.

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
        """(cell, candidates) of an empty cell with the fewest, (-1, 0) where no cell is empty."""
        best, fewest, options = -1, self.shape.size + 1, 0
        for cell, bit in enumerate(self.cells):
            if not bit:
                allowed = self.candidates(cell)
                count = allowed.bit_count()
                if count < fewest:
                    best, fewest, options = cell, count, allowed
                    if count < 2:
                        break
        return best, options

    def holding(self, cell: int, bit: int) -> Board:
        """A copy with one more digit written."""
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
    """The board of a grid, None where two of its digits are in each other's way."""
    board = Board(len(rows))
    for cell, mark in enumerate("".join(rows)):
        if mark != ".":
            bit = 1 << (int(mark) - 1)
            if not board.candidates(cell) & bit:
                return None
            board.flip(cell, bit)
    return board


def solutions(rows: Sequence[str], limit: int = 2) -> list[Rows]:
    """The solutions of a grid, at most `limit` of them: two are enough to know that it is ambiguous."""
    board = board_of(rows)
    return list(itertools.islice(board.fills(), limit)) if board else []


def valid(rows: Sequence[str]) -> bool:
    """Whether the grid is full and no unit holds a digit twice."""
    return "." not in "".join(rows) and board_of(rows) is not None


def generate(size: int, clues: int, admits: Callable[..., bool], *seed: str | int) -> Rows:
    """A puzzle with one solution, the same for the same seed, whose solution `admits` (a split) lets in.

    Clues are taken from a random solution as long as it stays the only one, until `clues` are left or no more can go.
    """
    generator = noise.generator("sudoku", size, clues, *seed)
    while True:
        solution = next(Board(size).fills(generator))
        if admits(*solution):
            return dig(solution, clues, generator)


def dig(solution: Rows, clues: int, generator: random.Random) -> Rows:
    """What is left of a solution when every clue that can go has gone, `clues` at the least."""
    board = board_of(solution)
    assert board is not None
    cells = list(range(len(board.cells)))
    generator.shuffle(cells)
    left = len(cells)
    for cell in cells:
        if left == clues:
            break
        bit = board.cells[cell]
        board.flip(cell, bit)
        others = _bits(board.candidates(cell) & ~bit, None)
        if any(next(board.holding(cell, other).fills(), None) for other in others):
            board.flip(cell, bit)
        else:
            left -= 1
    return board.rows()


class Sudoku(ToolPlanner):
    """The team form. Settings: `turns` the team gets, `size` of the grid, `clues` that a puzzle keeps at the least (6
    of 16, 36 of 81 where not given), `prompts` wording, `reward` shaped or
    by outcome."""

    prelude: ClassVar[str] = PRELUDE
    titles: ClassVar[tuple[str, str]] = ("sudoku program", "sudoku grid")
    verdicts: ClassVar[tuple[str, str]] = ("solved", "wrong")

    def __init__(
        self,
        task: Task,
        turns: Annotated[int, Field(ge=1)] = 4,
        size: Literal[4, 9] = 4,
        clues: Annotated[int, Field(ge=4, le=80)] | None = None,
        prompts: Prompts = "full",
        reward: Rewards = "shaped",
    ) -> None:
        self.puzzle: Rows = tuple(task.data["grid"])
        found = solutions(self.puzzle)
        if len(found) != 1:
            raise ValueError(f"task {task.id}: expected a puzzle with one solution; got {len(found) or 'none'}.")
        (self.solution,) = found
        super().__init__(task, self.puzzle, turns, prompts, reward)
        self.blanks = "".join(self.puzzle).count(".")

    @classmethod
    def tasks(cls, split: Split, size: int = 4, clues: int | None = None, **settings: Any) -> Sequence[Task]:
        """Puzzles keyed by split and index. The solution decides the split: 4x4 has 288 of them, few enough to learn
        by heart. Raises ConfigError where the grid has no room for the clues."""
        kept = CLUES[size] if clues is None else clues
        if kept >= size * size:
            raise ConfigError(
                f"settings.clues: got {kept} in {size}x{size}; expected fewer than {size * size}. Leave some to fill."
            )

        def make(index: int) -> dict[str, Any]:
            return {"grid": list(generate(size, kept, lambda *solution: in_split(split, *solution), split, index))}

        return GeneratedTasks(SPLIT_SIZES[split], make, f"{split}-{size}-{kept}")

    @property
    def success(self) -> bool:
        return valid(self.state) and self.keeps_clues(self.state)

    def keeps_clues(self, rows: Sequence[str]) -> bool:
        return all(clue in (".", mark) for clue, mark in zip("".join(self.puzzle), "".join(rows), strict=True))

    def worth(self, rows: Sequence[str]) -> float:
        """The potential: cells that are right less those that are wrong, as a share of the cells to fill."""
        marks = zip("".join(self.puzzle), "".join(self.solution), "".join(rows), strict=True)
        return sum(1 if mark == right else -1 for clue, right, mark in marks if clue == "." != mark) / self.blanks

    def draw(self) -> str:
        return "\n".join(self.state)

    def stdin(self) -> str:
        """The puzzle without what was filled in, which may be wrong and is not binding."""
        return "\n".join(self.puzzle)

    def parse(self, text: str) -> str | None:
        """The rows of an answer, apart by spaces: after a last "Grid:", rows of digits and dots, numbered or not.

        Strict on purpose: an answer with other words in it is not guessed at.
        """
        size = len(self.puzzle)
        rows = re.split(r"grid\s*:", text, flags=re.IGNORECASE)[-1].split()
        if len(rows) != size:
            return None
        found = [row.removeprefix(f"{number}:") for number, row in enumerate(rows, 1)]
        allowed = set(".123456789"[: size + 1])
        return " ".join(found) if all(len(row) == size and set(row) <= allowed for row in found) else None

    def outcome(self, answer: str) -> Outcome:
        """-0.01 a cell written, the potential won (negative if lost), +1 for the solved grid; -0.2 and nothing else for
        a grid that contradicts a clue or leaves one out."""
        rows = tuple(answer.split())
        if not self.keeps_clues(rows):
            return Outcome(self.state, False, 0, {"clues": -0.2, "written": 0.0, "cells": 0.0, "solved": 0.0})
        written = sum(old != new for old, new in zip("".join(self.state), "".join(rows), strict=True))
        parts = {
            "clues": 0.0,
            "written": -0.01 * written,
            "cells": self.worth(rows) - self.worth(self.state),
            "solved": float(valid(rows)),
        }
        return Outcome(rows, valid(rows), written, parts)

    def show(self, answer: str) -> str:
        """ "1:3412 2:1234" and so on: the compact wording counts its rows."""
        return " ".join(f"{number}:{row}" for number, row in enumerate(answer.split(), 1))

    def rules(self) -> str:
        size, side = len(self.puzzle), round(len(self.puzzle) ** 0.5)
        return (
            f"Sudoku, {size}x{size}. Every row, every column and every {side}x{side} box must hold each of the digits "
            f"1 to {size} once. A dot is an empty cell. The digits of the puzzle must stay as they are:\n\n"
            + "\n".join(self.puzzle)
            + f"\n\nThe grid so far, in which what was filled in may be changed:\n\n{self.draw()}\n\n"
        )

    def ask_program(self) -> str:
        return (
            "Write a Python program that solves the puzzle and prints the full grid, one row of digits a line, "
            "nothing between the digits. These names are defined before your program: `grid` is the puzzle as a list "
            "of lists of int with 0 for empty, `size` its number of rows, `side` that of a box, `empty` the list of "
            "(row, column) of its empty cells, `digits` the digits, and `fits(r, c, v)` says whether v is not yet in "
            "row, column and box of `grid`. Answer with one ```python block. A team mate reads its output and decides "
            "on the grid."
        )

    def ask_answer(self) -> str:
        return (
            "Decide on the whole grid. End your answer with `Grid:` and then one row a line, nothing between the "
            "digits and a dot for a cell to leave empty."
        )

    def describe(self, answer: str) -> str:
        outcome = self.outcome(answer)
        printed = "It printed\n" + "\n".join(answer.split())
        if outcome.parts["clues"]:
            return f"{printed}\nThis grid contradicts a digit of the puzzle and would be refused."
        return f"{printed}\nThis grid {'is a solution' if outcome.solved else 'is no solution'}."


class SudokuAlone(Alone, Sudoku):
    """A single planner without the tool."""


class SudokuTool(Tool, Sudoku):
    """A single tool whose programs' answers are executed."""


class SudokuSolo(Solo, Sudoku):
    """A single agent that has the tool."""
