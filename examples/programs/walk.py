"""The task of all these programs: two agents walk through a grid in turn, from S to G."""

import re

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


def find(grid, mark):
    return next((row, line.index(mark)) for row, line in enumerate(grid) if mark in line)


def prompt(grid):
    return "moves\n" + "\n".join(grid)


def walked(grid, said):
    """The grid after the moves that an agent says, such as `RRD` or `1R 2R 3D`; a wall stops a move."""
    row, column = find(grid, "S")
    free = {(r, c) for r, line in enumerate(grid) for c, mark in enumerate(line) if mark != "#"}
    if "G" not in "".join(grid):
        return grid
    goal = find(grid, "G")
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
    if "G" not in "".join(after):
        return {"team": 1.0, "success": True}
    far, near = (abs(r - s) + abs(c - d) for (r, c), (s, d) in ((find(g, "S"), find(g, "G")) for g in (before, after)))
    return {"team": 0.5 * (far - near) / max(far, near), "success": False}
