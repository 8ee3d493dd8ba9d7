"""A question about tables, answered by a SQL query: analyst and checker over DuckDB.

The role `analyst` writes a query, which is run on the visible rows; the role `checker` sees the query and its result,
and its own query counts (`cadre_tasks.worlds.relay`). It is judged on hidden rows of the same tables: its results are
compared with those of the reference, and its value is the share of the sets of rows on which both are the same. The
single-agent forms are `SqlOneTurn` and `SqlSingleAgent`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre import random_keys
from cadre.env import Split
from cadre.envs import drawings
from cadre.envs.splits import drawn_tasks, in_split
from cadre.errors import ConfigError
from cadre.types import Drawing, Task
from cadre_tasks.worlds import database, relay
from cadre_tasks.worlds.database import Database, Result
from cadre_tasks.worlds.relay import Judged, Prompts, Relay, Rewards, Turns
from cadre_tasks.worlds.sql_questions import SqlQuestion, Table, question, rows_of, swapped

HIDDEN = 3  # sets of rows that queries are judged on
Dial = Annotated[int, Field(ge=0, le=2)]
Share = Annotated[float, Field(ge=0.0, le=0.9)]
DIRTY = (
    "Words may have stray spaces around them and letters of either case: compare them, and give them back, in lower "
    "case without spaces around. A number that is NULL is unknown and meets no condition.\n"
)


def chain_of(data: Any) -> tuple[Table, ...]:
    """Return the tables of a task."""
    tables = (Table(it["name"], it["parent"], tuple(it["words"]), tuple(it["numbers"])) for it in data["tables"])
    return tuple(tables)


def databases(data: Any) -> list[Database]:
    """Return the visible rows, and the hidden sets behind them."""
    chain, ddl = chain_of(data), tuple(table.ddl for table in chain_of(data))
    draws = (random_keys.generator("sql rows", data["seed"], number) for number in range(HIDDEN + 1))
    return [Database(ddl, rows_of(chain, draw, data["rows"], data["dirty"])) for draw in draws]


def by_sqlite(query: str, sets: Sequence[Database]) -> list[Result]:
    """Return the results of one of our own queries by SQLite, which shares no code with DuckDB."""
    return [run_query(in_sqlite(it), query) for it in sets]


def in_sqlite(it: Database) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for ddl in it.ddl:
        connection.execute(ddl)
    for table, rows in it.rows.items():
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' for _ in rows[0])})", rows)
    return connection


def run_query(connection: sqlite3.Connection, query: str) -> Result:
    return Result(tuple(connection.execute(query).fetchall()))


def distinguishes(candidate: SqlQuestion, data: Any) -> bool:
    """Return True if these rows distinguish the question from similar ones: on the hidden sets the reference gives
    rows, not the same on all, not the visible ones again, and no query with a single difference gives the same."""
    sets = databases(data)
    connections = list(map(in_sqlite, sets))
    visible, *expected = (run_query(connection, candidate.sql()) for connection in connections)
    if any(not it.rows or None in it.rows[0] for it in expected) or any(it == visible for it in expected):
        return False
    if all(database.same(it, expected[0]) for it in expected):
        return False
    likes = (*(similar.sql() for similar in candidate.others()), *swapped(candidate.sql()))
    pairs = list(zip(connections[1:], expected, strict=True))
    return not any(all(database.same(run_query(connection, like), it) for connection, it in pairs) for like in likes)


@lru_cache(maxsize=4096)
def _wanted(key: str, reference: str) -> list[list[Result]]:
    """Return a list to store the results of a reference in, filled by the first caller."""
    # The cached value is a list that the first caller fills: an awaited result cannot be cached itself.
    return []


class Sql(Relay):
    """The team form. Settings: `turns` the team gets, `prompts` wording, `reward` shaped or by outcome; of its
    questions the number of `joins` and `filters` (conditions), the degree of `grouping` (1: groups, 2: the largest or
    only large groups) and `nesting` (1: a subquery, 2: two); of its rows the number in the first table, and the share
    that is `dirty`."""

    roles: ClassVar[tuple[str, ...]] = ("analyst", "checker")
    one_agent: ClassVar[str] = "sql-single-agent"
    language: ClassVar[str] = "sql"
    titles: ClassVar[tuple[str, str]] = ("sql draft", "sql query")
    # What the full prompt for a draft says of who decides after it.
    decider_note: ClassVar[str] = "A team mate sees it and what it gives on the rows at hand, and decides."

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
        """Return questions keyed by split and index. Tables and reference decide the split. Raises ConfigError if there
        is no second table for the second subquery."""
        if nesting > 1 and not joins:
            raise ConfigError(f"settings.nesting: got {nesting} with joins 0; expected at most 1, or settings.joins=1.")
        database.DUCKDB.file()
        dials: dict[str, Any] = {"joins": joins, "filters": filters, "grouping": grouping, "nesting": nesting}
        dials |= {"dirty": dirty, "rows": rows}
        name = "-".join([split, *map(str, dials.values())])

        def draw(index: int, attempt: int) -> dict[str, Any] | None:
            generator = random_keys.generator("sql", split, index, attempt, repr(sorted(dials.items())))
            drawn_question = question(generator, dials)
            tables = [
                {"name": it.name, "parent": it.parent, "words": list(it.words), "numbers": list(it.numbers)}
                for it in drawn_question.chain
            ]
            forms = {
                "english": drawn_question.english(),
                "brief": drawn_question.brief(),
                "reference": drawn_question.sql(),
            }
            if not in_split(split, repr(tables), drawn_question.sql()):
                return None
            data = {"tables": tables, "rows": dials["rows"], "dirty": dials["dirty"], **forms}
            # Three tries with other rows before another question is drawn.
            candidates = ({**data, "seed": generator.getrandbits(60)} for _ in range(3))
            return next((rows for rows in candidates if distinguishes(drawn_question, rows)), None)

        return drawn_tasks(split, draw, dials, name)

    async def judge(self, text: str) -> Judged:
        """Run the query on the rows that everybody sees and on the hidden ones, at once."""
        query, sets = text.rstrip().rstrip(";"), databases(self.task.data)
        # One call of the child for all sets of rows.
        visible, *results = await database.run(query, sets)
        if visible.error:
            return Judged(False, False, 0.0, f"The query fails: {visible.error}", "error")
        expected = await self.wanted(sets)
        right = sum(map(database.same, results, expected))
        return Judged(True, right == len(expected), right / len(expected), shown(visible), brief(visible))

    async def wanted(self, sets: Sequence[Database]) -> list[Result]:
        """Return the results of the reference on the hidden rows."""
        data = self.task.data
        cached = _wanted(f"{data['seed']} {data['rows']} {data['dirty']}", data["reference"])
        if not cached:
            cached.append(await database.run(data["reference"], sets[1:]))
        return cached[0]

    def question(self) -> str:
        data, visible = self.task.data, databases(self.task.data)[0]
        tables = "\n".join(f"{table.ddl};\n{first_rows(table, visible)}" for table in self.chain)
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
        return f"Write the query. {self.decider_note} {form}", f"Decide on the query that counts. {form}"

    def privileged(self) -> str:
        return f"reference {self.task.data['reference']}"

    def render(self) -> Drawing:
        visible = databases(self.task.data)[0]
        parts: list[tuple[str, Drawing]] = [("question", drawings.text(self.task.data["english"]))]
        for it in self.chain:
            rows = [[v if isinstance(v, int) else str(v) for v in row] for row in visible.rows[it.name][:8]]
            parts.append((it.name, drawings.table(it.columns, rows)))
        if self.draft is not None:
            parts += [("draft", drawings.code(self.said, language="sql")), ("gave", drawings.text(self.draft.feedback))]
        return drawings.several(*parts)


def first_rows(table: Table, visible: Database) -> str:
    """Return the first rows of a table, a line each, words in quotes."""
    lines = [", ".join("NULL" if it is None else repr(it) for it in row) for row in visible.rows[table.name][:3]]
    return "\n".join(f"-- {line}" for line in lines)


def shown(result: Result, limit: int = 10) -> str:
    """Return the first rows of a result, for the other role."""
    lines = [str(tuple(row))[:200] for row in result.rows[:limit]]
    more = f"\nand {len(result.rows) - limit} more" if len(result.rows) > limit else ""
    return f"It gives {len(result.rows)} rows on the rows at hand:\n" + "\n".join(lines) + more


def brief(result: Result) -> str:
    """Return the number of rows and columns, for small models."""
    return f"gave {len(result.rows)} x {len(result.rows[0]) if result.rows else 0}"


class SqlOneTurn(relay.RelayOneTurn, Sql):
    """One agent that writes the query at once."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)


class SqlSingleAgent(relay.RelaySingleAgent, Sql):
    """One agent that tries a query, sees what it gives, and decides."""

    decider_note: ClassVar[str] = "You see what it gives on the rows at hand, and decide then."
