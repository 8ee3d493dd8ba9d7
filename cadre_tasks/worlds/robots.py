"""Two or three robots at a table, who act at once: short plans of primitives, a checker in words, physics in MuJoCo.

Each turn every robot writes a plan of at most `plan` steps. In a step each robot does one primitive (pick, place, move,
sweep, wait) and the next begins when all are done. `robots_table` checks each step before it is executed: one that is
out of reach, or in which robots collide or their timing is wrong, is not executed, and ends the turn with a sentence
about it. What is executed is simulated by `robots_physics`, and success is read from the simulated state alone. The
manner is that of RoCoBench (Mandi et al. 2023, arXiv 2307.04738); models, tasks and texts are our own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre import random_keys
from cadre.env import Env, Split
from cadre.envs import drawings
from cadre.envs.splits import drawn_tasks, in_split
from cadre.errors import ConfigError
from cadre.plugins import package
from cadre.types import Drawing, Image, Message, Observation, Reward, Task
from cadre_tasks.account import Account
from cadre_tasks.answers import behind
from cadre_tasks.worlds.relay import Prompts, Rewards
from cadre_tasks.worlds.robots_physics import Physics, load_mujoco
from cadre_tasks.worlds.robots_table import (
    BIN,
    DEPTH,
    LATTICE,
    LENGTH,
    WAIT,
    Action,
    Kind,
    Layout,
    Scene,
    find_faults,
    make_layout,
    read_plan,
)

ROLES = ("robot_1", "robot_2", "robot_3")
UNREADABLE, FAULT = -0.1, -0.05  # local rewards of a plan that cannot be read, and of a step that the checker stops
PROGRESS, SUCCESS = 0.8, 0.2  # the team's value of the state
RULES = """Robots work at a table of {length} by {depth} cm; a point is x y in cm, from the lower left corner. A robot
is {tool}, which travels in straight lines above everything but pillars, and reaches {reach:g} cm around its base.
{task}
All robots do a step at the same time, arrive at the same time, and begin the next step together. {tools} closer than
{clearance:g} cm to each other collide. A step that is not possible is not executed, and ends the turn."""
TASKS: dict[Kind, str] = {
    "handover": "Every cube has to lie on the pad of its colour. No robot reaches both: put a cube down where another "
    "can pick it up.",
    "sort": "Every cube has to lie on the pad of its colour. Where no robot reaches both, put the cube down where "
    "another can pick it up.",
    "sweep": "Every ball has to be in the bin, which is open to the {side}. Balls cannot be picked up.",
    "carry": "The bar has to lie with its ends a and b, 50 cm apart, at their goals. It is too heavy for one: each "
    "robot picks one end in its reach, both move in the same step so that the ends stay 50 cm apart all the way, and "
    "both place in the same step.",
}
HELP = {
    "pick": "pick NAME (travel to it, lower, close, raise)",
    "place": "place X Y (travel there, lower, open, raise)",
    "move": "move X Y (travel there)",
    "sweep": "sweep X Y to X Y (lower the broom at the first point and push it to the second; what is ahead of it, up "
    "to 7 cm to either side, is pushed along and stops 4 cm ahead of the second point)",
    "wait": "wait",
}
View = Literal["words", "picture"]


class Robots(Env):
    """The team form. Settings:

    kind     handover, sort, sweep or carry
    robots   2 or 3; `carry` has two
    objects  cubes or balls; `carry` has one bar
    reach    cm; of three robots two thirds of it
    pillars  posts that no path may cross; not with `sweep`
    turn     of the bar, in poses of 16 or 37 degrees
    plan     most steps of a plan
    turns    of an episode; by default 2, and 2 for each object and each robot after the first
    order    `together`: all write at once; `in_turn`: one after the other, each sees the plans before its own
    view     `words`: positions as text; `picture`: an image of the table instead
    """

    roles: ClassVar[tuple[str, ...]] = ROLES[:2]
    one_agent: ClassVar[str] = "robots-single-agent"

    def __init__(
        self,
        task: Task,
        plan: Annotated[int, Field(ge=1, le=12)] = 4,
        turns: Annotated[int, Field(ge=1, le=60)] | None = None,
        order: Literal["together", "in_turn"] = "together",
        prompts: Prompts = "full",
        reward: Rewards = "shaped",
        **dials: Any,
    ) -> None:
        super().__init__(task)
        self.layout = Layout.of(task.data)
        self.count = len(self.layout.bases)
        self.plan, self.order, self.prompts, self.reward = plan, order, prompts, reward
        self.view: View = task.data["view"]
        self.turns = turns or 2 + 2 * len(self.layout.items) * (self.count - 1) * max(1, round(4 / plan))
        self.rewards_absent = order == "in_turn"  # a step pays those who wrote before the last one
        self.turn, self.written = 0, dict[str, str]()  # plans of this turn, of those that write in turn
        self.outcomes, self.words = [""] * self.count, ["-"] * self.count  # of the last plans
        self.physics = Physics(self.layout)
        self.scene = self.physics.scene()
        # Progress at the start is 0, whatever lies near its goal then.
        self.account = Account()

    @classmethod
    def roles_of(cls, robots: Annotated[int, Field(ge=2, le=3)] = 2, **settings: Any) -> tuple[str, ...]:
        return ROLES[:robots]

    @classmethod
    def tasks(
        cls,
        split: Split,
        kind: Kind = "handover",
        robots: Annotated[int, Field(ge=2, le=3)] = 2,
        objects: Annotated[int, Field(ge=1, le=4)] = 2,
        reach: Annotated[int, Field(ge=56, le=80)] = 65,
        pillars: Annotated[int, Field(ge=0, le=3)] = 0,
        turn: Annotated[int, Field(ge=0, le=3)] = 2,
        view: View = "words",
        **settings: Any,
    ) -> Sequence[Task]:
        """Return layouts keyed by split and index. The whole layout decides the split. Raises ConfigError for settings
        that exclude each other, and if a package is missing."""
        if kind == "carry" and robots != 2:
            raise ConfigError(
                f"settings.robots: got {robots} with kind carry; expected 2, one for each end of the bar."
            )
        if kind == "sweep" and pillars:
            raise ConfigError(f"settings.pillars: got {pillars} with kind sweep; expected 0. Leave it out.")
        load_mujoco()
        if view == "picture":
            package("PIL", "vision")
        objects, turn = (1, turn) if kind == "carry" else (objects, 0)
        dials: dict[str, Any] = {"kind": kind, "robots": robots, "objects": objects, "reach": reach, "pillars": pillars}
        dials |= {"turn": turn}
        parts = [str(value) for value in dials.values()]

        def draw(index: int, attempt: int) -> dict[str, Any] | None:
            generator = random_keys.generator("robots", split, index, attempt, *parts)
            data = make_layout(generator, kind, objects, robots, reach, pillars, turn)
            return data | {"view": view} if data and in_split(split, repr(sorted(data.items()))) else None

        return drawn_tasks(split, draw, dials, "-".join([split, *parts]))

    @property
    def success(self) -> bool:
        return all(self.scene.is_settled(self.layout, name) for name in self.layout.items)

    def observe(self) -> dict[str, Observation]:
        if self.success or self.turn >= self.turns:
            return {}
        roles = ROLES[: self.count]
        if self.order == "in_turn":
            roles = roles[len(self.written) : len(self.written) + 1]
        return {role: Observation(role, (self.message(ROLES.index(role)),)) for role in roles}

    # ---- Prompts

    def message(self, robot: int) -> Message:
        """Return the prompt of a robot."""
        text = self.brief(robot) if self.prompts == "compact" else f"{self.describe()}\n{self.ask(robot)}"
        return Message("user", text, images=(self.picture(),) if self.view == "picture" else ())

    def brief(self, robot: int) -> str:
        """Return the compact prompt: all points in steps of the lattice, to a tenth; grippers and what they hold,
        objects with their goals, pillars, and the outcome of the last plan."""

        def short(*points: Sequence[float]) -> str:
            # Adding 0.0 makes 0 of -0, which physics may leave.
            return " ".join(f"{round(value / LATTICE, 1) + 0.0:g}" for point in points for value in point)

        layout, scene = self.layout, self.scene
        lines = [f"robot {robot + 1} {layout.kind}"]
        if self.view == "words":
            lines += [
                f"{short(point)} {held[:1] or '-'}" for point, held in zip(scene.grippers, scene.held, strict=True)
            ]
            open_items = [name for name in layout.items if not scene.is_settled(layout, name)]
            lines += [f"{name[0]} {short(scene.items[name], layout.goals[name])}" for name in open_items]
            lines += [f"# {short(pillar)}" for pillar in layout.pillars]
        lines += [f"{index + 1}: {_plan_line(text)[-200:]}" for index, text in enumerate(self.written.values())]
        return "\n".join([*lines, self.words[robot]])

    def describe(self) -> str:
        """Return the rules and the state in words, the same for all robots."""
        layout, scene = self.layout, self.scene
        is_sweep = layout.kind == "sweep"
        task = TASKS[layout.kind].format(side="right" if layout.opening > 0 else "left")
        rules = RULES.format(
            length=LENGTH,
            depth=DEPTH,
            tool="a broom" if is_sweep else "a gripper",
            tools="Brooms" if is_sweep else "Grippers",
            reach=layout.reach,
            clearance=24 if is_sweep else 14,
            task=task,
        )
        helps = "; ".join(HELP[verb] for verb in layout.verbs)
        lines = [rules, f"Steps are: {helps}.", ""]
        for robot, (base, held) in enumerate(zip(layout.bases, scene.held, strict=True)):
            hands = "" if is_sweep else f", holds {held or 'nothing'}"
            where = f", is at {_point(scene.grippers[robot])}" if self.view == "words" else ""
            lines.append(f"Robot {robot + 1}: base at {_point(base)}{where}{hands}.")
        if self.view == "words":
            noun = {"sweep": "ball", "carry": "end"}.get(layout.kind, "cube")
            for name, point in scene.items.items():
                goal = "" if is_sweep else f", {'goal' if noun == 'end' else 'pad'} at {_point(layout.goals[name])}"
                mark = " (done)" if scene.is_settled(layout, name) else ""
                lines.append(f"{name} {noun}: at {_point(point)}{goal}{mark}.")
            if layout.bin:
                (x, y), half = layout.bin, BIN / 2
                lines.append(f"The bin: x {x - half:.0f} to {x + half:.0f}, y {y - half:.0f} to {y + half:.0f}.")
            lines += [f"A pillar at {_point(pillar)}: keep 10 cm away." for pillar in layout.pillars]
        else:
            lines.append(f"The picture shows the table from above, with a line every {LATTICE} cm.")
        return "\n".join(lines)

    def ask(self, robot: int) -> str:
        """Return the last lines of a prompt: the outcome of the last turn, and the form of an answer."""
        plans = [f"Robot {index + 1} plans: {_plan_line(text)}" for index, text in enumerate(self.written.values())]
        return "\n".join(
            [
                *self.report([robot]),
                f"{self.turns - self.turn} turns are left.",
                *plans,
                f"You are robot {robot + 1}. End with one line: `Plan:` and then at most {self.plan} steps, separated "
                "by semicolons.",
            ]
        )

    def report(self, robots: Sequence[int]) -> list[str]:
        """Return the outcomes of the last plans of these robots."""
        return [f"Last plan of robot {robot + 1}: {self.outcomes[robot]}." for robot in robots if self.outcomes[robot]]

    def picture(self) -> Image:
        """Return the table from above, two pixels a centimetre: bases as small rings, grippers as large ones with one
        to three dots, objects as squares or discs, their goals as frames, pillars as dark discs."""
        layout, scene = self.layout, self.scene
        shapes: list[tuple[str, float, float, float, tuple[int, int, int]]] = []
        if layout.bin is not None:
            shapes.append(("frame", *layout.bin, BIN / 2, DARK))
        else:
            shapes += [("frame", *layout.goals[name], 5.0, RGB[name]) for name in layout.goals]
        shapes += [("disc", *pillar, 4.0, DARK) for pillar in layout.pillars]
        if layout.kind == "carry":
            (ax, ay), (bx, by) = scene.items.values()
            shapes += [
                ("disc", ax + s / 24 * (bx - ax), ay + s / 24 * (by - ay), 2.0, (140, 100, 60)) for s in range(25)
            ]
        shape = "disc" if layout.kind == "sweep" else "square"
        shapes += [(shape, *item, 3.0, RGB[name]) for name, item in scene.items.items()]
        shapes += [("ring", *base, 2.0, DARK) for base in layout.bases]
        for robot, (x, y) in enumerate(scene.grippers):
            shapes.append(("ring", x, y, 7.0, (20, 20, 20)))
            shapes += [("disc", x - 3.0 + 3.0 * dot, y + 10.0, 1.2, (20, 20, 20)) for dot in range(robot + 1)]
        return _drawn_shapes(tuple(shapes), layout.opening if layout.bin else 0)

    # ---- Steps

    def texts(self, actions: Mapping[str, str]) -> list[str] | None:
        """Return the text with each robot's plan, or None while plans of this turn are missing."""
        if self.order == "together":
            return [actions[role] for role in ROLES[: self.count]]
        ((role, text),) = actions.items()
        self.written = {**self.written, role: behind("plan", text[-LONGEST_ANSWER:])}
        return list(self.written.values()) if len(self.written) == self.count else None

    async def step(self, actions: dict[str, str]) -> Reward:
        texts = self.texts(actions)
        if texts is None:
            return Reward()
        unit = LATTICE if self.prompts == "compact" else 1.0
        read = [read_plan(text, self.layout, self.plan, unit) for text in texts]
        readable = [not reason for _, reason in read]
        self.outcomes = [f"it could not be read, as {reason}" if reason else "done" for _, reason in read]
        self.words = ["ok" if is_readable else "read" for is_readable in readable]
        faulty, steps = self.execute([plan for plan, _ in read])
        self.turn, self.written = self.turn + 1, {}
        local = dict.fromkeys(range(self.count), 0.0)
        for robot in range(self.count):
            local[robot] = UNREADABLE * (not readable[robot]) + FAULT * (robot in faulty)
        progress = self.scene.progress(self.layout)
        value = PROGRESS * progress + SUCCESS * self.success if self.reward == "shaped" else float(self.success)
        parts = {"progress": progress, "steps": float(steps), "readable": sum(readable) / self.count}
        parts |= {"faults": len(faulty) / self.count}
        self.account, reward = self.account.settle(value, {}, parts)
        return Reward(reward.team, self.penalties(local), parts)

    def penalties(self, local: Mapping[int, float]) -> dict[str, float]:
        """Return the local rewards that are not zero."""
        return {ROLES[robot]: value for robot, value in local.items() if value}

    def execute(self, plans: Sequence[Sequence[Action]]) -> tuple[set[int], int]:
        """Execute plans side by side until all are done or a step has a fault; return the robots at fault, and the
        number of steps that were executed. Changes the outcomes."""
        for number in range(max(map(len, plans))):
            step = [plan[number] if number < len(plan) else WAIT for plan in plans]
            if faults := find_faults(self.layout, self.scene, step):
                self.stop(number, {robot: (fault.word, fault.sentence) for robot, fault in faults.items()})
                return set(faults), number
            grasps = [action.name for action in step]
            if not self.physics.run(step):
                self.stop(number, dict.fromkeys(range(self.count), ("physics", "the simulation of it diverged")))
                return set(), number
            self.scene = self.physics.scene()
            for robot, name in enumerate(grasps):
                if name and self.scene.held[robot] != name:
                    self.stop(number, {robot: ("missed", f"the gripper of robot {robot + 1} did not hold {name}")})
                    return set(), number + 1
        return set(), max(map(len, plans))

    def stop(self, number: int, reasons: Mapping[int, tuple[str, str]]) -> None:
        """Note why a turn ended at a step, for those concerned and for the others."""
        sentences = "; ".join(dict.fromkeys(sentence for _, sentence in reasons.values()))
        for robot in range(self.count):
            if self.words[robot] == "read":
                continue
            self.outcomes[robot] = f"it ended at step {number + 1}, as {sentences}"
            self.words[robot] = reasons[robot][0] if robot in reasons else "other"

    # ---- For people, critics and credit

    def default_action(self, role: str) -> str:
        """Return the plan to stand still."""
        return "Plan: wait"

    def signature(self) -> str:
        """Return the state in words, with the turns that are left."""
        points = [*self.scene.grippers, *self.scene.items.values()]
        numbers = " ".join(f"{value:.1f}" for point in points for value in point)
        return f"{self.turn} {numbers} {' '.join(self.scene.held)} {self.written} {self.words}"

    def render(self) -> Drawing:
        scene, layout = self.scene, self.layout
        robots = [
            [f"robot {robot + 1}", _point(point), held or "nothing", self.outcomes[robot]]
            for robot, (point, held) in enumerate(zip(scene.grippers, scene.held, strict=True))
        ]
        items = [
            [name, _point(point), _point(layout.goals[name]), "yes" if scene.is_settled(layout, name) else "no"]
            for name, point in scene.items.items()
        ]
        legend = {"#": "wall", ".": "free"} | {str(robot + 1): "walker" for robot in range(self.count)}
        return drawings.several(
            (f"table, turn {self.turn} of {self.turns}", drawings.grid(table_rows(layout, scene), legend)),
            ("robots", drawings.table(("robot", "at", "holds", "last plan"), robots)),
            ("objects, capital letters are their goals", drawings.table(("object", "at", "goal", "there"), items)),
        )


class RobotsSingleAgent(Robots):
    """One agent that plans for all robots, a line for each: `robot 1: pick red; move 60 40`."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    @classmethod
    def roles_of(cls, robots: Annotated[int, Field(ge=2, le=3)] = 2, **settings: Any) -> tuple[str, ...]:
        return cls.roles

    def observe(self) -> dict[str, Observation]:
        if self.success or self.turn >= self.turns:
            return {}
        return {"agent": Observation("agent", (self.message(0),))}

    def ask(self, robot: int) -> str:
        names = ", ".join(f"`robot {number}:`" for number in range(1, self.count + 1))
        return "\n".join(
            [
                *self.report(range(self.count)),
                f"{self.turns - self.turn} turns are left.",
                f"You direct all robots. End with a line for each, {names}, each followed by at most {self.plan} "
                "steps, separated by semicolons.",
            ]
        )

    def brief(self, robot: int) -> str:
        first, *rest = super().brief(0).split("\n")
        return "\n".join([first.replace("robot 1", "robots"), *rest[:-1], " ".join(self.words)])

    def texts(self, actions: Mapping[str, str]) -> list[str] | None:
        text = actions["agent"][-LONGEST_ANSWER:]
        lines = [re.findall(rf"(?i)\b(?:robot )?{number}[`*]*:([^\n]*)", text) for number in range(1, self.count + 1)]
        return [matches[-1] if matches else "" for matches in lines]

    def default_action(self, role: str) -> str:
        return "\n".join(f"robot {number}: wait" for number in range(1, self.count + 1))

    def penalties(self, local: Mapping[int, float]) -> dict[str, float]:
        total = sum(local.values()) / self.count
        return {"agent": total} if total else {}


LONGEST_ANSWER = 8_000  # characters of an answer for all robots that are read


def _plan_line(plan: str) -> str:
    """Return a plan on one line, as the next robot sees it."""
    steps = (" ".join(line.split()).rstrip(";") for line in plan.splitlines())
    return "; ".join(filter(None, steps))[:400]


def _point(point: Sequence[float]) -> str:
    return f"{point[0]:.0f} {point[1]:.0f}"


# ---- Drawings


def table_rows(layout: Layout, scene: Scene) -> list[str]:
    """Return the table from above, a letter for each cell of the lattice: robots 1 to 3, objects, their goals in
    capital letters, pillars #."""
    rows = [["."] * (LENGTH // LATTICE + 1) for _ in range(DEPTH // LATTICE + 1)]

    def mark(point: Sequence[float], letter: str) -> None:
        column, row = round(point[0] / LATTICE), round(point[1] / LATTICE)
        rows[min(max(row, 0), len(rows) - 1)][min(max(column, 0), len(rows[0]) - 1)] = letter

    if layout.bin is not None:
        for name in layout.goals:
            mark(layout.goals[name], "B")
    else:
        for name, goal in layout.goals.items():
            mark(goal, name[0].upper())
    for pillar in layout.pillars:
        mark(pillar, "#")
    for name, item in scene.items.items():
        mark(item, name[0])
    for robot, gripper in enumerate(scene.grippers):
        mark(gripper, str(robot + 1))
    return ["".join(row) for row in reversed(rows)]


RGB = {
    **{"red": (210, 40, 40), "green": (40, 150, 60), "blue": (40, 80, 210), "yellow": (220, 190, 30)},
    **{"white": (250, 250, 250), "orange": (230, 130, 30), "a": (210, 40, 40), "b": (40, 80, 210)},
}
PAPER, LINE, DARK = (225, 225, 225), (205, 205, 205), (60, 60, 60)


@lru_cache(maxsize=128)
def _drawn_shapes(shapes: tuple[tuple[str, float, float, float, tuple[int, int, int]], ...], opening: int) -> Image:
    import numpy

    from cadre.envs.images import image

    scale = 2
    pixels = numpy.full((DEPTH * scale, LENGTH * scale, 3), PAPER, numpy.uint8)
    pixels[:: LATTICE * scale] = pixels[:, :: LATTICE * scale] = LINE
    rows, columns = numpy.mgrid[: DEPTH * scale, : LENGTH * scale]
    ys, xs = DEPTH - (rows + 0.5) / scale, (columns + 0.5) / scale
    for shape, x, y, size, colour in shapes:
        dx, dy = xs - x, ys - y
        distance = numpy.hypot(dx, dy) if shape in ("disc", "ring") else numpy.maximum(abs(dx), abs(dy))
        inside = distance <= size
        if shape in ("ring", "frame"):
            inside &= distance > size - 1.5
            # The bin has no wall on its open side.
            if shape == "frame" and opening:
                inside &= opening * dx < size - 1.5
        pixels[inside] = colour
    return image(pixels)
