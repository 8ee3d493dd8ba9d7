"""The task of all these programs: two agents walk through a grid in turn, from S to G, with a map that shows the next
moves. The scout has to come so far that the map shows the walker the rest."""

import re
from collections import deque

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
SHOWN = 8  # moves that the map shows


def find(grid, mark):
    return next((row, line.index(mark)) for row, line in enumerate(grid) if mark in line)


def open_cells(grid):
    return {(row, column) for row, line in enumerate(grid) for column, mark in enumerate(line) if mark != "#"}


def way(grid):
    """The moves of a shortest way from S to G, "" at the goal."""
    if "G" not in "".join(grid):
        return ""
    free, goal, start = open_cells(grid), find(grid, "G"), find(grid, "S")
    queue, moves = deque([start]), {start: ""}
    while goal not in moves:
        cell = queue.popleft()
        for move, (down, right) in STEPS.items():
            there = (cell[0] + down, cell[1] + right)
            if there in free and there not in moves:
                moves[there] = moves[cell] + move
                queue.append(there)
    return moves[goal]


def prompt(grid):
    """The grid and what the map shows, such as `tool short 1R 2R 3D`; `goal` where that leads there."""
    shown, rest = way(grid)[:SHOWN], way(grid)[SHOWN:]
    numbered = " ".join(f"{number}{move}" for number, move in enumerate(shown, 1))
    return "\n".join(["moves", *grid, f"tool {'short' if rest else 'goal'} {numbered}"])


def walked(grid, said):
    """The grid after the moves that an agent says, such as `RRD` or `1R 2R 3D`; a wall stops a move."""
    if "G" not in "".join(grid):
        return grid
    free, goal, (row, column) = open_cells(grid), find(grid, "G"), find(grid, "S")
    for move in re.findall("[UDLR]", said or "")[:20]:
        there = (row + STEPS[move][0], column + STEPS[move][1])
        row, column = there if there in free else (row, column)
        if (row, column) == goal:
            break
    marks = {(row, column): "S"} if (row, column) == goal else {(row, column): "S", goal: "G"}
    return [
        "".join(marks.get((r, c), "." if (r, c) in free else "#") for c in range(len(grid))) for r in range(len(grid))
    ]


def score(before, after):
    """1 at the goal, else the share of the way that was covered, halved."""
    left, whole = len(way(after)), len(way(before))
    return {"team": 0.5 * (whole - left) / whole if left else 1.0, "success": left == 0}


def score_turn(task, exchange):
    """What one answer is worth by itself: a tenth for every move that the goal is nearer."""
    shown = exchange["messages"][-1]["content"].split("\n")
    grid = [line for line in shown if set(line) <= set("#.SG")]
    return 0.1 * (len(way(grid)) - len(way(walked(grid, exchange["answer"]["content"]))))
