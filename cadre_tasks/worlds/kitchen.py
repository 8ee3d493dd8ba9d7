"""Two cooks in a cooperative kitchen, who act at once: Overcooked as text.

Each turn both write a short plan of errands ("onion, pot") or of moves ("left, up, interact"); the plans are executed
side by side, a step at a time, until both are done or `span` steps have passed. `cadre_tasks.worlds.kitchen_rules` has
the rules and the layouts. The team's reward is the points for served soups in soups (20 points), with `reward: shaped`
also the points for parts of the work as in Overcooked-AI. The return in points is the part `points`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import permutations
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre.env import Env
from cadre.envs import drawings
from cadre.types import Drawing, Message, Observation, Reward, Task
from cadre_tasks.answers import behind
from cadre_tasks.worlds.kitchen_rules import (
    COOKING_STEPS,
    ERRANDS,
    LAYOUTS,
    MOVES,
    SOUP_POINTS,
    Kitchen,
    Layout,
    next_move,
    thing_name,
)

LayoutName = Literal[
    "cramped_room", "asymmetric_advantages", "coordination_ring", "forced_coordination", "counter_circuit"
]
Language = Literal["errands", "moves"]
LONGEST_TEXT = 2_000  # characters at the end of an answer that are read
UNREADABLE = -0.1
WAIT = "wait"
RULES = """Two cooks share a kitchen. Three onions in a pot make a soup: take one onion at a time from O, put it into a
pot P, {start}, wait {cooking} steps, take the soup with a dish from D, and serve it at S. A served soup earns 20
points. X are counters, where things can be laid down and picked up. Cooks cannot pass through each other."""
ERRAND_HELP = """Errands are: onion (take one), dish (take one), pot (put the onion in, start a full pot with empty
hands, or take the soup with a dish, waiting for it if it cooks), serve, put (lay down on a counter), take (pick up from
a counter), wait. A cook walks to the nearest place where the errand can be done, and does it."""
MOVE_HELP = """Moves are: up, down, left, right (a cook first turns, and walks if the cell is free), stay, interact
(with what the cook faces)."""
FORMAT = "End with one line: `Plan:` and then at most {plan} {language}, separated by commas."


class KitchenTeam(Env):
    """Two cooks. Settings:

    layout    of the kitchen
    language  of plans: `errands` or `moves`
    plan      most errands or moves of a plan
    span      most steps of a turn
    horizon   steps of an episode; 400 in the literature
    soups     that count as success
    start     `full`: a pot starts to cook with its third onion, as in the paper; `hands`: a cook starts it with empty
              hands, as in overcooked-ai 1.1
    """

    roles: ClassVar[tuple[str, ...]] = ("cook_1", "cook_2")
    one_agent: ClassVar[str] = "kitchen-single-agent"

    def __init__(
        self,
        task: Task,
        layout: LayoutName = "cramped_room",
        language: Language = "errands",
        plan: Annotated[int, Field(ge=1, le=40)] = 3,
        span: Annotated[int, Field(ge=1, le=100)] = 12,
        horizon: Annotated[int, Field(ge=1, le=2000)] = 400,
        soups: Annotated[int, Field(ge=1)] = 1,
        start: Literal["full", "hands"] = "full",
        prompts: Literal["compact", "full"] = "full",
        reward: Literal["shaped", "outcome"] = "shaped",
    ) -> None:
        super().__init__(task)
        self.words = ERRANDS if language == "errands" else MOVES
        self.language, self.plan, self.span, self.horizon, self.soups = language, plan, span, horizon, soups
        self.prompts, self.reward, self.points = prompts, reward, 0
        starts = [tuple(cell) for cell in task.data["starts"]]
        self.kitchen = Kitchen(_layout(task.data["layout"]), starts, auto=start == "full")
        self.outcomes = ["", ""]  # of the last plans

    @classmethod
    def tasks(cls, split: str, layout: LayoutName = "cramped_room", **settings: Any) -> Sequence[Task]:
        """Return one task for each pair of cells in which the cooks can begin; every fifth pair is a test task, the
        published start among them. Each cook begins where it can get from its published start."""
        kitchen = _layout(layout)
        sides = [kitchen.distances(cell) for cell in kitchen.starts]
        pairs = [
            (first, second)
            for first, second in permutations(sorted(kitchen.floor), 2)
            if first in sides[0] and second in sides[1] and (first, second) != kitchen.starts
        ]
        pairs.insert(0, kitchen.starts)
        chosen = [pair for index, pair in enumerate(pairs) if (index % 5 == 0) == (split == "test")]
        return [
            Task(f"{layout}-{first[0]}{first[1]}-{second[0]}{second[1]}", {"layout": layout, "starts": [first, second]})
            for first, second in chosen
        ]

    @property
    def success(self) -> bool:
        return self.points >= self.soups * SOUP_POINTS

    def default_action(self, role: str) -> str:
        """Return the plan to stand still."""
        return WAIT if self.language == "errands" else "stay"

    def signature(self) -> str:
        """Return the state in words, with the steps that are left."""
        return self.describe()

    @property
    def is_over(self) -> bool:
        return self.kitchen.time >= self.horizon

    def observe(self) -> dict[str, Observation]:
        if self.is_over:
            return {}
        return {role: Observation(role, (Message("user", self.prompt(i)),)) for i, role in enumerate(self.roles)}

    def prompt(self, index: int) -> str:
        """Return the prompt of a cook."""
        if self.prompts == "compact":
            return f"{self.brief(index)}\nmoves: {' '.join(self.words)}"
        answer = FORMAT.format(plan=self.plan, language=self.language)
        return f"{self.describe()}\nYou are cook {index + 1}.{self.report(index)}\n{answer}"

    def brief(self, index: int) -> str:
        """Return what a small model is shown: the two pairs of hands, the pots, what lies on counters, the last
        outcome."""
        cooks, pots = self.kitchen.cooks, self.kitchen.pots.values()
        states = [f"{soup.onions}" if soup.tick < 0 else "done" if soup.is_ready else "hot" for soup in pots]
        lying = sorted(thing_name(item) for item in self.kitchen.counters.values())
        hands = f"{thing_name(cooks[index].held)} {thing_name(cooks[1 - index].held)}"
        return f"cook {index + 1}\n{hands}\npot {' '.join(states)}\n{' '.join(lying) or 'nothing'}"

    def describe(self) -> str:
        """Return the rules and the state in words, the same for both cooks."""
        kitchen = self.kitchen
        start = "it then starts to cook" if kitchen.auto else "start it with empty hands"
        pots = [
            f"the pot at {cell} has {soup.onions} onions"
            if soup.tick < 0
            else f"the soup in the pot at {cell} is ready"
            if soup.is_ready
            else f"the pot at {cell} has cooked for {soup.tick} steps"
            for cell, soup in kitchen.pots.items()
        ]
        cooks = [
            f"cook {number} is at {cook.cell}, faces {cook.facing} and holds {thing_name(cook.held)}"
            for number, cook in enumerate(kitchen.cooks, 1)
        ]
        lying = [f"{thing_name(item)} lies on the counter at {cell}" for cell, item in kitchen.counters.items()]
        rules = RULES.format(start=start, cooking=COOKING_STEPS)
        words = ERRAND_HELP if self.language == "errands" else MOVE_HELP
        return (
            f"{rules}\n{words}\n\nThe kitchen, with cells as (column, row) from the upper left:\n"
            + "\n".join(self.rows())
            + f"\n\n{'; '.join([*cooks, *pots, *lying])}.\n"
            f"{self.horizon - kitchen.time} steps are left; {self.points} points so far."
        )

    def report(self, index: int) -> str:
        """Return the outcome of a cook's last plan."""
        return f" Your last plan: {self.outcomes[index]}." if self.outcomes[index] else ""

    def rows(self) -> list[str]:
        """Return the map with the cooks as 1 and 2."""
        cells = {cook.cell: str(number) for number, cook in enumerate(self.kitchen.cooks, 1)}
        letters = self.kitchen.layout.letters
        width, height = (max(cell[axis] for cell in letters) + 1 for axis in (0, 1))
        return [
            "".join(cells.get((x, y), letters[x, y].translate({49: " ", 50: " "})) for x in range(width))
            for y in range(height)
        ]

    def read_plan(self, text: str) -> list[str] | None:
        """Return the words of a plan: those behind the last `Plan:`, else of the whole text; None if it is none."""
        line = behind("plan", text[-LONGEST_TEXT:]).split("\n")[0].strip("`*_. \t\r")
        words = [word.strip().lower() for word in re.split(r"[,;\s]+", line) if word.strip()]
        return words if 0 < len(words) <= self.plan and all(word in self.words for word in words) else None

    def plans(self, actions: Mapping[str, str]) -> list[list[str] | None]:
        """Return the plans of both cooks."""
        return [self.read_plan(actions[role]) for role in self.roles]

    async def step(self, actions: dict[str, str]) -> Reward:
        plans = self.plans(actions)
        readable = [plan is not None for plan in plans]
        # Who wrote no plan, or one that cannot be executed, waits until the turn is over.
        pending = [list(plan or [WAIT]) for plan in plans]
        self.outcomes = ["done" if plan else "could not be read" for plan in plans]
        served = work = 0
        for _ in range(min(self.span, self.horizon - self.kitchen.time)):
            if not any(pending):
                break
            points = self.kitchen.step([self._next(index, pending[index]) for index in (0, 1)])
            served, work = served + sum(points.served), work + sum(points.work)
        for index in (0, 1):
            if pending[index] and pending[index][0] != WAIT:
                self.outcomes[index] = f"time was over before {pending[index][0]}"
        self.points += served
        parts = {"points": float(served), "work": float(work), "readable": sum(readable) / 2}
        team = (served + (work if self.reward == "shaped" else 0)) / SOUP_POINTS
        return Reward(team, self.penalties(readable), parts)

    def penalties(self, readable: Sequence[bool]) -> dict[str, float]:
        """Return the local rewards: a fine for a plan that cannot be read."""
        return {role: UNREADABLE for role, is_readable in zip(self.roles, readable, strict=True) if not is_readable}

    def _next(self, index: int, pending: list[str]) -> str:
        """Return a cook's move of this step, and take what is done off its plan."""
        if not pending or pending[0] == WAIT:
            return "stay"
        if self.language == "moves":
            return pending.pop(0)
        move, reason = next_move(self.kitchen, index, pending[0])
        if reason:
            self.outcomes[index] = f"{pending[0]} was not possible, as {reason}"
            pending[:] = [WAIT]
            return "stay"
        if move == "interact":
            pending.pop(0)
        return move

    def render(self) -> Drawing:
        cooks = [[f"cook {number}", thing_name(cook.held)] for number, cook in enumerate(self.kitchen.cooks, 1)]
        pots = [
            [f"pot at {cell}", f"{soup.onions} onions, {max(soup.tick, 0)} steps"]
            for cell, soup in self.kitchen.pots.items()
        ]
        lying = [[f"counter at {cell}", thing_name(item)] for cell, item in self.kitchen.counters.items()]
        return drawings.several(
            ("kitchen", drawings.grid(self.rows(), {"X": "wall", " ": "free", "1": "walker", "2": "walker"})),
            (f"{self.points} points, step {self.kitchen.time}", drawings.table(("", ""), [*cooks, *pots, *lying])),
        )


class KitchenSingleAgent(KitchenTeam):
    """One agent that writes both plans, a line for each cook: `cook 1: onion, pot`."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    def prompt(self, index: int) -> str:
        if self.prompts == "compact":
            return f"{self.brief(0)}\nmoves: {' '.join(self.words)}"
        reports = "".join(f" Cook {number + 1}.{self.report(number)}" for number in (0, 1) if self.outcomes[number])
        return (
            f"{self.describe()}\nYou direct both cooks.{reports}\nEnd with two lines: `cook 1:` and `cook 2:`, each "
            f"followed by at most {self.plan} {self.language}, separated by commas."
        )

    def default_action(self, role: str) -> str:
        word = super().default_action(role)
        return f"cook 1: {word}\ncook 2: {word}"

    def plans(self, actions: Mapping[str, str]) -> list[list[str] | None]:
        text = actions["agent"][-LONGEST_TEXT:]
        lines = [re.findall(rf"(?i)\b(?:cook )?{number}[`*_]*\s*:([^\n]*)", text) for number in (1, 2)]
        return [self.read_plan(matches[-1]) if matches else None for matches in lines]

    def penalties(self, readable: Sequence[bool]) -> dict[str, float]:
        return {} if all(readable) else {"agent": UNREADABLE}


@cache
def _layout(name: str) -> Layout:
    return Layout(LAYOUTS[name])
