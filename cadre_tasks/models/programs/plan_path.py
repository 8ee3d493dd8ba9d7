"""Plan-Path: breadth-first search is 6% of what is drawn. The likeliest are walks along one axis, so that a model of
this mixture decodes greedily to a program that rarely reaches the goal."""

from __future__ import annotations

from cadre_tasks.models.programs.mixture import Kind, constant_moves, repeated, with_mistakes

SEARCH = """\
from collections import deque
queue = deque([(start, "")])
seen = {start}
while queue:
    cell, path = queue.popleft()
    if cell == goal:
        print(path)
        break
    for m, (a, b) in moves.items():
        n = (cell[0] + a, cell[1] + b)
        if n in free and n not in seen:
            seen.add(n)
            queue.append((n, path + m))
"""

# One mistake each: (right text, its replacement).
SEARCH_MISTAKES = [
    ("print(path)", "print(len(path))"),
    ("print(path)", "print(cell)"),
    ("print(path)", "print(path[::-1])"),
    ("print(path)", "print(path[1:])"),
    ("print(path)", "return path"),
    ("path + m)", "m + path)"),
    ("path + m)", "path)"),
    ("path + m)", "m)"),
    ("if n in free and n not in seen:", "if n not in free and n not in seen:"),
    ("if n in free and n not in seen:", "if n in cells and n not in seen:"),
    ("if n in free and n not in seen:", "if n in free and n in seen:"),
    ("cell[1] + b)", "cell[1] - b)"),
    ("cell[0] + a, cell[1] + b", "cell[0] + b, cell[1] + a"),
    ("if cell == goal:", "if cell != goal:"),
    ("if cell == goal:", "if cell = goal:"),
    ("while queue:", "while queue"),
    ("queue.popleft()", "queue.popleft"),
    ('deque([(start, "")])', 'deque([start, ""])'),
    ("from collections import deque\n", ""),
    ("seen = {start}\n", ""),
    ("        break\n", "        continue\n"),
    ("moves.items()", "moves"),
    ("            seen.add(n)\n", "            seen.add(cell)\n"),
    ('(start, "")', '(goal, "")'),
]

# Those of them that alone leave it right, only slower.
HARMLESS = [("        break\n", "        continue\n"), ("            seen.add(n)\n", "            seen.add(cell)\n")]

ONE_AXIS = [
    'print("R" * (goal[1] - start[1]))\n',
    'print("L" * (start[1] - goal[1]))\n',
    'print("D" * (goal[0] - start[0]))\n',
    'print("U" * (start[0] - goal[0]))\n',
]

CORNER = """\
r, c = start
path = ""
while r != goal[0]:
    path += "D" if r < goal[0] else "U"
    r += 1 if r < goal[0] else -1
while c != goal[1]:
    path += "R" if c < goal[1] else "L"
    c += 1 if c < goal[1] else -1
print(path)
"""

CORNER_MISTAKES = [
    ('"D" if r < goal[0] else "U"', '"U" if r < goal[0] else "D"'),
    ('"R" if c < goal[1] else "L"', '"L" if c < goal[1] else "R"'),
    ("while r != goal[0]:", "while r < goal[0]:"),
    ("while c != goal[1]:", "while c > goal[1]:"),
    ("print(path)", "print(r, c)"),
    ("print(path)", "print path"),
    ('path = ""\n', ""),
]

GREEDY = """\
r, c = start
path = ""
for i in range(30):
    for m, (a, b) in moves.items():
        n = (r + a, c + b)
        if n in free and abs(n[0] - goal[0]) + abs(n[1] - goal[1]) < abs(r - goal[0]) + abs(c - goal[1]):
            r, c = n
            path += m
            break
print(path)
"""

RANDOM = """\
import random
path = ""
for i in range(20):
    path += random.choice("UDLR")
print(path)
"""

KINDS = {
    "one axis": Kind(46, repeated(ONE_AXIS, (5, 2, 2, 1))),
    "corner": Kind(8, [CORNER]),
    "corner with a mistake": Kind(8, with_mistakes(CORNER, CORNER_MISTAKES)),
    "greedy": Kind(4, [GREEDY]),
    "random": Kind(6, [RANDOM]),
    "constant": Kind(6, [constant_moves]),
    "search with a mistake": Kind(16, with_mistakes(SEARCH, SEARCH_MISTAKES)),
    "search": Kind(6, [SEARCH]),
}
