"""Small Python repositories with one seeded bug each, for the task `repair`.

`draw_repository` draws a template, a name for its package, and one of the template's bugs: a place where a rule of
`RULES` applies and changes a third of the results. The templates are ours, so their bugs and the expected results are
found by running them in this process; what a model writes never runs here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

CALLS = 16
PACKAGES = ("alder", "birch", "cedar", "elm", "fir", "hazel", "juniper", "larch", "maple", "oak", "pine", "rowan")
# (kind of bug, right text, wrong text)
RULES = (
    ("boundary", " <= ", " < "),
    ("boundary", " >= ", " > "),
    ("boundary", " < ", " <= "),
    ("boundary", " > ", " >= "),
    ("sign", " - ", " + "),
    ("sign", " + ", " - "),
    ("sign", " += ", " -= "),
    ("extreme", "max(", "min("),
    ("extreme", "min(", "max("),
    ("order", "sorted(", "list("),
    ("order", ", reverse=True", ""),
    ("index", "[1:]", "[2:]"),
    ("index", "[-1]", "[0]"),
    ("index", "[0]", "[-1]"),
    ("condition", " and ", " or "),
    ("condition", " not in ", " in "),
    ("default", ", 0)", ", 1)"),
    ("default", "range(1, ", "range("),
    ("step left out", ".lower()", ""),
    ("step left out", " % 7", ""),
    ("step left out", " // 2", ""),
)
Arguments = Callable[[random.Random], list[Any]]


def _spans(draw: random.Random) -> list[Any]:
    starts = [draw.randrange(30) for _ in range(draw.randint(2, 7))]
    return [[[start, start + draw.randint(1, 8)] for start in starts]]


def _words(draw: random.Random) -> list[Any]:
    pool = ["Tea", "tea", "egg", "Egg", "rye", "oat", "plum", "fig", "a", "of"]
    return [" ".join(draw.choice(pool) for _ in range(draw.randint(3, 14))), draw.randint(1, 3)]


def _moves(draw: random.Random) -> list[Any]:
    return [[[draw.choice("abcd"), draw.randint(-6, 9)] for _ in range(draw.randint(3, 10))], draw.randint(0, 5)]


def _marks(draw: random.Random) -> list[Any]:
    return [[[name, draw.randint(1, 9)] for name in draw.sample("abcdefgh", draw.randint(3, 8))], draw.randint(3, 6)]


def _grid(draw: random.Random) -> list[Any]:
    width = draw.randint(2, 5)
    return [[[draw.randint(0, 20) for _ in range(width)] for _ in range(draw.randint(2, 5))]]


# Of each template the files of the package PKG, whose `main.run` is called, a description, and the arguments of a call.
TEMPLATES: dict[str, tuple[str, dict[str, str], Arguments]] = {
    "spans": (
        "`run(spans)` takes [begin, end] pairs, of which those that overlap or touch count as one. It returns the "
        "length they cover, the longest gap between them (0 if there is none), and how many are left after merging.",
        {
            "PKG/spans.py": '''"""Spans of whole numbers."""


def merge(spans):
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def length(spans):
    return sum(end - begin for begin, end in spans)
''',
            "PKG/main.py": """from PKG.spans import length, merge


def run(spans):
    merged = merge(spans)
    gaps = [after[0] - before[1] for before, after in zip(merged, merged[1:])]
    return [length(merged), max([*gaps, 0]), len(merged)]
""",
        },
        _spans,
    ),
    "words": (
        "`run(text, count)` compares words without case. It returns the `count` most frequent words of two letters or "
        "more (equally frequent ones by the alphabet), and the length of the longest word.",
        {
            "PKG/count.py": '''"""Frequencies of words."""


def frequencies(text):
    counts = {}
    for word in text.lower().split():
        if len(word) >= 2:
            counts[word] = counts.get(word, 0) + 1
    return counts


def ranked(counts):
    return sorted(sorted(counts), key=lambda word: counts[word], reverse=True)
''',
            "PKG/main.py": """from PKG.count import frequencies, ranked


def run(text, count):
    best = ranked(frequencies(text))[:count]
    return [best, max(len(word) for word in text.split())]
""",
        },
        _words,
    ),
    "stock": (
        "`run(moves, least)` books [item, amount] moves one after the other; a move that would leave less than nothing "
        "is skipped. It returns the stock of every item that was booked, by name, the items with less than `least`, "
        "and the number of skipped moves.",
        {
            "PKG/book.py": '''"""Bookings of a store."""


def book(moves):
    stock, skipped = {}, 0
    for item, amount in moves:
        left = stock.get(item, 0) + amount
        if left < 0:
            skipped += 1
        else:
            stock[item] = left
    return stock, skipped
''',
            "PKG/main.py": """from PKG.book import book


def low(stock, least):
    return [item for item in sorted(stock) if stock[item] < least]


def run(moves, least):
    stock, skipped = book(moves)
    return [[[item, stock[item]] for item in sorted(stock)], low(stock, least), skipped]
""",
        },
        _moves,
    ),
    "marks": (
        "`run(marks, least)` takes [name, points]. It returns the places by points, the most first, equal points "
        "sharing a place ([name, place], by place and name), the names with at least `least` points, and the median "
        "of the points (the upper one of two).",
        {
            "PKG/ranks.py": '''"""Places and medians."""


def places(marks):
    return [[name, 1 + sum(other > points for _, other in marks)] for name, points in marks]


def median(values):
    return sorted(values)[len(values) // 2]
''',
            "PKG/main.py": """from PKG.ranks import median, places


def run(marks, least):
    ranked = sorted(places(marks), key=lambda pair: (pair[1], pair[0]))
    passed = sorted(name for name, points in marks if points >= least)
    return [ranked, passed, median([points for _, points in marks])]
""",
        },
        _marks,
    ),
    "grid": (
        "`run(grid)` takes rows of numbers. It returns the largest sum of a column, the peaks (cells greater than the "
        "neighbours above, below, left and right) as [row, column] in reading order, and the sum of the diagonal "
        "modulo 7.",
        {
            "PKG/cells.py": '''"""Cells of a grid."""


def neighbours(grid, row, column):
    for down, right in ((-1, 0), (0, -1), (0, 1), (1, 0)):
        y, x = row + down, column + right
        if 0 <= y < len(grid) and 0 <= x < len(grid[0]):
            yield grid[y][x]


def peaks(grid):
    cells = [(row, column) for row in range(len(grid)) for column in range(len(grid[0]))]
    return [[row, column] for row, column in cells if grid[row][column] > max(neighbours(grid, row, column))]
''',
            "PKG/main.py": """from PKG.cells import peaks


def run(grid):
    diagonal = sum(grid[place][place] for place in range(min(len(grid), len(grid[0]))))
    return [max(sum(column) for column in zip(*grid)), peaks(grid), diagonal % 7]
""",
        },
        _grid,
    ),
}


def run_template(files: Mapping[str, str], calls: list[list[Any]]) -> list[Any]:
    """Return the results of `main.run` of a template's own files, with `Error` in place of one that raises."""
    names: dict[str, Any] = {}
    for path in sorted(files, key=lambda path: path.endswith("main.py")):
        lines = [line for line in files[path].splitlines() if not line.startswith("from PKG")]
        exec("\n".join(lines), names)  # noqa: S102 - the files are those above
    results = []
    for arguments in calls:
        try:
            results.append(names["run"](*arguments))
        except (ArithmeticError, LookupError, TypeError, ValueError):
            results.append("Error")
    return results


@lru_cache
def find_bugs(template: str) -> tuple[tuple[str, str, int, str, str], ...]:
    """Return (kind, path, offset, right, wrong) of every bug that changes a third of a hundred calls."""

    def candidates() -> Iterator[tuple[str, str, int, str, str]]:
        for kind, right, wrong in RULES:
            for path, text in files.items():
                offset = text.find(right)
                while offset >= 0:
                    yield kind, path, offset, right, wrong
                    offset = text.find(right, offset + 1)

    _, files, arguments = TEMPLATES[template]
    draw = random.Random(f"bugs of {template}")
    calls = [arguments(draw) for _ in range(100)]
    expected = run_template(files, calls)
    bugs = []
    for bug in candidates():
        got = run_template({**files, bug[1]: insert_bug(files[bug[1]], bug)}, calls)
        if 3 * sum(result != right_result for result, right_result in zip(got, expected, strict=True)) >= len(calls):
            bugs.append(bug)
    return tuple(bugs)


def insert_bug(text: str, bug: tuple[str, str, int, str, str]) -> str:
    """Return the text of a file with its bug."""
    _, _, offset, right, wrong = bug
    return text[:offset] + wrong + text[offset + len(right) :]


def draw_repository(draw: random.Random, accepts: Callable[[str], bool] = bool) -> dict[str, Any] | None:
    """Return the data of a task, or None if `accepts` does not take the text that identifies the template and its bug,
    whatever the package is called."""
    template = draw.choice(sorted(TEMPLATES))
    description, right_files, arguments = TEMPLATES[template]
    bug = draw.choice(find_bugs(template))
    if not accepts(repr((template, bug))):
        return None
    kind, path, *_ = bug
    calls = [arguments(draw) for _ in range(8 * CALLS)]
    buggy_files = {**right_files, path: insert_bug(right_files[path], bug)}
    expected, got = run_template(right_files, calls), run_template(buggy_files, calls)
    # The calls that show the bug come first, so that a patch has to mend it, and the first is the example.
    order = sorted(range(len(calls)), key=lambda index: expected[index] == got[index])
    chosen = [order[0], *order[1 : CALLS // 2], *order[-CALLS // 2 :]]
    package = draw.choice(PACKAGES)

    def named(files: Mapping[str, str]) -> dict[str, str]:
        return {name.replace("PKG", package): text.replace("PKG", package) for name, text in files.items()}

    return {
        "package": package,
        "description": description,
        "files": {**named(buggy_files), f"{package}/__init__.py": "", "README.md": f"# {package}\n\n{description}\n"},
        "calls": [calls[index] for index in chosen],
        "expected": [expected[index] for index in chosen],
        "got": got[chosen[0]],
        "kind": kind,
        "fixed": {path.replace("PKG", package): named(right_files)[path.replace("PKG", package)]},
    }
