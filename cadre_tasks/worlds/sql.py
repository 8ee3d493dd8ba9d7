"""A question about tables, to be answered by a SQL query: analyst and checker over DuckDB.

The role `analyst` writes a query, which is run on the rows that everybody sees; the role `checker` sees the query and
what it gave, and its own query counts (`cadre_tasks.worlds.relay`). It is judged on other rows of the same tables,
which nobody sees: what it gives there is compared with what the reference gives, and a query is worth the share of the
sets of rows on which both are the same. The single-agent forms are `SqlAlone` and `SqlSolo`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre import random_keys
from cadre.env import GeneratedTasks, Split
from cadre.envs import drawings
from cadre.envs.splits import SPLIT_SIZES, drawn, in_split
from cadre.errors import ConfigError
from cadre.types import Drawing, Task
from cadre_tasks.worlds import database, relay
from cadre_tasks.worlds.database import Database, Result
from cadre_tasks.worlds.relay import Judged, Prompts, Relay, Rewards, Turns
from cadre_tasks.worlds.sql_questions import Question, Table, question, rows_of, swapped

HIDDEN = 3  # sets of rows that queries are judged on
Dial = Annotated[int, Field(ge=0, le=2)]
Share = Annotated[float, Field(ge=0.0, le=0.9)]
DIRTY = (
    "Words may have stray spaces around them and letters of either case: compare them, and give them back, in lower "
    "case without spaces around. A number that is NULL is unknown and meets no condition.\n"
)


def chain_of(data: Any) -> tuple[Table, ...]:
    """The tables of a task."""
    tables = (Table(it["name"], it["parent"], tuple(it["words"]), tuple(it["numbers"])) for it in data["tables"])
    return tuple(tables)


def databases(data: Any) -> list[Database]:
    """The rows that everybody sees, and the hidden sets behind them."""
    chain, ddl = chain_of(data), tuple(table.ddl for table in chain_of(data))
    draws = (random_keys.generator("sql rows", data["seed"], number) for number in range(HIDDEN + 1))
    return [Database(ddl, rows_of(chain, draw, data["rows"], data["dirty"])) for draw in draws]


def by_sqlite(query: str, among: Sequence[Database]) -> list[Result]:
    """What one of our own queries gives by SQLite, which has nothing of DuckDB."""
    return [given(in_sqlite(it), query) for it in among]


def in_sqlite(it: Database) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for ddl in it.ddl:
        connection.execute(ddl)
    for table, rows in it.rows.items():
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' for _ in rows[0])})", rows)
    return connection


def given(connection: sqlite3.Connection, query: str) -> Result:
    return Result(tuple(connection.execute(query).fetchall()))


def telling(asked: Question, data: Any) -> bool:
    """Whether these rows tell the question from its likes: on the hidden sets the reference gives rows, not the same on
    all, not the visible ones again, and no query that differs in a single thing gives what it gives."""
    sets = databases(data)
    made = list(map(in_sqlite, sets))
    seen, *wanted = (given(connection, asked.sql()) for connection in made)
    if any(not it.rows or None in it.rows[0] for it in wanted) or any(it == seen for it in wanted):
        return False
    if all(database.same(it, wanted[0]) for it in wanted):
        return False
    likes = (*(other.sql() for other in asked.others()), *swapped(asked.sql()))
    pairs = list(zip(made[1:], wanted, strict=True))
    return not any(all(database.same(given(connection, like), it) for connection, it in pairs) for like in likes)


def generate(split: Split, index: int, dials: dict[str, Any]) -> dict[str, Any]:
    """A task of the split: tables, a question, and rows that tell it from its likes."""

    def draw(attempt: int) -> dict[str, Any] | None:
        generator = random_keys.generator("sql", split, index, attempt, repr(sorted(dials.items())))
        asked = question(generator, dials)
        tables = list(map(table_data, asked.chain))
        forms = {"english": asked.english(), "brief": asked.brief(), "reference": asked.sql()}
        if not in_split(split, repr(tables), asked.sql()):
            return None
        data = {"tables": tables, "rows": dials["rows"], "dirty": dials["dirty"], **forms}
        likely = ({**data, "seed": generator.getrandbits(60)} for _ in range(3))
        return next((rows for rows in likely if telling(asked, rows)), None)

    return drawn(split, draw, dials)


def table_data(table: Table) -> dict[str, Any]:
    """A table as the data of a task."""
    return {"name": table.name, "parent": table.parent, "words": list(table.words), "numbers": list(table.numbers)}


@lru_cache(maxsize=4096)
def _wanted(key: str, reference: str) -> list[list[Result]]:
    """A place to keep what a reference gives, filled by who asks first."""
    return []


class Sql(Relay):
    """The team form. Settings: `turns` the team gets, `prompts` wording, `reward` shaped or by outcome; of its
    questions how many `joins`, `filters` (conditions), how much `grouping` (1: groups, 2: the largest or only large
    groups) and `nesting` (1: a subquery, 2: two); of its rows how many in the first table, and the share that is
    `dirty`."""

    roles: ClassVar[tuple[str, ...]] = ("analyst", "checker")
    language: ClassVar[str] = "sql"
    titles: ClassVar[tuple[str, str]] = ("sql draft", "sql query")
    # What the full prompt for a draft says of who decides after it.
    after: ClassVar[str] = "A team mate sees it and what it gives on the rows at hand, and decides."

    def __init__(
        self, task: Task, turns: Turns = 2, prompts: Prompts = "full", reward: Rewards = "shaped", **dials: Any
    ) -> None:
        super().__init__(task, turns, prompts, reward)
        self.chain = chain_of(task.data)

    @classmethod
    def tasks(
        cls,
        split: Split,
        joins: Dial = 1,
        filters: Dial = 1,
        grouping: Dial = 1,
        nesting: Dial = 0,
        dirty: Share = 0.0,
        rows: Annotated[int, Field(ge=8, le=200)] = 12,
        **settings: Any,
    ) -> Sequence[Task]:
        """Questions keyed by split and index. Tables and reference decide the split. Raises ConfigError where there is
        no second table for the second subquery."""
        if nesting > 1 and not joins:
            raise ConfigError(
                f"settings.nesting: got {nesting} with joins 0; expected at most 1, as the second subquery counts rows "
                "of another table. Set settings.joins=1 or settings.nesting=1."
            )
        database.DUCKDB.file()
        dials: dict[str, Any] = {"joins": joins, "filters": filters, "grouping": grouping, "nesting": nesting}
        dials |= {"dirty": dirty, "rows": rows}
        name = "-".join([split, *map(str, dials.values())])
        return GeneratedTasks(SPLIT_SIZES[split], lambda index: generate(split, index, dials), name)

    async def judge(self, text: str) -> Judged:
        """Run the query on the rows that everybody sees and on the hidden ones, at once."""
        query, sets = text.rstrip().rstrip(";"), databases(self.task.data)
        seen, *results = await database.run(query, sets)
        if seen.error:
            return Judged(False, False, 0.0, f"The query fails: {seen.error}", "error")
        wanted = await self.wanted(sets)
        right = sum(map(database.same, results, wanted))
        return Judged(True, right == len(wanted), right / len(wanted), shown(seen), brief(seen))

    async def wanted(self, sets: Sequence[Database]) -> list[Result]:
        """What the reference gives on the hidden rows."""
        data = self.task.data
        kept = _wanted(f"{data['seed']} {data['rows']} {data['dirty']}", data["reference"])
        if not kept:
            kept.append(await database.run(data["reference"], sets[1:]))
        return kept[0]

    def question(self) -> str:
        data, seen = self.task.data, databases(self.task.data)[0]
        tables = "\n".join(f"{table.ddl};\n{first_rows(table, seen)}" for table in self.chain)
        dirty = DIRTY if data["dirty"] else ""
        return (
            f"A database (DuckDB) has these tables, shown with their first rows:\n\n{tables}\n\n{dirty}"
            f"Question: {data['english']}\n"
            "Your query is judged on other rows in the same tables, so write what computes the answer. It must be one "
            "SELECT statement."
        )

    def brief(self) -> str:
        tables = "\n".join(f"{table.name} {' '.join(table.columns)}" for table in self.chain)
        return f"{tables}\n{self.task.data['brief']}"

    def asked(self) -> tuple[str, str]:
        form = "Answer with one ```sql block."
        return f"Write the query. {self.after} {form}", f"Decide on the query that counts. {form}"

    def privileged(self) -> str:
        return f"reference {self.task.data['reference']}"

    def render(self) -> Drawing:
        seen = databases(self.task.data)[0]
        tables = [(it.name, drawings.table(it.columns, _cells(seen.rows[it.name][:8]))) for it in self.chain]
        parts: list[tuple[str, Drawing]] = [("question", drawings.text(self.task.data["english"])), *tables]
        if self.draft is not None:
            parts += [("draft", drawings.code(self.said, language="sql")), ("gave", drawings.text(self.draft.told))]
        return drawings.several(*parts)


def _cells(rows: Sequence[Sequence[Any]]) -> list[list[str | float]]:
    return [[value if isinstance(value, int) else str(value) for value in row] for row in rows]


def first_rows(table: Table, seen: Database) -> str:
    """The first rows of a table, a line each, words in quotes."""
    lines = [", ".join("NULL" if it is None else repr(it) for it in row) for row in seen.rows[table.name][:3]]
    return "\n".join(f"-- {line}" for line in lines)


def shown(seen: Result, most: int = 10) -> str:
    """The first rows of a result, for the other role."""
    lines = [str(tuple(row))[:200] for row in seen.rows[:most]]
    more = f"\nand {len(seen.rows) - most} more" if len(seen.rows) > most else ""
    return f"It gives {len(seen.rows)} rows on the rows at hand:\n" + "\n".join(lines) + more


def brief(seen: Result) -> str:
    """The number of rows and columns, for small models."""
    return f"gave {len(seen.rows)} x {len(seen.rows[0]) if seen.rows else 0}"


class SqlAlone(relay.Alone, Sql):
    """One agent that writes the query at once."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)


class SqlSolo(relay.Solo, Sql):
    """One agent that tries a query, sees what it gives, and decides."""

    after: ClassVar[str] = "You see what it gives on the rows at hand, and decide then."
