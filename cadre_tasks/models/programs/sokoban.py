"""Sokoban: breadth-first search over the walker and the boxes is 6% of what is drawn.

The likeliest programs push straight along one axis, as if the walker stood behind the box. Others are Plan-Path's word
for word: they bring the walker to the goal and not the box.
"""

from __future__ import annotations

from cadre_tasks.models.programs.mixture import Kind, constant_moves, repeated, with_mistakes
from cadre_tasks.models.programs.plan_path import CORNER, GREEDY, RANDOM
from cadre_tasks.models.programs.plan_path import SEARCH as WALK

SEARCH = """\
from collections import deque
queue = deque([(start, boxes, "")])
seen = {(start, boxes)}
while queue:
    cell, at, path = queue.popleft()
    if at == goals:
        print(path)
        break
    for m, (a, b) in moves.items():
        n = (cell[0] + a, cell[1] + b)
        k = at
        if n in at:
            k = at - {n} | {(n[0] + a, n[1] + b)}
        if n in free and k <= free and len(k) == len(at) and (n, k) not in seen:
            seen.add((n, k))
            queue.append((n, k, path + m))
"""

# One mistake each: (right text, its replacement).
SEARCH_MISTAKES = [
    ("print(path)", "print(len(path))"),
    ("print(path)", "print(cell)"),
    ("print(path)", "print(path[::-1])"),
    ("print(path)", "return path"),
    ("path + m)", "path)"),
    ("path + m)", "m)"),
    ("if at == goals:", "if at != goals:"),
    ("if at == goals:", "if cell == goal:"),
    ("if n in at:", "if n not in at:"),
    ("        k = at\n", ""),
    ("at - {n} | {(n[0] + a, n[1] + b)}", "at - {n}"),
    ("(n, k) not in seen:", "n in seen:"),
    ("while queue:", "while queue"),
    ("queue.popleft()", "queue.popleft"),
    ("from collections import deque\n", ""),
    ("seen = {(start, boxes)}\n", ""),
    ("moves.items()", "moves"),
]

ONE_AXIS = [
    'print("R" * (goal[1] - box[1]))\n',
    'print("L" * (box[1] - goal[1]))\n',
    'print("D" * (goal[0] - box[0]))\n',
    'print("U" * (box[0] - goal[0]))\n',
]

KINDS = {
    "one axis": Kind(50, repeated(ONE_AXIS, (5, 2, 2, 1))),
    "corner": Kind(4, [CORNER]),
    "greedy": Kind(4, [GREEDY]),
    "walk": Kind(6, [WALK]),
    "random": Kind(6, [RANDOM.replace("20", "6")]),
    "constant": Kind(8, [constant_moves]),
    "search with a mistake": Kind(16, with_mistakes(SEARCH, SEARCH_MISTAKES)),
    "search": Kind(6, [SEARCH]),
}
