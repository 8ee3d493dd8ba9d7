"""Sokoban: push every box onto a goal. 6x6 with one box by default; Boxoban levels from a folder as a harder set.

The role `tool` writes a program that prints moves, the role `planner` decides on them
(`cadre_tasks.games.tool_planner`). A move into a wall, or of a box that cannot move, stays in place. `max_moves` bounds
the whole episode, and running out of moves is a failure.

The shaping is a true potential difference (gamma 1) on the boxes on goals and on their distance to the nearest goal.
The published +1 for a box pushed on and -0.5 for one pushed off earns half a point for every repetition; here a box
pushed off costs what it earned.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre.env import GeneratedTasks, Split
from cadre.envs.drawings import grid
from cadre.envs.splits import SPLIT_SIZES, in_split
from cadre.errors import ConfigError
from cadre.types import Drawing, Task
from cadre_tasks.answers import ASK_MOVES, MOVES, Cell, numbered, parse_moves
from cadre_tasks.data.read import VARIABLE
from cadre_tasks.games.levels import generate, read_folder
from cadre_tasks.games.returned import read_moves
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

# What every program finds defined; it reads the level from standard input.
PRELUDE = """\
import sys
grid = sys.stdin.read().split()
cells = {(r, c): x for r, row in enumerate(grid) for c, x in enumerate(row)}
start = next(n for n in cells if cells[n] in "S+")
goals = frozenset(n for n in cells if cells[n] in "G*+")
boxes = frozenset(n for n in cells if cells[n] in "B*")
box, goal = min(boxes), min(goals)
free = {n for n in cells if cells[n] != "#"}
moves = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
"""
# The rules of the game, as functions that the model's function is given. A state is (walker, boxes).
RULES = (
    PRELUDE
    + """\
def step(state, move):
    if move not in moves:
        raise ValueError(f"step(state, move): got the move {move!r}; expected one of 'U', 'D', 'L', 'R'")
    walker, boxes = state
    row, column = moves[move]
    target = (walker[0] + row, walker[1] + column)
    if target not in free:
        return state
    if target not in boxes:
        return (target, boxes)
    behind = (target[0] + row, target[1] + column)
    if behind not in free or behind in boxes:
        return state
    return (target, boxes - {target} | {behind})
def is_solved(state):
    return state[1] <= goals
arguments = ((start, boxes), step, is_solved)
"""
)
FUNCTION = FunctionRequest(
    state="This is a level of Sokoban. S is the player, B a box, G a goal, # a wall, * a box on a goal.",
    task="Complete the Python function that finds the fewest moves. It will be called with this level.",
    code="""\
from collections import deque

def find_moves(start, step, is_solved):
    # step(state, move) returns the state after the move "U", "D", "L" or "R". is_solved(state) returns True or False.
    # Breadth-first search: the queue holds pairs of a state and the string of the moves that lead to it.
    # Returns the string of moves of the first solved state.""",
    arguments=RULES,
)
LEGEND = {"#": "wall", ".": "free", "G": "goal", "B": "box", "*": "box on goal", "S": "walker", "+": "walker on goal"}


@dataclass(frozen=True)
class State:
    """The cells of the walker and of the boxes."""

    walker: Cell
    boxes: frozenset[Cell]


@dataclass(frozen=True)
class Level:
    """The fixed part of a level: the floor, the goals, and the numbers of rows and columns."""

    rows: int
    columns: int
    floor: frozenset[Cell]
    goals: frozenset[Cell]

    def step(self, state: State, move: str) -> State:
        """Return the state after `move`, which pushes a box that stands there; a blocked move changes nothing."""
        row, column = MOVES[move]
        target = (state.walker[0] + row, state.walker[1] + column)
        if target not in self.floor:
            return state
        if target not in state.boxes:
            return State(target, state.boxes)
        behind = (target[0] + row, target[1] + column)
        if behind not in self.floor or behind in state.boxes:
            return state
        return State(target, state.boxes - {target} | {behind})

    def placed(self, state: State) -> int:
        """Return the number of boxes on goals."""
        return len(state.boxes & self.goals)

    def solved(self, state: State) -> bool:
        return state.boxes <= self.goals

    def distance(self, state: State) -> int:
        """Return the sum over the boxes of the Manhattan distance to the nearest goal."""
        return sum(self.nearest[box] for box in state.boxes)

    @cached_property
    def nearest(self) -> dict[Cell, int]:
        return {(r, c): min(abs(r - a) + abs(c - b) for a, b in self.goals) for r, c in self.floor}

    def draw(self, state: State) -> str:
        """Return rows of `#` wall, `.` floor, G goal, B box, `*` box on a goal, S the walker, `+` the walker
        on a goal."""
        rows = [["#"] * self.columns for _ in range(self.rows)]
        for row, column in self.floor:
            rows[row][column] = "G" if (row, column) in self.goals else "."
        for row, column in state.boxes:
            rows[row][column] = "*" if (row, column) in self.goals else "B"
        rows[state.walker[0]][state.walker[1]] = "+" if state.walker in self.goals else "S"
        return "\n".join("".join(row) for row in rows)


def parse_level(rows: Sequence[str]) -> tuple[Level, State]:
    """Return the level and the state of a drawing in the marks of `Level.draw`."""
    cells = {(r, c): mark for r, row in enumerate(rows) for c, mark in enumerate(row)}

    def marked(marks: str) -> frozenset[Cell]:
        return frozenset(cell for cell, mark in cells.items() if mark in marks)

    # Exactly one walker; anything else is a ValueError.
    ((walker),) = marked("S+")
    level = Level(len(rows), max(map(len, rows)), frozenset(cells) - marked("#"), marked("G*+"))
    return level, State(walker, marked("B*"))


def solve(level: Level, state: State) -> str | None:
    """Return the fewest moves that solve the level, by breadth-first search, or None if it has no solution. It visits
    every state in the worst case: a matter of milliseconds for one box in 6x6, of hours for Boxoban."""
    queue, visited = deque([(state, "")]), {state}
    while queue:
        state, path = queue.popleft()
        if level.solved(state):
            return path
        for move in MOVES:
            target = level.step(state, move)
            if target not in visited:
                visited.add(target)
                queue.append((target, path + move))
    return None


class SokobanGame(ToolPlanner):
    """The play of a level, generated or from a folder. Settings: `turns` the team gets, `max_moves` of the whole
    episode, `prompts` wording, `reward` shaped or by outcome."""

    prelude: ClassVar[str] = PRELUDE
    titles: ClassVar[tuple[str, str]] = ("sokoban program", "sokoban moves")

    def __init__(
        self,
        task: Task,
        turns: Turns = 4,
        max_moves: Moves = 40,
        prompts: Prompts = "full",
        reward: Rewards = "shaped",
        **level: Any,
    ) -> None:
        self.level, state = parse_level(task.data["grid"])
        super().__init__(task, state, turns, prompts, reward)
        self.max_moves = max_moves

    @property
    def success(self) -> bool:
        return self.level.solved(self.state)

    @property
    def over(self) -> bool:
        return super().over or self.spent >= self.max_moves

    def draw(self) -> str:
        return self.level.draw(self.state)

    def picture(self) -> Drawing:
        return grid(self.draw().split("\n"), LEGEND)

    def parse(self, text: str) -> str | None:
        return parse_moves(text)

    def read(self, value: Any, lists: tuple[Any, ...]) -> str:
        return read_moves(value)

    def outcome(self, answer: str) -> Outcome:
        """Return the outcome of moves. The team: 0.1 a cell of distance to the nearest goal won (negative if lost), +1
        a box on a goal (-1 off it). The author: -0.01 a move. The prize: +10 when all are. Moves behind that, or beyond
        the rest of the episode's, do not count."""
        state, spent = self.state, 0
        for move in self.playable(answer):
            state, spent = self.level.step(state, move), spent + 1
            if self.level.solved(state):
                break
        solved = self.level.solved(state)
        team = {
            "progress": 0.1 * (self.level.distance(self.state) - self.level.distance(state)),
            "boxes": 1.0 * (self.level.placed(state) - self.level.placed(self.state)),
        }
        return Outcome(state, solved, spent, team, {"moves": -0.01 * spent}, {"win": 10.0 * solved})

    def playable(self, moves: str) -> str:
        """Return the moves that the rest of the episode's allows."""
        return moves[: self.max_moves - self.spent]

    def show(self, answer: str) -> str:
        return numbered(self.playable(answer))

    @property
    def function(self) -> FunctionRequest:
        return FUNCTION

    def rules(self) -> str:
        return (
            f"Sokoban, {self.level.rows}x{self.level.columns}. # is a wall, . is floor, S is you, B is a box, G is a "
            "goal, * is a box on a goal, + is you on a goal. Every box must end on a goal.\n"
            "Moves: U (up), D (down), L (left), R (right). Walking into a box pushes it one cell if the cell behind it "
            "is free of walls and boxes; boxes cannot be pulled. Any other blocked move stays in place. "
            f"{self.max_moves - self.spent} moves are left.\n\n"
            f"{self.draw()}\n\n"
        )

    def ask_program(self) -> str:
        return (
            "Write a Python program that finds the fewest moves that bring every box onto a goal and prints them as "
            "one line of the letters U, D, L, R, such as RRD. These names are defined before your program: `start` is "
            "your (row, column), `boxes` and `goals` are frozensets of cells, `free` is the set of cells that are not "
            "walls, `moves` maps each letter to its (row, column) change; `box` and `goal` are the first of each. "
            "Answer with one ```python block."
        )

    def ask_answer(self) -> str:
        return ASK_MOVES

    def describe(self, answer: str) -> str:
        outcome = self.outcome(answer)
        result = "solve the level." if outcome.solved else f"not solve it but lead to\n{self.level.draw(outcome.state)}"
        return f"{self.words.gave} {self.playable(answer)}. These moves would {result}"


class Sokoban(SokobanGame):
    """The team form, on generated levels. Settings, beside those of `SokobanGame`: the `size` of a level, walls
    included, and the number of its `boxes`."""

    one_agent: ClassVar[str] = "sokoban-single-agent"

    @classmethod
    def tasks(
        cls,
        split: Split,
        size: Annotated[int, Field(ge=5, le=20)] = 6,
        boxes: Annotated[int, Field(ge=1, le=4)] = 1,
        **settings: Any,
    ) -> Sequence[Task]:
        """Return levels keyed by split and index. Walls and goals decide the split, so no test level is a training
        level with its box elsewhere. Raises ConfigError if the level has no room for the boxes."""
        # At least eight inner cells a box.
        if boxes > (size - 2) ** 2 // 8:
            raise ConfigError(f"settings.boxes: got {boxes} in {size}x{size}; expected at most {(size - 2) ** 2 // 8}.")

        def make(index: int) -> dict[str, Any]:
            return {"grid": generate(size, boxes, lambda *room: in_split(split, *room), split, index)}

        return GeneratedTasks(SPLIT_SIZES[split], make, f"{split}-{size}-{boxes}")


class SokobanNoTool(PlannerNoTool, Sokoban):
    """A single planner without the tool."""


class SokobanTool(Tool, Sokoban):
    """A single tool whose programs' answers are executed."""


class SokobanSingleAgent(PlannerSingleAgent, Sokoban):
    """A single agent that has the tool."""


class Boxoban(SokobanGame):
    """The team form, on levels from a folder: 10x10 with four boxes in the public set (github.com/google-deepmind/
    boxoban-levels). Settings, beside those of `SokobanGame`: `levels` the folder, where it is not given `boxoban` in
    $CADRE_DATA."""

    one_agent: ClassVar[str] = "boxoban-single-agent"

    def __init__(self, task: Task, max_moves: Moves = 200, **settings: Any) -> None:
        super().__init__(task, max_moves=max_moves, **settings)

    @classmethod
    def tasks(cls, split: Split, levels: str = "", **settings: Any) -> Sequence[Task]:
        """Return the folder's levels, in order; one in ten, by the hash of its drawing, is for testing."""
        data = os.environ.get(VARIABLE, "")
        folder = levels or (str(Path(data) / "boxoban") if data else "")
        chosen = ((rows, name) for rows, name in read_folder(folder).items() if in_split(split, *rows))
        tasks = [Task(name, {"grid": list(rows)}) for rows, name in chosen]
        if not tasks:
            raise ConfigError(
                f"settings.levels: {folder!r} holds no level of the split {split!r}; expected at least one. Add levels."
            )
        return tasks


class BoxobanNoTool(PlannerNoTool, Boxoban):
    """A single planner without the tool."""


class BoxobanSingleAgent(PlannerSingleAgent, Boxoban):
    """A single agent that has the tool."""
