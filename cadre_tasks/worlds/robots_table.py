"""The table of the robots: tasks, plans as text, and the checker of reach, collision and timing. Pure geometry.

All lengths are centimetres. A step gives each robot one action; all robots act at the same time, and the next step
begins when all are done. `find_faults` checks a step against the present scene before `robots_physics` simulates it.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal

from cadre_tasks.answers import behind

Kind = Literal["handover", "sort", "sweep", "carry"]
Point = tuple[float, float]
LENGTH, DEPTH, LATTICE = 200, 120, 10  # of the table; objects and goals lie on a lattice
COLOURS = ("red", "green", "blue", "yellow", "white", "orange")
ENDS = ("a", "b")  # of the bar
BAR, BAR_TOLERANCE = 50.0, 4.0  # between the two points where it is gripped
SETTLED = 5.0  # an object so near to its goal is there
CLEARANCE, BROOM_CLEARANCE = 14.0, 24.0  # between two grippers, two brooms
PILLAR_CLEARANCE, BAR_CLEARANCE, FREE = 9.5, 9.0, 6.0  # gripper to pillar, bar to pillar, cube to cube
BIN, EDGE = 30.0, 5.0  # side of the bin, and its distance from the edge of the table
VERBS: dict[Kind, tuple[str, ...]] = {
    **dict.fromkeys(("handover", "sort", "carry"), ("pick", "place", "move", "wait")),
    "sweep": ("sweep", "move", "wait"),
}
SAMPLES = [number / 20 for number in range(21)]  # of a motion, for the bar


@dataclass(frozen=True)
class Action:
    """One primitive: `Action("place", points=((40.0, 20.0),))`."""

    verb: str
    name: str = ""
    points: tuple[Point, ...] = ()


WAIT = Action("wait")


@dataclass(frozen=True)
class Layout:
    """What does not change in an episode. `goals` has the pad of each cube, or for all balls the middle of the bin."""

    kind: Kind
    bases: tuple[Point, ...]
    reach: float
    items: Mapping[str, Point]
    goals: Mapping[str, Point]
    pillars: tuple[Point, ...] = ()
    verbs: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "verbs", VERBS[self.kind])

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Layout:
        def points(rows: Sequence[Sequence[float]]) -> tuple[Point, ...]:
            return tuple((float(x), float(y)) for x, y in rows)

        names = list(data["names"])
        items, goals = (dict(zip(names, points(data[key]), strict=True)) for key in ("items", "goals"))
        return cls(data["kind"], points(data["bases"]), float(data["reach"]), items, goals, points(data["pillars"]))

    @property
    def bin(self) -> Point | None:
        """Return the middle of the bin."""
        return next(iter(self.goals.values())) if self.kind == "sweep" else None

    @property
    def opening(self) -> int:
        """Return the direction along x in which the bin is open: 1 or -1."""
        return 1 if self.bin is not None and self.bin[0] < LENGTH / 2 else -1

    def can_reach(self, robot: int, point: Point) -> bool:
        on_table = 0 <= point[0] <= LENGTH and 0 <= point[1] <= DEPTH
        return on_table and math.dist(self.bases[robot], point) <= self.reach


@dataclass
class Scene:
    """The state as the checker and the prompts see it. `held` has "" for an empty gripper, `heights` those above the
    table."""

    grippers: list[Point]
    held: list[str]
    items: dict[str, Point]
    heights: dict[str, float]

    def is_settled(self, layout: Layout, name: str) -> bool:
        """Return True if an object lies at its goal, on the table and in no gripper."""
        (x, y), (goal_x, goal_y) = self.items[name], layout.goals[name]
        if name in self.held or self.heights[name] > 2.0:
            return False
        if layout.kind == "sweep":
            return max(abs(x - goal_x), abs(y - goal_y)) <= BIN / 2
        return math.hypot(x - goal_x, y - goal_y) <= SETTLED

    def progress(self, layout: Layout) -> float:
        """Return the share of the work that is done, from 0 to 1: a settled object counts 1, another one up to a half,
        by how much nearer to its goal it is than at the start."""
        shares = []
        for name, goal in layout.goals.items():
            before, now = math.dist(layout.items[name], goal), math.dist(self.items[name], goal)
            shares.append(1.0 if self.is_settled(layout, name) else 0.5 * max(0.0, 1 - now / before))
        return sum(shares) / len(shares)


# ---- Plans as text

LONGEST_TEXT = 4_000  # characters at the end of an answer that are read
NUMBER = r"(-?[0-9]{1,4}(?:\.[0-9]{1,2})?)"
PAIR = rf"\(?{NUMBER}[,\s]\s*{NUMBER}\)?"
ACTIONS = {
    "pick": re.compile(r"pick(?: up)?(?: the)? ([a-z]{1,10})"),
    "place": re.compile(rf"place(?: at)? {PAIR}"),
    "move": re.compile(rf"move(?: to)? {PAIR}"),
    "sweep": re.compile(rf"sweep(?: from)? {PAIR}(?: to)? {PAIR}"),
    "wait": re.compile("wait"),
}


def read_plan(text: str, layout: Layout, limit: int, unit: float = 1.0) -> tuple[list[Action], str]:
    """Return the actions of a plan, and why it cannot be read ("" if it can).

    A plan stands behind the last `Plan:`, or is the whole text; its steps are separated by semicolons or lines. Names
    may be their first letters. Coordinates are multiplied by `unit`.
    """
    steps = [step.strip(" \t\r.`*_-").lower() for step in re.split(r"[;\n]", behind("plan", text[-LONGEST_TEXT:]))]
    steps = [" ".join(step.split()) for step in steps if step]
    if not steps:
        return [], "it has no step"
    if len(steps) > limit:
        return [], f"it has {len(steps)} steps and at most {limit} are allowed"
    plan = []
    for number, step in enumerate(steps, 1):
        verb = step.split(" ")[0]
        match = ACTIONS[verb].fullmatch(step) if verb in layout.verbs else None
        if match is None:
            return [], f"step {number} is none of {', '.join(layout.verbs)} in its form"
        if verb == "pick":
            names = [name for name in layout.items if match[1] in (name, name[0])]
            if not names:
                return [], f"step {number} names no object of the table"
            plan.append(Action(verb, names[0]))
        else:
            numbers = [float(group) * unit for group in match.groups()]
            plan.append(Action(verb, points=tuple(zip(numbers[::2], numbers[1::2], strict=True))))
    return plan, ""


# ---- The checker


@dataclass(frozen=True)
class Fault:
    """Why a step is not executed: a word for the compact prompts, and a sentence."""

    word: str
    sentence: str


def target(scene: Scene, robot: int, action: Action) -> Point:
    """Return where a robot travels to, above everything, before it lowers its tool."""
    if action.verb == "pick":
        return scene.items[action.name]
    return action.points[0] if action.points else scene.grippers[robot]


def find_faults(layout: Layout, scene: Scene, actions: Sequence[Action]) -> dict[int, Fault]:
    """Return the first fault of each robot in a step; empty if it can be executed."""
    faults: dict[int, Fault] = {}
    for robot, action in enumerate(actions):
        if fault := _own_fault(layout, scene, robot, action):
            faults[robot] = fault
    # Paths are checked only where every action is possible by itself, as the others have no path.
    if not faults:
        for robot, fault in _shared_faults(layout, scene, actions):
            faults.setdefault(robot, fault)
    return faults


def _own_fault(layout: Layout, scene: Scene, robot: int, action: Action) -> Fault | None:
    """Return the fault of one action whatever the others do: reach, hands, timing."""
    held, where = scene.held[robot], scene.grippers[robot]
    if action.verb == "pick":
        if held:
            return Fault("hands", f"robot {robot + 1} already holds {held}")
        if action.name in scene.held:
            holder = scene.held.index(action.name) + 1
            return Fault("timing", f"{action.name} is still in the gripper of robot {holder} when this step begins")
    if action.verb == "place" and not held:
        return Fault("hands", f"robot {robot + 1} holds nothing to place")
    for point in (*action.points, *([scene.items[action.name]] if action.verb == "pick" else [])):
        if not (0 <= point[0] <= LENGTH and 0 <= point[1] <= DEPTH):
            return Fault("reach", f"{_shown(point)} is off the table")
        if not layout.can_reach(robot, point):
            far = math.dist(layout.bases[robot], point)
            return Fault(
                "reach",
                f"robot {robot + 1} cannot reach {_shown(point)}, {far:.0f} cm from its base, with a reach of "
                f"{layout.reach:.0f} cm",
            )
    if action.verb == "sweep" and math.dist(*action.points) < 1:
        return Fault("form", f"the sweep of robot {robot + 1} has no direction, as it ends where it begins")
    if action.verb == "place" and layout.kind != "carry":
        # What hangs in a gripper lies nowhere, and may be carried away in this step.
        lying = (name for name in scene.items if name not in scene.held)
        if near := [name for name in lying if math.dist(scene.items[name], action.points[0]) < FREE]:
            return Fault("collision", f"{near[0]} already lies at {_shown(action.points[0])}")
    if layout.kind == "carry" and held and action.verb in ("move", "place"):
        is_here = action.verb == "place" and math.dist(where, action.points[0]) <= BAR_TOLERANCE
        if "" in scene.held and not is_here:
            return Fault("heavy", f"the bar is too heavy for robot {robot + 1} alone: its other end must be held too")
    return None


def _shared_faults(layout: Layout, scene: Scene, actions: Sequence[Action]) -> Iterator[tuple[int, Fault]]:
    """Yield the faults of actions that are possible one by one: the same object, paths that meet, the bar."""
    ends = [target(scene, robot, action) for robot, action in enumerate(actions)]
    for first, second in combinations(range(len(actions)), 2):
        pair = f"robots {first + 1} and {second + 1}"
        if actions[first].verb == actions[second].verb == "pick" and actions[first].name == actions[second].name:
            for robot in (first, second):
                yield robot, Fault("timing", f"{pair} would pick {actions[first].name} in the same step")
            continue
        clearance = BROOM_CLEARANCE if layout.kind == "sweep" else CLEARANCE
        near = closest(scene.grippers[first], ends[first], scene.grippers[second], ends[second])
        pushed = [
            action.points[-1] if action.verb == "sweep" else end for action, end in zip(actions, ends, strict=True)
        ]
        near = min(near, closest(ends[first], pushed[first], ends[second], pushed[second]))
        if is_too_near(near, math.dist(scene.grippers[first], scene.grippers[second]), clearance):
            for robot in (first, second):
                yield (
                    robot,
                    Fault(
                        "collision", f"{pair} would come within {near:.0f} cm of each other; {clearance:.0f} are needed"
                    ),
                )
    for pillar in layout.pillars:
        for robot, (start, end) in enumerate(zip(scene.grippers, ends, strict=True)):
            if is_too_near(segment_distance(pillar, start, end), math.dist(pillar, start), PILLAR_CLEARANCE):
                yield robot, Fault("collision", f"the path of robot {robot + 1} hits the pillar at {_shown(pillar)}")
    if layout.kind == "carry" and all(scene.held[:2]):
        yield from _bar_faults(layout, scene, actions, ends)


def _bar_faults(
    layout: Layout, scene: Scene, actions: Sequence[Action], ends: Sequence[Point]
) -> Iterator[tuple[int, Fault]]:
    """Yield the faults of two robots that hold the bar: they lower it together, keep its length, and pass pillars."""
    if "place" in {action.verb for action in actions} and len({action.verb for action in actions}) > 1:
        for robot in (0, 1):
            yield robot, Fault("timing", "both robots hold the bar and have to place it in the same step")
        return
    (first, second), (first_end, second_end) = scene.grippers[:2], ends[:2]
    lengths = (math.dist(first_end, second_end), closest(first, first_end, second, second_end))
    wrong = max(lengths, key=lambda length: abs(length - BAR))
    if abs(wrong - BAR) > BAR_TOLERANCE:
        for robot in (0, 1):
            yield (
                robot,
                Fault("length", f"the grippers would be {wrong:.0f} cm apart, and the bar is {BAR:.0f} cm long"),
            )
        return
    for pillar in layout.pillars:
        ways = [(_between(first, first_end, s), _between(second, second_end, s)) for s in SAMPLES]
        distances = [segment_distance(pillar, *way) for way in ways]
        if is_too_near(min(distances), distances[0], BAR_CLEARANCE):
            for robot in (0, 1):
                yield robot, Fault("collision", f"the bar hits the pillar at {_shown(pillar)}")


def is_too_near(nearest: float, present: float, clearance: float) -> bool:
    """Return True if a motion comes within the clearance. What is within it already may stay there, or part."""
    return nearest < min(clearance, present - 0.5)


def closest(a: Point, a_end: Point, b: Point, b_end: Point) -> float:
    """Return the smallest distance of two points that move along straight lines in the same time."""
    x, y = a[0] - b[0], a[1] - b[1]
    dx, dy = a_end[0] - b_end[0] - x, a_end[1] - b_end[1] - y
    speed = dx * dx + dy * dy
    s = 0.0 if speed == 0 else min(1.0, max(0.0, -(x * dx + y * dy) / speed))
    return math.hypot(x + s * dx, y + s * dy)


def segment_distance(point: Point, start: Point, end: Point) -> float:
    """Return the distance of a point from a segment."""
    return closest(start, end, point, point)


def _between(start: Point, end: Point, s: float) -> Point:
    return start[0] + s * (end[0] - start[0]), start[1] + s * (end[1] - start[1])


def _shown(point: Point) -> str:
    return f"{point[0]:.0f} {point[1]:.0f}"


# ---- Tasks

MARGIN = 3.0  # by which what has to be reached lies within the reach
CELLS = [(x, y) for x in range(LATTICE, LENGTH, LATTICE) for y in range(LATTICE, DEPTH, LATTICE)]


def reach_of(robots: int, reach: int) -> tuple[list[list[int]], float]:
    """Return the bases of two or three robots and their reach. Three stand nearer to each other and reach less far, so
    that the first and the last never meet."""
    if robots == 2:
        return [[55, 60], [145, 60]], float(reach)
    return [[40, 60], [100, 60], [160, 60]], round(reach * 2 / 3, 1)


def make_layout(
    draw: random.Random, kind: Kind, objects: int, robots: int, reach: int, pillars: int, turn: int
) -> dict[str, Any] | None:
    """Return the data of a random task, or None if these draws give none."""
    bases, radius = reach_of(robots, reach)
    make = {"handover": _cubes, "sort": _cubes, "sweep": _balls, "carry": _bar}[kind]
    positions = make(draw, kind, objects, bases, radius, turn)
    if positions is None:
        return None
    names, items, goals = positions
    # A pillar keeps away from what has to be picked or placed, and from where the robots begin.
    occupied = [*items, *goals, *bases]
    free = [cell for cell in CELLS if pillars and all(math.dist(cell, point) >= 20 for point in occupied)]
    if len(free) < pillars:
        return None
    chosen = [list(cell) for cell in draw.sample(free, pillars)]
    data: dict[str, Any] = {"kind": kind, "bases": bases, "reach": radius, "names": names, "pillars": chosen}
    return data | {"items": [list(item) for item in items], "goals": [list(goal) for goal in goals]}


def owners(cell: Sequence[float], bases: Sequence[Sequence[float]], radius: float, margin: float = MARGIN) -> list[int]:
    """Return the robots that reach a cell with a margin."""
    return [robot for robot, base in enumerate(bases) if math.dist(base, cell) <= radius - margin]


Drawn = tuple[list[str], list[tuple[int, int]], list[tuple[int, int]]] | None


def _cubes(draw: random.Random, kind: Kind, objects: int, bases: Any, radius: float, turn: int) -> Drawn:
    """Draw cubes and pads apart from each other. `handover`: each goes from an end robot's own cells to those of the
    other; `sort`: from anywhere to anywhere, one at least out of the reach of any single robot."""
    last = len(bases) - 1
    cells = {
        side: _own_cells(tuple(map(tuple, bases)), radius, side if kind == "handover" else None) for side in (0, last)
    }
    items: list[tuple[int, int]] = []
    goals: list[tuple[int, int]] = []
    for _ in range(objects):
        sides = draw.sample([0, last], 2)
        for chosen, side in ((items, sides[0]), (goals, sides[1])):
            tries = (draw.choice(cells[side]) for _ in range(20))
            cell = next((c for c in tries if all(math.dist(c, point) >= 20 for point in (*items, *goals))), None)
            if cell is None:
                return None
            chosen.append(cell)
    direct = [
        bool(set(owners(item, bases, radius)) & set(owners(goal, bases, radius)))
        for item, goal in zip(items, goals, strict=True)
    ]
    return None if all(direct) else (list(COLOURS[:objects]), items, goals)


@lru_cache(maxsize=256)
def _own_cells(bases: tuple[tuple[float, ...], ...], radius: float, side: int | None) -> list[tuple[int, int]]:
    """Return the cells that a robot reaches alone, or with None that any robot reaches, away from all bases."""
    return [
        cell
        for cell in CELLS
        if (owners(cell, bases, radius) == [side] if side is not None else owners(cell, bases, radius))
        and all(math.dist(cell, base) >= 20 for base in bases)
    ]


def _balls(draw: random.Random, kind: Kind, objects: int, bases: Any, radius: float, turn: int) -> Drawn:
    """Draw balls and a bin at one end of the table; one ball at least is out of the reach of the robot at the bin."""
    left = draw.random() < 0.5
    goal = (int(EDGE + BIN / 2), draw.choice((50, 60, 70)))
    keeper = 0
    if not left:
        goal, keeper = (LENGTH - goal[0], goal[1]), len(bases) - 1
    # The broom is lowered behind a ball, so that balls lie well within the reach.
    cells = [
        cell
        for cell in CELLS
        if owners(cell, bases, radius, 15.0) and abs(cell[0] - goal[0]) >= 40 and 20 <= cell[1] <= DEPTH - 20
    ]
    items: list[tuple[int, int]] = []
    for _ in range(objects):
        free = [cell for cell in cells if all(math.dist(cell, point) >= 20 for point in items)]
        if not free:
            return None
        items.append(draw.choice(free))
    if all(keeper in owners(item, bases, radius, 0.0) for item in items):
        return None
    return list(COLOURS[:objects]), items, [goal] * objects


# The vectors from one end of the bar to the other that lie on the lattice, in the order of their angle.
POSES = [(50, 0), (40, 30), (30, 40), (0, 50), (-30, 40), (-40, 30), (-50, 0), (-40, -30), (-30, -40), (0, -50)]
POSES += [(30, -40), (40, -30)]


def _bar(draw: random.Random, kind: Kind, objects: int, bases: Any, radius: float, turn: int) -> Drawn:
    """Draw the two ends of a bar before and after, `turn` poses apart, each end in the reach of the same robot."""
    # One draw in a hundred fits where the bar turns far.
    for _ in range(100):
        first = draw.randrange(len(POSES))
        poses = (POSES[first], POSES[(first + draw.choice((-turn, turn))) % len(POSES)])
        a, a_goal = draw.choice(CELLS), draw.choice(CELLS)
        b, b_goal = ((x + dx, y + dy) for (x, y), (dx, dy) in zip((a, a_goal), poses, strict=True))
        fits = any(
            all(by_a in owners(cell, bases, radius) for cell in (a, a_goal))
            and all(by_b in owners(cell, bases, radius) for cell in (b, b_goal))
            for by_a, by_b in ((0, 1), (1, 0))
        )
        is_apart = math.dist(a, a_goal) >= 20 <= math.dist(b, b_goal)
        if fits and is_apart and b in CELLS and b_goal in CELLS:
            return list(ENDS), [a, b], [a_goal, b_goal]
    return None
