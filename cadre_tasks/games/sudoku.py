"""Sudoku, 4x4 or 9x9: fill the grid so that every row, column and box holds every digit once, keeping the clues.

The role `tool` writes a program that prints a grid, the role `planner` decides on the grid
(`cadre_tasks.games.tool_planner`). An answer is the whole grid, `.` for a cell left empty, and becomes the state; one
that contradicts a clue is refused. Every puzzle has one solution, which is proven when it is made and again when it is
played.

The shaping is a true potential difference (gamma 1): the cells that are right less those that are wrong, as a share of
the cells to fill. What is written and taken back pays nothing and costs a hundredth a cell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre.env import GeneratedTasks, Split
from cadre.envs.drawings import grid
from cadre.envs.splits import SPLIT_SIZES, in_split
from cadre.errors import ConfigError
from cadre.types import Drawing, Task
from cadre_tasks.answers import behind
from cadre_tasks.games.returned import read_grid
from cadre_tasks.games.sudoku_grid import Rows, generate, solutions, valid
from cadre_tasks.games.tool_planner import (
    Function,
    FunctionRequest,
    Outcome,
    PlannerNoTool,
    PlannerSingleAgent,
    Prompts,
    Tool,
    ToolPlanner,
    Turns,
)
from cadre_tasks.turn_based import Rewards

CLUES = {4: 6, 9: 36}  # clues left of a solution, by size
# "grid = " and a list of lists of digits.
LIST = re.compile(r"\bgrid\s*[=:]\s*(\[\s*(?:\[[\s\d,]*\]\s*(?:,\s*)?)+\])", re.IGNORECASE)

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
# The rules of the game, as a function that the model's function is given.
RULES = (
    PRELUDE
    + """\
def is_allowed(grid, row, column, digit):
    top, left = row - row % side, column - column % side
    box = [x for line in grid[top:top + side] for x in line[left:left + side]]
    return digit not in grid[row] and digit not in [line[column] for line in grid] and digit not in box
arguments = (grid, is_allowed)
"""
)


class Sudoku(ToolPlanner):
    """The team form. Settings: `turns` the team gets, `prompts` wording, `reward` shaped or by outcome, and of its
    puzzles the `size` and the `clues` that they keep at the least (6 of 16, 36 of 81 where not given)."""

    one_agent: ClassVar[str] = "sudoku-single-agent"

    prelude: ClassVar[str] = PRELUDE
    titles: ClassVar[tuple[str, str]] = ("sudoku program", "sudoku grid")
    verdicts: ClassVar[tuple[str, str]] = ("solved", "wrong")
    answers: ClassVar[str] = "grid"

    def __init__(
        self, task: Task, turns: Turns = 4, prompts: Prompts = "full", reward: Rewards = "shaped", **grid: Any
    ) -> None:
        self.puzzle: Rows = tuple(task.data["grid"])
        solutions_found = solutions(self.puzzle)
        # Proven again, since the reward compares answers with this one solution.
        if len(solutions_found) != 1:
            raise ValueError(
                f"task {task.id}: expected a puzzle with one solution; got {len(solutions_found) or 'none'}."
            )
        (self.solution,) = solutions_found
        super().__init__(task, self.puzzle, turns, prompts, reward)
        self.blanks = "".join(self.puzzle).count(".")

    @classmethod
    def tasks(
        cls,
        split: Split,
        size: Literal[4, 9] = 4,
        clues: Annotated[int, Field(ge=4, le=80)] | None = None,
        **settings: Any,
    ) -> Sequence[Task]:
        """Return puzzles keyed by split and index. The solution decides the split: 4x4 has 288 of them, few enough to
        memorise. Raises ConfigError if the grid has no room for the clues."""
        fewest = CLUES[size] if clues is None else clues
        if fewest >= size * size:
            raise ConfigError(
                f"settings.clues: got {fewest} in {size}x{size}; expected fewer than {size * size}. Leave some to fill."
            )

        def make(index: int) -> dict[str, Any]:
            return {"grid": list(generate(size, fewest, lambda *solution: in_split(split, *solution), split, index))}

        return GeneratedTasks(SPLIT_SIZES[split], make, f"{split}-{size}-{fewest}")

    @property
    def success(self) -> bool:
        return valid(self.state) and self.keeps_clues(self.state)

    def keeps_clues(self, rows: Sequence[str]) -> bool:
        return all(clue in (".", mark) for clue, mark in zip("".join(self.puzzle), "".join(rows), strict=True))

    def potential(self, rows: Sequence[str]) -> float:
        """Return the number of right cells less that of wrong ones, as a fraction of the cells to fill."""
        marks = zip("".join(self.puzzle), "".join(self.solution), "".join(rows), strict=True)
        # `clue == "." != mark` selects cells that the puzzle leaves empty and the grid fills.
        return sum(1 if mark == right else -1 for clue, right, mark in marks if clue == "." != mark) / self.blanks

    def draw(self) -> str:
        return "\n".join(self.state)

    def picture(self) -> Drawing:
        return grid(self.state, {".": "empty"}, boxes=int(len(self.state) ** 0.5))

    def stdin(self) -> str:
        """Return the puzzle without the cells filled in later, which may be wrong and are not binding."""
        return "\n".join(self.puzzle)

    def parse(self, text: str) -> str | None:
        """Return the rows of an answer, separated by spaces: after a last "Grid:", rows of digits and dots, numbered or
        not.

        Strict on purpose: an answer with other words in it is not guessed at. Under `prompts: function` a last
        "grid = " and a list of lists is read first.
        """
        size = len(self.puzzle)
        if self.words is Function and (lists := LIST.findall(text)):
            try:
                return read_grid(json.loads(lists[-1]), size)
            except ValueError:
                return None
        rows = behind("grid", text).split()
        if len(rows) != size:
            return None
        unnumbered = [row.removeprefix(f"{number}:").rstrip(",;") for number, row in enumerate(rows, 1)]
        # A dot is an empty cell, but not behind a whole row.
        if len(unnumbered[-1]) == size + 1:
            unnumbered[-1] = unnumbered[-1].removesuffix(".")
        allowed = set(".123456789"[: size + 1])
        return " ".join(unnumbered) if all(len(row) == size and set(row) <= allowed for row in unnumbered) else None

    def read(self, value: Any, lists: tuple[Any, ...]) -> str:
        # Solvers that fill the grid in place return True or nothing. One that has filled nothing has no answer.
        if (value is None or value is True) and lists:
            rows = read_grid(lists[0], len(self.puzzle))
            if rows != " ".join(self.puzzle):
                return rows
        return read_grid(value, len(self.puzzle))

    def outcome(self, answer: str) -> Outcome:
        """Return the outcome of a grid. The team: the potential won (negative if lost). The author: -0.01 a cell
        written. The prize: +1 for the solved grid. A grid that contradicts a clue or leaves one out costs its author
        0.2 and changes nothing."""
        rows = tuple(answer.split())
        # A contradiction is no progress, whatever else is right: the state stays.
        if not self.keeps_clues(rows):
            return Outcome(self.state, False, 0, {"cells": 0.0}, {"clues": -0.2, "written": 0.0}, {"solved": 0.0})
        written = sum(old != new for old, new in zip("".join(self.state), "".join(rows), strict=True))
        team = {"cells": self.potential(rows) - self.potential(self.state)}
        local = {"clues": 0.0, "written": -0.01 * written}
        return Outcome(rows, valid(rows), written, team, local, {"solved": float(valid(rows))})

    def show(self, answer: str) -> str:
        """Return "1:3412 2:1234" and so on: the compact wording counts its rows."""
        return " ".join(f"{number}:{row}" for number, row in enumerate(answer.split(), 1))

    @property
    def function(self) -> FunctionRequest:
        size, side = len(self.puzzle), round(len(self.puzzle) ** 0.5)
        return FunctionRequest(
            state=f"This is a Sudoku of {size}x{size} with boxes of {side}x{side}. A dot is an empty cell.",
            task="Complete the Python function that solves it. It will be called with this puzzle.",
            code=f"""\
def solve_sudoku(grid, is_allowed):
    # grid is a list of {size} lists of {size} int, 0 for an empty cell. It is solved in place.
    # is_allowed(grid, row, column, digit) returns True if the digit can be written into the empty cell.
    # Backtracking: returns True if the grid is full, or False if no digit from 1 to {size} leads to a solution.""",
            arguments=RULES,
        )

    def write_grid(self, rows: Sequence[str]) -> str:
        """Return a grid as prompts in English show it: rows of digits, or Python for models that write functions.
        Qwen2.5-Coder-0.5B copies 1 of 48 grids right from rows without spaces, and 29 of 48 from a list of lists."""
        if self.words is not Function:
            return "\n".join(rows)
        lines = ",\n".join(f"    [{', '.join(row.replace('.', '0'))}]" for row in rows)
        return f"```python\ngrid = [\n{lines}\n]\n```"

    def rules(self) -> str:
        size, side = len(self.puzzle), round(len(self.puzzle) ** 0.5)
        empty = "0" if self.words is Function else "A dot"
        text = (
            f"Sudoku, {size}x{size}. Every row, every column and every {side}x{side} box must hold each of the digits "
            f"1 to {size} once. {empty} is an empty cell. The digits of the puzzle must stay as they are:\n\n"
            f"{self.write_grid(self.puzzle)}\n\n"
        )
        if self.words is Function and self.state == self.puzzle:
            return text
        return (
            f"{text}The grid so far, in which what was filled in may be changed:\n\n{self.write_grid(self.state)}\n\n"
        )

    def ask_program(self) -> str:
        return (
            "Write a Python program that solves the puzzle and prints the full grid, one row of digits a line, "
            "nothing between the digits. These names are defined before your program: `grid` is the puzzle as a list "
            "of lists of int with 0 for empty, `size` its number of rows, `side` that of a box, `empty` the list of "
            "(row, column) of its empty cells, `digits` the digits, and `fits(r, c, v)` says whether v is not yet in "
            "row, column and box of `grid`. Answer with one ```python block."
        )

    def ask_answer(self) -> str:
        if self.words is Function:
            return "Decide on the whole grid. Answer with one ```python block: `grid = ` and the full grid."
        return (
            "Decide on the whole grid. End your answer with `Grid:` and then one row a line, nothing between the "
            "digits and a dot for a cell to leave empty."
        )

    def describe(self, answer: str) -> str:
        outcome = self.outcome(answer)
        printed = f"{self.words.gave}\n{self.write_grid(answer.split())}"
        if outcome.local["clues"]:
            return f"{printed}\nThis grid contradicts a digit of the puzzle and would be refused."
        return f"{printed}\nThis grid {'is a solution' if outcome.solved else 'is no solution'}."


class SudokuNoTool(PlannerNoTool, Sudoku):
    """A single planner without the tool."""


class SudokuTool(Tool, Sudoku):
    """A single tool whose programs' answers are executed."""


class SudokuSingleAgent(PlannerSingleAgent, Sudoku):
    """A single agent that has the tool."""
