"""A plan in a PDDL domain: planner and critic, judged by pyperplan; and two robots that act at once.

The role `planner` writes a plan, which is tried; the role `critic` sees how far it goes and what stops it, and its own
plan counts (`cadre_tasks.worlds.relay`). A plan that can be executed and ends in the goal solves the task; its value is
.75 plus .25 times the optimum over its length. Any other has at most half the value: half the share of the open goals
that hold when it stops. Single-agent forms are `PlanOneTurn` and `PlanSingleAgent`.

In `PlanJoint` two robots of a domain each choose one action a round, at the same time, without seeing the other's. If
the two actions disturb each other, because one takes away what the other needs or gives, neither happens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre import random_keys
from cadre.env import Env, Split
from cadre.envs import drawings
from cadre.envs.splits import drawn_tasks, in_split
from cadre.errors import ConfigError
from cadre.plugins import package
from cadre.types import Drawing, Message, Observation, Reward, Task
from cadre_tasks.answers import behind
from cadre_tasks.worlds import relay
from cadre_tasks.worlds.plan_domains import DOMAINS, ROBOTS, DomainName, fact, pddl, problem
from cadre_tasks.worlds.relay import Judged, Prompts, Relay, Rewards, Turns, answer_in

LONGEST = 200  # actions of a plan that are looked at; no optimum is near it
# A plan that solves the task has the value SOLVED + SHORT * optimum / length, any other one at most TRIED.
SOLVED, SHORT, TRIED = 0.75, 0.25, 0.5
ACTION = re.compile(r"\(?\s*([a-z][\w-]*(?:\s+[a-z][\w-]*){0,6})\s*\)?")
Facts = frozenset[str]


class Grounded:
    """A problem with all of its actions, by pyperplan: `(drive t1 c1 c2)` and so on. Shared, never changed."""

    def __init__(self, domain: str, text: str) -> None:
        grounding, parser = package("pyperplan.grounding", "worlds"), package("pyperplan.pddl.parser", "worlds")
        # pyperplan's parser reads files; given texts in these two attributes it reads none.
        reader = parser.Parser("", "")
        reader.domInput, reader.probInput = DOMAINS[domain], text
        self.task = grounding.ground(reader.parse_problem(reader.parse_domain(False), False))
        self.actions = {action.name: action for action in self.task.operators}
        self.start, self.goals = Facts(self.task.initial_state), Facts(self.task.goals)

    def shortest(self) -> list[str] | None:
        """Return a shortest plan, by A* with an admissible heuristic, or None if there is no plan."""
        search, heuristics = package("pyperplan.search", "worlds"), package("pyperplan.heuristics.lm_cut", "worlds")
        plan = search.astar_search(self.task, heuristics.LmCutHeuristic(self.task))
        return None if plan is None else [action.name for action in plan]

    def run(self, plan: Sequence[str]) -> tuple[Facts, int]:
        """Return the facts where a plan ends or stops, and the number of its actions that were executed."""
        state = self.start
        for number, name in enumerate(plan):
            action = self.actions.get(name)
            if action is None or not action.applicable(state):
                return state, number
            state = Facts(action.apply(state))
        return state, len(plan)

    def progress(self, state: Facts) -> float:
        """Return the share of the goals open at the start that hold now, less those that held and do not."""
        opened = self.goals - self.start
        # Goals that hold at the start count negatively when they are undone.
        return (len(self.goals & state) - len(self.goals & self.start)) / len(opened)


@lru_cache(maxsize=512)
def grounded(domain: str, text: str) -> Grounded:
    """Return a problem in PDDL, grounded."""
    return Grounded(domain, text)


def parse_plan(text: str) -> list[str] | None:
    """Return the actions of a plan: behind a last "Plan:", one a line or separated by semicolons, in brackets or not.
    None if anything in it cannot be read."""
    plan_text = behind("plan", text).lower()
    lines = [line for part in re.split(r"[\n;]|\)\s*(?=\()", plan_text) if (line := part.strip())]
    matches = [ACTION.fullmatch(line.removesuffix(".")) for line in lines[: LONGEST + 1]]
    if not lines or len(lines) > LONGEST or None in matches:
        return None
    return [f"({' '.join(match[1].split())})" for match in matches if match]


Size = Annotated[int, Field(ge=1, le=8)]
Robots = Annotated[int, Field(ge=1, le=3)]


def _split(split: Split, domain: DomainName, size: int, robots: int) -> Sequence[Task]:
    package("pyperplan.grounding", "worlds")

    def draw(index: int, attempt: int) -> dict[str, Any] | None:
        generator = random_keys.generator("plan", domain, size, robots, split, index, attempt)
        data = problem(generator, domain, size, robots)
        if not in_split(split, pddl(data)):
            return None
        shortest = Grounded(domain, pddl(data)).shortest()
        return {**data, "optimum": len(shortest)} if shortest else None

    dials = {"domain": domain, "size": size, "robots": robots}
    return drawn_tasks(split, draw, dials, f"{split}-{domain}-{size}-{robots}")


class Plan(Relay):
    """The team form. Settings: `turns` the team gets, `prompts` wording, `reward` shaped or by outcome; of its problems
    the `domain`, their `size` (blocks, packages or samples) and how many `robots` (trucks or rovers)."""

    roles: ClassVar[tuple[str, ...]] = ("planner", "critic")
    one_agent: ClassVar[str] = "pddl-single-agent"
    titles: ClassVar[tuple[str, str]] = ("plan draft", "plan")
    word: ClassVar[str] = "plan"
    # What the full prompt for a draft says of who decides after it.
    decider_note: ClassVar[str] = "A team mate sees it, and how far it can be executed, and decides."

    def __init__(
        self, task: Task, turns: Turns = 2, prompts: Prompts = "full", reward: Rewards = "shaped", **problem: Any
    ) -> None:
        super().__init__(task, turns, prompts, reward)
        self.text = pddl(task.data)

    @classmethod
    def tasks(
        cls, split: Split, domain: DomainName = "blocks", size: Size = 3, robots: Robots = 1, **settings: Any
    ) -> Sequence[Task]:
        """Return problems keyed by split and index. The whole problem decides the split. Raises ConfigError for several
        robots in a domain without robots."""
        if robots > 1 and domain not in ROBOTS:
            raise ConfigError(
                f"settings.robots: got {robots} with domain {domain}; expected one, or a domain of {', '.join(ROBOTS)}."
            )
        return _split(split, domain, size, robots)

    @property
    def world(self) -> Grounded:
        return grounded(self.task.data["domain"], self.text)

    async def judge(self, text: str) -> Judged:
        plan = parse_plan(text)
        if plan is None:
            return Judged(False, False, 0.0, "It could not be read as a plan.", "unreadable")
        state, executed = self.world.run(plan)
        if executed == len(plan) and state >= self.world.goals:
            # A plan of twice the optimum's length gets half of the .25.
            worth = SOLVED + SHORT * self.task.data["optimum"] / len(plan)
            text = f"All {executed} actions can be executed and reach the goal."
            return Judged(True, True, worth, text, f"goal {executed}")
        worth = TRIED * max(0.0, self.world.progress(state))
        if executed < len(plan):
            name = plan[executed]
            action = self.world.actions.get(name)
            lacking = f"needs {' '.join(sorted(action.preconditions - state))}" if action else "is no action here"
            text = f"{executed} of {len(plan)} actions can be executed; {name} {lacking}."
            return Judged(True, False, worth, text, f"stops {executed}")
        missing = " ".join(sorted(self.world.goals - state))
        return Judged(True, False, worth, f"All can be executed; {missing} does not hold then.", f"short {executed}")

    def question(self) -> str:
        return f"A domain and a problem in PDDL:\n\n{DOMAINS[self.task.data['domain']]}\n\n{self.text}"

    def brief(self) -> str:
        return "\n".join("; ".join(" ".join(it) for it in self.task.data[part]) for part in ("init", "goal"))

    def asked(self) -> tuple[str, str]:
        form = "End with `Plan:` and then one action a line, such as (stack b1 b2). Fewer actions are better."
        return f"Write a plan. {self.decider_note} {form}", f"Decide on the plan that counts. {form}"

    def privileged(self) -> str:
        return f"optimum {self.task.data['optimum']}"


class PlanOneTurn(relay.RelayOneTurn, Plan):
    """One agent that writes the plan at once."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)


class PlanSingleAgent(relay.RelaySingleAgent, Plan):
    """One agent that tries a plan, sees how far it goes, and decides."""

    decider_note: ClassVar[str] = "You see how far it can be executed, and decide then."


class PlanJoint(Env):
    """Two robots that act at once. Settings: `rounds` they have (by default 6 a goal, and 12 at the least), `prompts`
    wording, and those of the problems.

    The team is paid .8 of the share of the goals, as it grows and shrinks, and .2 for all of them; a robot .02 less an
    action, and .1 less for one that cannot be executed or that disturbs the other's. `wait` costs nothing.
    """

    roles: ClassVar[tuple[str, ...]] = ("robot_1", "robot_2")

    def __init__(
        self,
        task: Task,
        rounds: Annotated[int, Field(ge=1, le=60)] | None = None,
        prompts: Prompts = "full",
        **problem: Any,
    ) -> None:
        super().__init__(task)
        self.rounds = rounds or max(12, 6 * len(task.data["goal"]))
        self.prompts, self.round, self.text = prompts, 0, pddl(task.data)
        self.state = self.world.start
        self.names = dict(zip(self.roles, task.data["objects"][ROBOTS[task.data["domain"]]], strict=True))
        self.last: dict[str, str] = {}

    @classmethod
    def tasks(
        cls, split: Split, domain: Literal["logistics", "rovers"] = "logistics", size: Size = 2, **settings: Any
    ) -> Sequence[Task]:
        """Return problems with two robots. The whole problem decides the split."""
        return _split(split, domain, size, 2)

    @property
    def world(self) -> Grounded:
        return grounded(self.task.data["domain"], self.text)

    @property
    def success(self) -> bool:
        return self.state >= self.world.goals

    def observe(self) -> dict[str, Observation]:
        if self.success or self.round >= self.rounds:
            return {}
        return {role: Observation(role, (Message("user", self.ask(role)),)) for role in self.roles}

    def ask(self, role: str) -> str:
        facts, log = (
            " ".join(sorted(self.state)),
            " ".join(f"{name}: {action}." for name, action in self.last.items()),
        )
        if self.prompts == "compact":
            goals = " ".join(fact(it) for it in self.task.data["goal"])
            return f"joint {self.names[role]}\n{facts}\n{goals}"
        return (
            f"A domain and a problem in PDDL:\n\n{DOMAINS[self.task.data['domain']]}\n\n{self.text}\n\n"
            f"These facts hold now:\n{facts}\n\n{log}\nYou are {self.names[role]}; a team mate acts at the same "
            f"time. Say your next action, with {self.names[role]} as its robot, or wait. {self.rounds - self.round} "
            f"rounds are left. End with one line such as `Plan: (wait)`."
        )

    def chosen(self, role: str, text: str) -> str | None:
        """Return the action in a robot's text, "(wait)", or None for anything else and for one that cannot be
        executed."""
        plan = parse_plan(answer_in(text, "", "plan"))
        if plan == ["(wait)"]:
            return "(wait)"
        name = plan[0] if plan and len(plan) == 1 else ""
        # The first parameter of every action of these domains is the robot.
        names_itself = name.strip("()").split()[1:2] == [self.names[role]]
        return (
            name
            if names_itself and name in self.world.actions and self.world.actions[name].applicable(self.state)
            else None
        )

    async def step(self, actions: dict[str, str]) -> Reward:
        chosen_actions = {role: self.chosen(role, actions[role]) for role in self.roles}
        acting = [self.world.actions[name] for name in chosen_actions.values() if name not in (None, "(wait)")]
        # Both actions are simultaneous: if their order mattered, the result would be undefined.
        if len(acting) == 2 and disturb(*acting):
            chosen_actions, acting = dict.fromkeys(self.roles), []
        value_before, self.round = self.paid(), self.round + 1
        for action in acting:
            self.state = Facts(action.apply(self.state))
        self.last = {self.names[role]: name or "did nothing" for role, name in chosen_actions.items()}
        local = {role: -0.1 if name is None else -0.02 * (name != "(wait)") for role, name in chosen_actions.items()}
        return Reward(self.paid() - value_before, local, {"goals": self.world.progress(self.state)})

    def paid(self) -> float:
        """Return the team's value of the present state."""
        return 0.8 * self.world.progress(self.state) + 0.2 * self.success

    def privileged(self) -> str:
        return f"optimum {self.task.data['optimum']}"

    def default_action(self, role: str) -> str:
        return "Plan: (wait)"

    def signature(self) -> str:
        """Return the facts that hold and the round."""
        return f"round {self.round}\n{' '.join(sorted(self.state))}"

    def render(self) -> Drawing:
        return drawings.table(("fact",), [[it] for it in sorted(self.state)])


def disturb(first: Any, second: Any) -> bool:
    """Return True if one action takes away what the other needs or gives, so that their order would matter."""
    return bool(
        first.del_effects & (second.preconditions | second.add_effects)
        or second.del_effects & (first.preconditions | first.add_effects)
    )
