"""Second opinions on the worlds' judges, by implementations that have nothing of them.

Each takes a fresh episode of a single agent, makes up an answer that is sometimes right, and returns the judge's
verdict and the other's.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from cadre.envs.worlds.sql import SqlAlone, by_sqlite, databases
from cadre.envs.worlds.sql_questions import swapped
from cadre.rewards.database import same

Second = Callable[[Any, random.Random], Awaitable[tuple[object, object]]]


async def sql(env: SqlAlone, draw: random.Random) -> tuple[object, object]:
    """The share of hidden sets on which an answer is right, by SQLite."""
    query = env.task.data["reference"]
    for _ in range(draw.choice((0, 0, 1, 2))):
        query = draw.choice(swapped(query))
    judged = await env.judge(query)
    hidden = databases(env.task.data)[1:]
    wanted = by_sqlite(env.task.data["reference"], hidden)
    try:
        given = by_sqlite(query, hidden)
    except sqlite3.Error:
        return judged.formed, False
    return judged.worth, sum(map(same, given, wanted)) / len(hidden)


SECONDS: dict[str, Second] = {"sql": sql}
