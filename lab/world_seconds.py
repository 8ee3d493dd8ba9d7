"""Second opinions on the worlds' judges, by implementations that have nothing of them.

Each takes a fresh episode of a single agent, makes up an answer that is sometimes right, and returns the judge's
verdict and the other's.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from cadre_tasks.worlds.database import same
from cadre_tasks.worlds.plan import PlanOneTurn, parse_plan
from cadre_tasks.worlds.plan_domains import DOMAINS
from cadre_tasks.worlds.sql import SqlOneTurn, by_sqlite, databases
from cadre_tasks.worlds.sql_questions import swapped
from lab.world_cases import PLAN, other_plan

Second = Callable[[Any, random.Random], Awaitable[tuple[object, object]]]


async def sql(env: SqlOneTurn, draw: random.Random) -> tuple[object, object]:
    """The share of hidden sets on which an answer is right, by SQLite."""
    query = env.task.data["reference"]
    for _ in range(draw.choice((0, 0, 1, 2))):
        query = draw.choice(swapped(query))
    judged = await env.judge(query)
    hidden = databases(env.task.data)[1:]
    expected = by_sqlite(env.task.data["reference"], hidden)
    try:
        results = by_sqlite(query, hidden)
    except sqlite3.Error:
        return judged.formed, False
    return judged.worth, sum(map(same, results, expected)) / len(hidden)


async def plan(env: PlanOneTurn, draw: random.Random) -> tuple[object, object]:
    """Validate a plan with the validator of unified-planning."""
    text = draw.choice((other_plan(env, draw), PLAN.honest(env))) or ""
    judged = await env.judge(text)
    return judged.solved, valid_by_unified_planning(env, parse_plan(text) or [])


def valid_by_unified_planning(env: PlanOneTurn, plan: list[str]) -> bool:
    """Read the same PDDL and the plan with unified-planning, and ask its validator."""
    from unified_planning.engines import SequentialPlanValidator, ValidationResultStatus
    from unified_planning.exceptions import UPException
    from unified_planning.io import PDDLReader

    problem = PDDLReader().parse_problem_string(DOMAINS[env.task.data["domain"]], env.text)
    try:
        read = PDDLReader().parse_plan_string(problem, "\n".join(plan))
        result = SequentialPlanValidator().validate(problem, read)
    except (UPException, KeyError, AssertionError):
        return False
    return result.status == ValidationResultStatus.VALID


SECONDS: dict[str, Second] = {"sql": sql, "plan": plan}
