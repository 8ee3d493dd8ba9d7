"""Plan-Path: find a way through a 10x10 grid in which each cell is blocked with probability 0.22.

The role `tool` writes a program that prints moves, the role `planner` decides on them
(`cadre_tasks.games.tool_planner`). An invalid move stays in place. The single-agent forms are `PlanPathNoTool` and
`PlanPathSingleAgent`.

The shaping is a true potential difference (gamma 1) on Manhattan distance, so it telescopes: what moves earn along a
cycle is their cost. The published sum with gamma 0.99 can be farmed by oscillating.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre import random_keys
from cadre.env import GeneratedTasks, Split
from cadre.envs.drawings import grid
from cadre.envs.splits import SPLIT_SIZES, in_split
from cadre.types import Drawing, Task
from cadre_tasks.answers import ASK_MOVES, MOVES, Cell, numbered, parse_moves
from cadre_tasks.games.returned import read_path
from cadre_tasks.games.tool_planner import (
    FunctionRequest,
    Moves,
    Outcome,
    PlannerNoTool,
    PlannerSingleAgent,
    Prompts,
    Tool,
    ToolPlanner,
    Turns,
)
from cadre_tasks.turn_based import Rewards

LEGEND = {"#": "wall", ".": "free", "S": "walker", "G": "goal", "o": "path"}
# What every program finds defined; it reads the grid from standard input.
PRELUDE = """\
import sys
grid = sys.stdin.read().split()
cells = {(r, c): x for r, row in enumerate(grid) for c, x in enumerate(row)}
start = next(n for n in cells if cells[n] == "S")
goal = next(n for n in cells if cells[n] == "G")
free = {n for n in cells if cells[n] != "#"}
moves = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
"""
FUNCTION = FunctionRequest(
    state="This is a grid. S is the start, G is the goal, # is blocked, any other cell is free.",
    task="Complete the Python function that finds a shortest path. It will be called with this grid.",
    code="""\
from collections import deque

def shortest_path(grid, start, goal):
    # grid[row][column] is "#" where the cell is blocked. start and goal are cells: tuples (row, column).
    # Breadth-first search: the queue holds pairs of a cell and the list of the cells on the path to it.
    # Returns the list of the first pair whose cell is goal.""",
    arguments=f"{PRELUDE}arguments = (grid, start, goal)\n",
)


@dataclass(frozen=True)
class Grid:
    """The map: the free cells, the goal, and the number of rows and columns."""

    size: int
    free: frozenset[Cell]
    goal: Cell

    def step(self, cell: Cell, move: str) -> Cell:
        """Return the cell that `move` leads to from `cell`; a blocked move stays in place."""
        row, column = MOVES[move]
        target = (cell[0] + row, cell[1] + column)
        return target if target in self.free else cell

    def manhattan(self, cell: Cell) -> int:
        return abs(cell[0] - self.goal[0]) + abs(cell[1] - self.goal[1])

    def draw(self, cell: Cell) -> str:
        """Return the drawing, with S at the walker's cell."""
        return "\n".join(drawing(self.size, self.free, cell, self.goal))


def parse_grid(rows: Sequence[str]) -> tuple[Grid, Cell]:
    """Return the grid and the start cell of a drawing with one S and one G."""
    cells = {(r, c): mark for r, row in enumerate(rows) for c, mark in enumerate(row)}
    (start,) = (cell for cell, mark in cells.items() if mark == "S")
    (goal,) = (cell for cell, mark in cells.items() if mark == "G")
    return Grid(len(rows), frozenset(cell for cell, mark in cells.items() if mark != "#"), goal), start


def shortest(grid: Grid, start: Cell) -> str | None:
    """Return one shortest path, by breadth-first search, or None if the goal is out of reach."""
    queue, visited = deque([(start, "")]), {start}
    while queue:
        cell, path = queue.popleft()
        if cell == grid.goal:
            return path
        for move in MOVES:
            target = grid.step(cell, move)
            if target not in visited:
                visited.add(target)
                queue.append((target, path + move))
    return None


def reachable(size: int, free: Sequence[Cell], start: Cell, goal: Cell) -> bool:
    """Return True if there is a path: the answer of `shortest`, by flooding a bit map, some twenty times as fast."""
    width = size + 1  # a column that is never free keeps the rows apart
    bits = sum([1 << (row * width + column) for row, column in free])
    flood, target = 1 << (start[0] * width + start[1]), 1 << (goal[0] * width + goal[1])
    while not flood & target:
        # One step right, left, down and up from every cell that is flooded.
        grown = (flood | flood << 1 | flood >> 1 | flood << width | flood >> width) & bits
        if grown == flood:
            return False
        flood = grown
    return True


def generate(size: int, blocked: float, *seed: str | int) -> list[str]:
    """Return a solvable drawing, the same for the same seed: cells blocked at random, start and goal distinct
    and free."""
    generator = random_keys.generator("plan-path", size, repr(blocked), *seed)
    cells = [(r, c) for r in range(size) for c in range(size)]
    while True:
        free = [cell for cell in cells if generator.random() >= blocked]
        if len(free) < 2:
            continue
        start, goal = generator.sample(free, 2)
        if reachable(size, free, start, goal):
            return drawing(size, free, start, goal)


def drawing(size: int, free: Iterable[Cell], start: Cell, goal: Cell) -> list[str]:
    """Return the rows of a grid: `.` free, `#` blocked, S the start, G the goal."""
    rows = [["#"] * size for _ in range(size)]
    for row, column in free:
        rows[row][column] = "."
    # The start last: a walker at the goal is drawn as S.
    rows[goal[0]][goal[1]], rows[start[0]][start[1]] = "G", "S"
    return ["".join(row) for row in rows]


class PlanPath(ToolPlanner):
    """The team form. Settings: `turns` the team gets, `max_moves` executed of one answer, `prompts` wording, `reward`
    shaped or by outcome, `judged_on` how many grids a program's author is paid for (one: the task's own, on which a
    program that ignores walls may be right), and of the grids the `size` and the share that is `blocked`."""

    one_agent: ClassVar[str] = "plan-path-single-agent"

    prelude: ClassVar[str] = PRELUDE
    titles: ClassVar[tuple[str, str]] = ("program", "moves")

    def __init__(
        self,
        task: Task,
        turns: Turns = 4,
        max_moves: Moves = 40,
        prompts: Prompts = "full",
        reward: Rewards = "shaped",
        judged_on: Annotated[int, Field(ge=1, le=20)] = 1,
        **grid: Any,
    ) -> None:
        self.grid, start = parse_grid(task.data["grid"])
        self.judged_on, self.kind = judged_on, grid
        super().__init__(task, start, turns, prompts, reward)
        self.max_moves, self.optimal = max_moves, len(shortest(self.grid, start) or "")

    @classmethod
    def tasks(
        cls,
        split: Split,
        size: Annotated[int, Field(ge=3, le=50)] = 10,
        blocked: Annotated[float, Field(ge=0.0, le=0.6)] = 0.22,
        **settings: Any,
    ) -> Sequence[Task]:
        """Return drawings keyed by split and index; the whole drawing decides the split."""

        def make(index: int) -> dict[str, Any]:
            # Grids are drawn until one falls into the split by its hash; the attempt is part of the seed.
            attempt = 0
            while not in_split(split, *(rows := generate(size, blocked, split, index, attempt))):
                attempt += 1
            return {"grid": rows}

        return GeneratedTasks(SPLIT_SIZES[split], make, f"{split}-{size}")

    def alike(self) -> Sequence[ToolPlanner]:
        tasks = PlanPath.tasks("train", **self.kind)
        games = []
        for index in random_keys.generator("judged on", self.task.id).sample(range(len(tasks)), self.judged_on - 1):
            game = copy(self)
            game.grid, game.state = parse_grid(tasks[index].data["grid"])
            game.spent, game.optimal = 0, len(shortest(game.grid, game.state) or "")
            games.append(game)
        return games

    @property
    def cell(self) -> Cell:
        """The walker's cell."""
        cell: Cell = self.state
        return cell

    @property
    def success(self) -> bool:
        return self.cell == self.grid.goal

    def privileged(self) -> str:
        """Return a shortest path from here, in the compact wording of moves."""
        return f"solution {numbered(shortest(self.grid, self.cell) or '')}"

    def draw(self) -> str:
        return self.grid.draw(self.cell)

    def picture(self) -> Drawing:
        """Return the grid with the path that a program's answer would take."""
        rows = [list(row) for row in self.draw().split("\n")]
        cell = self.cell
        for move in (self.run.answer or "")[: self.max_moves] if self.run else "":
            cell = self.grid.step(cell, move)
            if rows[cell[0]][cell[1]] == ".":
                rows[cell[0]][cell[1]] = "o"
        return grid(["".join(row) for row in rows], LEGEND)

    def parse(self, text: str) -> str | None:
        return parse_moves(text)

    def read(self, value: Any, lists: tuple[Any, ...]) -> str:
        return read_path(value, self.cell)

    def outcome(self, answer: str) -> Outcome:
        """Return the outcome of moves. The team: 0.1 a cell of Manhattan distance won (negative if lost). The author:
        -0.01 a move, -0.10 an invalid one, +0.5 if the whole episode took the fewest moves possible. The prize: +1 at
        the goal. Moves behind the goal do not count."""
        cell, valid, invalid = self.cell, 0, 0
        for move in answer[: self.max_moves]:
            target = self.grid.step(cell, move)
            valid, invalid = valid + (target != cell), invalid + (target == cell)
            cell = target
            if cell == self.grid.goal:
                break
        goal, spent = cell == self.grid.goal, valid + invalid
        local = {
            "moves": -0.01 * spent,
            "invalid": -0.10 * invalid,
            # The moves of earlier turns count: the bonus is for the episode, not for the last turn.
            "optimal": 0.5 * (goal and self.spent + spent == self.optimal),
        }
        team = {"progress": 0.1 * (self.grid.manhattan(self.cell) - self.grid.manhattan(cell))}
        return Outcome(cell, goal, spent, team, local, {"goal": float(goal)})

    def show(self, answer: str) -> str:
        return numbered(answer[: self.max_moves])

    @property
    def function(self) -> FunctionRequest:
        return FUNCTION

    def rules(self) -> str:
        return (
            f"A {self.grid.size}x{self.grid.size} grid. S is where you are, G is the goal, # is blocked, . is free.\n"
            "Moves: U (up), D (down), L (left), R (right). A move into a blocked cell or off the grid stays in place "
            f"and costs extra; fewer moves are better. At most {self.max_moves} moves are executed.\n\n"
            f"{self.draw()}\n\n"
        )

    def ask_program(self) -> str:
        return (
            "Write a Python program that finds a shortest path from S to G and prints its moves as "
            "one line of the letters U, D, L, R, such as RRD. These names are defined before your program: `start` and "
            "`goal` are (row, column) tuples, `free` is the set of free cells, `moves` maps each letter to its (row, "
            "column) change. Answer with one ```python block."
        )

    def ask_answer(self) -> str:
        return ASK_MOVES

    def describe(self, answer: str) -> str:
        outcome = self.outcome(answer)
        row, column = outcome.state
        reached = "reach the goal" if outcome.solved else f"end at row {row}, column {column}"
        return f"{self.words.gave} {answer[: self.max_moves]}. These moves would {reached}."


class PlanPathNoTool(PlannerNoTool, PlanPath):
    """A single planner without the tool."""


class PlanPathTool(Tool, PlanPath):
    """A single tool whose programs' answers are executed."""


class PlanPathSingleAgent(PlannerSingleAgent, PlanPath):
    """A single agent that has the tool."""
