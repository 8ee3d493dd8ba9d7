"""Sources of Sokoban levels: a generator that plays in reverse, and folders of levels in the usual text form."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cadre import random_keys
from cadre.errors import ConfigError, DataError
from cadre.file_limits import MIB, read_bytes
from cadre.rows import read_json_lines
from cadre_tasks.answers import MOVES, Cell

MOST_BYTES = 64 * MIB  # of a file of levels in text
PULLS = 60  # moves played in reverse, a box
TRIES = 8  # choices of goals in one room
USUAL = str.maketrans(" .$@", ".GBS")  # the usual marks of level files -> those of the prompts; #, * and + are the same
DIRECTIONS = tuple(MOVES.values())


def generate(size: int, boxes: int, admits: Callable[..., bool], *seed: str | int) -> list[str]:
    """Return a drawing of a solvable level, the same for the same seed, whose walls and goals `admits` (a split)
    accepts.

    Boxes start on the goals and are pulled off by a random walk; played the other way round, that walk solves the
    level. Every box ends at least 2 from the goal that it started on, and none on a goal.
    """
    generator = random_keys.generator("sokoban", size, boxes, *seed)
    while True:
        floor = carve(generator, size)
        cells = sorted(floor)
        for _ in range(TRIES):
            goals = generator.sample(cells, boxes)
            pulled = pull(generator, floor, goals) if admits(*draw(size, floor, goals)) else None
            if pulled:
                walker, ends = pulled
                return draw(size, floor, goals, ends, walker)


def carve(generator: random.Random, size: int) -> set[Cell]:
    """Return the floor of a room: the cells that a random walk over half to nine tenths of the inner cells
    has visited."""
    inner = range(1, size - 1)
    cell = (generator.choice(inner), generator.choice(inner))
    floor, target_size = {cell}, generator.randint(len(inner) ** 2 // 2, len(inner) ** 2 * 9 // 10)
    while len(floor) < target_size:
        row, column = generator.choice(DIRECTIONS)
        target = (cell[0] + row, cell[1] + column)
        if target[0] in inner and target[1] in inner:
            cell = target
            floor.add(cell)
    return floor


def pull(generator: random.Random, floor: set[Cell], goals: list[Cell]) -> tuple[Cell, list[Cell]] | None:
    """Return (walker, boxes) after a random walk in reverse from the solved level, or None if a box has not come far. A
    walker that steps away from a box may take it along: the reverse of a push."""
    boxes = list(goals)
    # Sorted, so that the draw does not depend on the order of a set.
    walker = generator.choice(sorted(floor - set(goals)))
    for _ in range(PULLS * len(boxes)):
        row, column = generator.choice(DIRECTIONS)
        # The walker steps to `target`; a box `behind` it may follow into its old cell.
        target, behind = (walker[0] + row, walker[1] + column), (walker[0] - row, walker[1] - column)
        if target not in floor or target in boxes:
            continue
        # Mostly pull, as a walk that seldom pulls leaves the boxes near their goals.
        if behind in boxes and generator.random() < 0.8:
            boxes[boxes.index(behind)] = walker
        walker = target
    is_far = all(abs(b[0] - g[0]) + abs(b[1] - g[1]) >= 2 for b, g in zip(boxes, goals, strict=True))
    return (walker, boxes) if is_far and not set(boxes) & set(goals) else None


def draw(
    size: int, floor: set[Cell], goals: list[Cell], boxes: Sequence[Cell] = (), walker: Cell | None = None
) -> list[str]:
    """Return the rows of a level whose boxes are not on goals."""
    rows = [["#"] * size for _ in range(size)]
    # Later marks overwrite earlier ones.
    for mark, cells in ((".", floor), ("G", goals), ("B", boxes)):
        for row, column in cells:
            rows[row][column] = mark
    if walker is not None:
        rows[walker[0]][walker[1]] = "+" if walker in goals else "S"
    return ["".join(row) for row in rows]


@functools.cache
def read_folder(folder: str) -> dict[tuple[str, ...], str]:
    """Return the name of every level by its rows, in the order of a folder's .txt files, as Boxoban has them, and
    .jsonl files of {"grid": text}. A repeated level counts once.

    Raises ConfigError where the folder holds none, or one that is not a level, DataError for a line that is no row.
    """
    root = Path(folder).expanduser()
    files = sorted(path for path in root.rglob("*") if path.suffix in {".txt", ".jsonl"}) if folder else []
    levels: dict[tuple[str, ...], str] = {}
    for path in files:
        drawings = _of_rows(path) if path.suffix == ".jsonl" else _of_text(path)
        for number, rows_drawn in enumerate(drawings):
            drawing = [row.translate(USUAL) for row in rows_drawn]
            if drawing:
                levels.setdefault(tuple(drawing), f"{path.relative_to(root).with_suffix('')}-{number}")
    if not levels:
        raise ConfigError(
            f"settings.levels: {folder!r} holds no levels; expected a folder of .txt or .jsonl files, such as a "
            "checkout of github.com/google-deepmind/boxoban-levels. Name one, or put them into boxoban in $CADRE_DATA."
        )
    for rows, name in levels.items():
        _check(folder, name, rows)
    return levels


def _of_rows(path: Path) -> Iterator[list[str]]:
    for line, row in read_json_lines(path):
        if not isinstance(row.get("grid"), str):
            raise DataError(
                f"settings.levels: {path}, line {line}: got the fields {', '.join(row) or 'none'}; expected `grid`, "
                "a text."
            )
        yield row["grid"].splitlines()


def _of_text(path: Path) -> list[list[str]]:
    """Return the drawings of a text file; lines that draw nothing separate the levels."""
    drawings: list[list[str]] = [[]]
    for line in read_bytes(path, MOST_BYTES).decode(errors="replace").splitlines():
        if line.startswith("#"):
            drawings[-1].append(line)
        elif drawings[-1]:
            drawings.append([])
    return drawings


def _check(folder: str, name: str, rows: Sequence[str]) -> None:
    marks = "".join(rows)
    goals, boxes = (sum(map(marks.count, kinds)) for kinds in ("G*+", "B*"))
    walkers = marks.count("S") + marks.count("+")
    strange = set(marks) - set("#.GB*S+")
    if walkers != 1 or boxes == 0 or goals != boxes or strange:
        raise ConfigError(
            f"settings.levels: level {name} of {folder} has {walkers} walkers, {boxes} boxes, {goals} goals and "
            f"strange marks {sorted(strange)}; expected one walker, as many goals as boxes, and the marks # @ $ . * "
            "+ and space."
        )
