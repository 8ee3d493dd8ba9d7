"""Runs SQL queries that a model wrote on given rows, by DuckDB in a child of the sandbox.

The query is hostile text: it may reach for files, other databases, extensions and settings, never end, or fill the
memory. The engine's settings refuse the first (`cadre_sandbox.inside.database`), the child's limits end the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cadre_sandbox import Limits
from cadre_tasks.judging_package import JudgingPackage

DUCKDB = JudgingPackage("duckdb", "worlds", "runs queries", "inside.database")
LIMITS = Limits(cpu_s=1.0, wall_s=30.0, memory_mb=2048, output_bytes=1 << 20)
MAX_QUERY = 4000  # letters; no reference is longer than 600
CLOSE = 1e-6  # how far figures may be apart, as a share
# The beginnings of a query that reads, comments included; other queries start no process.
READING = re.compile(r"\s*(select|with|from|values|table|\(|--|/\*)", re.IGNORECASE)


@dataclass(frozen=True)
class Result:
    """The result of a query on one database: rows of plain values, or an error."""

    rows: tuple[tuple[Any, ...], ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Database:
    """The statements that make the tables, and their rows by table."""

    ddl: tuple[str, ...]
    rows: Mapping[str, Sequence[Sequence[Any]]]


async def run(query: str, databases: Sequence[Database]) -> list[Result]:
    """Return the result of the query on each database. An error if it is no single SELECT, reaches outside, or takes
    more than LIMITS. Raises ConfigError without DuckDB, SandboxError if its process cannot be started."""
    refused = refusal(query)
    if refused:
        return [Result(error=refused)] * len(databases)
    payload = [{"ddl": list(it.ddl), "rows": {name: list(rows) for name, rows in it.rows.items()}} for it in databases]
    answers = await DUCKDB.call("answer", {"query": query, "databases": payload}, LIMITS)
    if answers is None:
        return [Result(error="the query took more time or memory than it may")] * len(databases)
    return [read(answer) for answer in answers]


def refusal(query: str) -> str:
    """Return the reason for which a query is not run at all, "" if it is run."""
    if not query.strip():
        return "there is no query"
    if len(query) > MAX_QUERY or "\0" in query:
        return f"expected at most {MAX_QUERY} letters, and no zero byte"
    return "" if READING.match(query) else "expected one SELECT statement"


def read(answer: Mapping[str, Any]) -> Result:
    return Result(tuple(tuple(row) for row in answer.get("rows", ())), answer.get("error", ""))


def same(result: Result, expected: Result, ordered: bool = False) -> bool:
    """Return True if a result equals the expected one: equal rows, in any order unless `ordered`, figures
    within CLOSE."""
    if result.error or expected.error or len(result.rows) != len(expected.rows):
        return False
    pairs = (
        (result.rows, expected.rows) if ordered else (sorted(result.rows, key=rank), sorted(expected.rows, key=rank))
    )
    return all(
        len(row) == len(expected_row)
        and all(same_value(value, expected_value) for value, expected_value in zip(row, expected_row, strict=True))
        for row, expected_row in zip(*pairs, strict=True)
    )


def same_value(value: Any, expected: Any) -> bool:
    if is_figure(value) and is_figure(expected):
        # SUM and AVG depend on the order of the rows in the last digits.
        return math.isclose(value, expected, rel_tol=CLOSE, abs_tol=CLOSE)
    return type(value) is type(expected) and bool(value == expected)


def is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def rank(row: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return a sort key for rows of mixed values: None and words first, figures rounded."""
    # The first element separates the kinds, since words cannot be compared with figures.
    return [("0", 0) if it is None else ("2", float(f"{it:.6g}")) if is_figure(it) else ("1", str(it)) for it in row]
