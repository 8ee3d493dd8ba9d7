"""What a SQL query that a model wrote gives on given rows, by DuckDB in a child of the sandbox.

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
# How a query that reads begins, comments before it too; what begins in another way starts no process.
READING = re.compile(r"\s*(select|with|from|values|table|\(|--|/\*)", re.IGNORECASE)


@dataclass(frozen=True)
class Result:
    """What a query gave on one database: rows of plain values, or why there are none."""

    rows: tuple[tuple[Any, ...], ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Database:
    """Tables as statements that make them, and their rows by table."""

    ddl: tuple[str, ...]
    rows: Mapping[str, Sequence[Sequence[Any]]]


async def run(query: str, databases: Sequence[Database]) -> list[Result]:
    """What the query gives on each database. An error for what is no single SELECT, reaches outside, or takes more than
    LIMITS. Raises ConfigError without DuckDB, SandboxError where its process cannot be started."""
    refused = refusal(query)
    if refused:
        return [Result(error=refused)] * len(databases)
    asked = [{"ddl": list(it.ddl), "rows": {name: list(rows) for name, rows in it.rows.items()}} for it in databases]
    told = await DUCKDB.told("answer", {"query": query, "databases": asked}, LIMITS)
    if told is None:
        return [Result(error="the query took more time or memory than it may")] * len(databases)
    return [read(one) for one in told]


def refusal(query: str) -> str:
    """Why a query is not run at all; empty where it is."""
    if not query.strip():
        return "there is no query"
    if len(query) > MAX_QUERY or "\0" in query:
        return f"expected at most {MAX_QUERY} letters, and no zero byte"
    return "" if READING.match(query) else "expected one SELECT statement"


def read(told: Mapping[str, Any]) -> Result:
    return Result(tuple(tuple(row) for row in told.get("rows", ())), told.get("error", ""))


def same(result: Result, wanted: Result, ordered: bool = False) -> bool:
    """Whether a result is the one that is wanted: equal rows in any order unless `ordered`, figures within CLOSE."""
    if result.error or wanted.error or len(result.rows) != len(wanted.rows):
        return False
    pairs = (result.rows, wanted.rows) if ordered else (sorted(result.rows, key=rank), sorted(wanted.rows, key=rank))
    return all(same_row(row, other) for row, other in zip(*pairs, strict=True))


def same_row(row: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(row) == len(other) and all(same_value(mine, theirs) for mine, theirs in zip(row, other, strict=True))


def same_value(value: Any, wanted: Any) -> bool:
    if is_figure(value) and is_figure(wanted):
        return math.isclose(value, wanted, rel_tol=CLOSE, abs_tol=CLOSE)
    return type(value) is type(wanted) and bool(value == wanted)


def is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def rank(row: Sequence[Any]) -> list[tuple[str, Any]]:
    """A key that orders rows of mixed values: None and words first, figures rounded."""
    return [("0", 0) if it is None else ("2", float(f"{it:.6g}")) if is_figure(it) else ("1", str(it)) for it in row]
