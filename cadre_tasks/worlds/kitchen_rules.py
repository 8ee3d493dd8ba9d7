"""The rules of the cooperative kitchen of Overcooked-AI (Carroll et al. 2019, arXiv 1910.05789), for two cooks.

Onions go into a pot, three make a soup, which cooks for 20 steps, is taken with a dish and served for 20 points. The
layouts are the published ones. `lab/kitchen.py` compares states and rewards with the package overcooked-ai 1.1 on
random episodes: there a cook starts the pot with empty hands, and a soup may be started with fewer onions, which nobody
ordered. `auto` is the rule of the paper, by which a pot starts with its third onion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

Cell = tuple[int, int]  # column, row
# The cooks begin at 1 and 2. X counter, O onions, D dishes, P pot, S where soup is served.
LAYOUTS = {
    "cramped_room": ("XXPXX", "O  2O", "X1  X", "XDXSX"),
    "asymmetric_advantages": ("XXXXXXXXX", "O XSXOX S", "X   P 1 X", "X2  P   X", "XXXDXDXXX"),
    "coordination_ring": ("XXXPX", "X 1 P", "D2X X", "O   X", "XOSXX"),
    "forced_coordination": ("XXXPX", "O X1P", "O2X X", "D X X", "XXXSX"),
    "counter_circuit": ("XXXPPXXX", "X  2   X", "D XXXX S", "X  1   X", "XXXOOXXX"),
}
DIRECTIONS: dict[str, Cell] = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
MOVES = (*DIRECTIONS, "stay", "interact")
COOKING_STEPS, ONIONS, SOUP_POINTS = 20, 3, 20
# The package's rewards for parts of the work.
PLACEMENT, DISH_PICKUP, SOUP_PICKUP = 3, 3, 5


@dataclass
class Soup:
    """What is in a pot, or was taken from one; `tick` counts the steps that it has cooked, -1 before it is started."""

    onions: int = 0
    tick: int = -1

    @property
    def is_cooking(self) -> bool:
        return 0 <= self.tick < COOKING_STEPS

    @property
    def is_ready(self) -> bool:
        return self.tick >= COOKING_STEPS

    @property
    def is_open(self) -> bool:
        """True if another onion can be added."""
        return self.tick < 0 and self.onions < ONIONS


Thing = str | Soup  # "onion", "dish", or a soup


@dataclass
class Cook:
    cell: Cell
    facing: str = "up"
    held: Thing | None = None


@dataclass
class Points:
    """Points of a step by cook: for served soups, and for parts of the work."""

    served: list[int] = field(default_factory=lambda: [0, 0])
    work: list[int] = field(default_factory=lambda: [0, 0])


class Layout:
    """The cells of a kitchen."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.letters = {(x, y): letter for y, row in enumerate(rows) for x, letter in enumerate(row)}
        self.starts = (self.cells("1")[0], self.cells("2")[0])
        self.floor = frozenset(cell for cell, letter in self.letters.items() if letter in " 12")

    def cells(self, letter: str) -> list[Cell]:
        return [cell for cell, here in self.letters.items() if here == letter]

    def distances(self, start: Cell, blocked: Collection[Cell] = ()) -> dict[Cell, int]:
        """Return the steps from a cell to every floor cell that can be reached."""
        steps, pending = {start: 0}, deque([start])
        while pending:
            cell = pending.popleft()
            for neighbour in neighbours(cell):
                if neighbour in self.floor and neighbour not in steps and neighbour not in blocked:
                    steps[neighbour] = steps[cell] + 1
                    pending.append(neighbour)
        return steps


class Kitchen:
    """A state; `step` changes it."""

    def __init__(self, layout: Layout, starts: Sequence[Cell] | None = None, auto: bool = False) -> None:
        self.layout, self.auto = layout, auto
        self.cooks = [Cook(cell) for cell in starts or layout.starts]
        self.pots = {cell: Soup() for cell in layout.cells("P")}
        self.counters: dict[Cell, Thing] = {}
        self.time = 0

    def step(self, moves: Sequence[str]) -> Points:
        """Apply the moves of both cooks at once, then let the pots cook. The first cook interacts first."""
        points = Points()
        # By the pots before the step, as in the package.
        filled = sum(soup.is_ready or soup.is_cooking or 0 < soup.onions < ONIONS for soup in self.pots.values())
        for index, move in enumerate(moves):
            if move == "interact":
                cook = self.cooks[index]
                cell = add(cook.cell, DIRECTIONS[cook.facing])
                letter, held = self.layout.letters[cell], cook.held
                if letter == "X" and held is not None and cell not in self.counters:
                    self.counters[cell], cook.held = held, None
                elif letter == "X" and held is None and cell in self.counters:
                    cook.held = self.counters.pop(cell)
                elif letter == "O" and held is None:
                    cook.held = "onion"
                elif letter == "D" and held is None:
                    dishes = sum(other.held == "dish" for other in self.cooks)
                    if dishes < filled and "dish" not in self.counters.values():
                        points.work[index] += DISH_PICKUP
                    cook.held = "dish"
                elif letter == "P":
                    self._use_pot(cell, index, points)
                elif letter == "S" and isinstance(held, Soup):
                    points.served[index] += SOUP_POINTS if held.onions == ONIONS else 0
                    cook.held = None
        self._walk(moves)
        self.time += 1
        for soup in self.pots.values():
            if soup.is_cooking:
                soup.tick += 1
        return points

    def _use_pot(self, cell: Cell, index: int, points: Points) -> None:
        cook, soup = self.cooks[index], self.pots[cell]
        if cook.held is None and soup.tick < 0 and soup.onions:
            soup.tick = 0
        elif cook.held == "dish" and soup.is_ready:
            cook.held, self.pots[cell] = soup, Soup()
            points.work[index] += SOUP_PICKUP
        elif cook.held == "onion" and soup.is_open:
            soup.onions, cook.held = soup.onions + 1, None
            points.work[index] += PLACEMENT
            if self.auto and soup.onions == ONIONS:
                soup.tick = 0

    def _walk(self, moves: Sequence[str]) -> None:
        """Turn and move both cooks; if they would end in one cell or change places, both stay where they are."""
        before = [cook.cell for cook in self.cooks]
        after = list(before)
        for index, (cook, move) in enumerate(zip(self.cooks, moves, strict=True)):
            if move in DIRECTIONS:
                cook.facing = move
                ahead = add(cook.cell, DIRECTIONS[move])
                after[index] = ahead if ahead in self.layout.floor else cook.cell
        if after[0] != after[1] and after != before[::-1]:
            for cook, cell in zip(self.cooks, after, strict=True):
                cook.cell = cell


def add(cell: Cell, direction: Cell) -> Cell:
    return cell[0] + direction[0], cell[1] + direction[1]


def neighbours(cell: Cell) -> list[Cell]:
    return [add(cell, direction) for direction in DIRECTIONS.values()]


def thing_name(thing: Thing | None) -> str:
    return "nothing" if thing is None else "soup" if isinstance(thing, Soup) else thing


# ---- Errands: walk to the nearest cell where something can be done, and do it

ERRANDS = ("onion", "dish", "pot", "serve", "put", "take", "wait")


def targets(kitchen: Kitchen, index: int, errand: str) -> tuple[list[list[Cell]], str]:
    """Return the cells at which a cook can do an errand now, in groups from the most to the least wanted, and why there
    are none."""
    cook, layout = kitchen.cooks[index], kitchen.layout
    held = thing_name(cook.held)

    def pots(suits: Callable[[Soup], bool]) -> list[Cell]:
        return [cell for cell, soup in kitchen.pots.items() if suits(soup)]

    if errand in ("onion", "dish", "take") and cook.held is not None:
        return [], f"the hands hold {held}"
    if errand == "onion":
        return [layout.cells("O")], ""
    if errand == "dish":
        return [layout.cells("D")], ""
    if errand == "take":
        return [list(kitchen.counters)], "nothing lies on a counter within reach"
    if errand == "put":
        if cook.held is None:
            return [], "the hands are empty"
        free = [cell for cell in layout.cells("X") if cell not in kitchen.counters]
        other = layout.distances(kitchen.cooks[1 - index].cell)
        shared = [cell for cell in free if any(neighbour in other for neighbour in neighbours(cell))]
        return [shared, free], "no counter within reach is free"
    if errand == "serve":
        return ([layout.cells("S")], "") if held == "soup" else ([], "the hands hold no soup")
    if held == "onion":
        return [pots(lambda soup: soup.is_open)], "no pot within reach takes an onion"
    if held == "dish":
        return [pots(lambda soup: soup.is_ready), pots(lambda soup: soup.is_cooking)], "no soup cooks within reach"
    if held == "soup":
        return [], "the hands hold soup"
    full = pots(lambda soup: soup.tick < 0 and soup.onions == ONIONS)
    return [full, pots(lambda soup: soup.tick < 0 and soup.onions > 0)], "no pot within reach waits to be started"


def next_move(kitchen: Kitchen, index: int, errand: str) -> tuple[str, str]:
    """Return the next move of an errand, or "" and why it cannot be done. The errand is done by "interact"."""
    cook, layout = kitchen.cooks[index], kitchen.layout
    groups, reason = targets(kitchen, index, errand)
    partner = kitchen.cooks[1 - index].cell
    for cells in groups:
        # Around the other cook if there is a way, else towards where it stands.
        for blocked in ((partner,), ()):
            steps = layout.distances(cook.cell, blocked)
            ways = [(steps[stand], cell, stand) for cell in cells for stand in neighbours(cell) if stand in steps]
            best = min(ways)[1:] if ways else None
            if best is None:
                continue
            target, stand = best
            if stand != cook.cell:
                return _towards(layout, cook.cell, stand, blocked), ""
            facing = next(name for name, step in DIRECTIONS.items() if add(cook.cell, step) == target)
            if cook.facing != facing:
                return facing, ""
            soup = kitchen.pots.get(target)
            waits = cook.held == "dish" and soup is not None and soup.is_cooking
            return ("stay" if waits else "interact"), ""
    return "", reason or f"no {errand} within reach"


def _towards(layout: Layout, start: Cell, goal: Cell, blocked: Collection[Cell]) -> str:
    """Return the first move of a shortest way."""
    steps = layout.distances(goal, blocked)
    return min((steps[cell], name) for name, step in DIRECTIONS.items() if (cell := add(start, step)) in steps)[1]
