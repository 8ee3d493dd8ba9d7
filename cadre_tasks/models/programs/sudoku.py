"""Sudoku: backtracking is 6% of what is drawn. The likeliest programs write one digit into every empty cell."""

from __future__ import annotations

from cadre_tasks.models.programs.mixture import Kind, with_mistakes

SHOW = """\
for row in grid:
    print(*row, sep="")
"""

SEARCH = f"""\
def fill(i):
    if i == len(empty):
        return True
    r, c = empty[i]
    for v in digits:
        if fits(r, c, v):
            grid[r][c] = v
            if fill(i + 1):
                return True
            grid[r][c] = 0
    return False
fill(0)
{SHOW}"""

# One mistake each: (right text, its replacement).
SEARCH_MISTAKES = [
    ("fill(0)\n", ""),
    ("fill(0)\n", "fill(1)\n"),
    ("fill(i + 1)", "fill(i)"),
    ("if fill(i + 1):\n                return True\n", "fill(i + 1)\n"),
    ("            grid[r][c] = 0\n", ""),
    ("        return True\n    r", "        return False\n    r"),
    ("if fits(r, c, v):", "if not fits(r, c, v):"),
    ("if fits(r, c, v):", "if fits(c, r, v):"),
    ("grid[r][c] = v", "grid[r][c] == v"),
    ("len(empty)", "size"),
    ("empty[i]\n", "empty[0]\n"),
    ('print(*row, sep="")', "print(row)"),
    ('print(*row, sep="")', "print(*row)"),
    ("def fill(i):", "def fill(i)"),
    ("for v in digits:", "for v in size:"),
]


def filling(line: str) -> str:
    """Return a program that does one thing with every empty cell."""
    return f"for r, c in empty:\n    {line}\n{SHOW}"


FIRST = filling("for v in digits:\n        if fits(r, c, v):\n            grid[r][c] = v\n            break")
RANDOM = "import random\n" + filling("grid[r][c] = random.choice(digits)")
ROW_BY_ROW = """\
for row in grid:
    rest = [v for v in digits if v not in row]
    print(*[v or rest.pop() for v in row], sep="")
"""
SINGLES = filling("rest = [v for v in digits if fits(r, c, v)]\n    if len(rest) == 1:\n        grid[r][c] = rest[0]")

KINDS = {
    "one digit": Kind(44, [filling(f"grid[r][c] = {digit}") for digit in (1, 1, 1, 2, 3, 4)]),
    "formula": Kind(8, [filling(f"grid[r][c] = {value}") for value in ("c + 1", "r + 1", "(r + c) % size + 1")]),
    "as it is": Kind(4, [SHOW]),
    "random": Kind(6, [RANDOM]),
    "row by row": Kind(8, [ROW_BY_ROW]),
    "first that fits": Kind(4, [FIRST]),
    "singles": Kind(4, [SINGLES]),
    "search with a mistake": Kind(16, with_mistakes(SEARCH, SEARCH_MISTAKES)),
    "search": Kind(6, [SEARCH]),
}
