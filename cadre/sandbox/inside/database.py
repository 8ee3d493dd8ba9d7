"""Runs one SQL query on several sets of rows, in a child of a warm parent that has DuckDB loaded.

The query is a model's. The engine itself refuses what is no single SELECT, reaches no file, no network, no extension
and no variable of Python, and takes no setting any more; the child's own layers stand behind that. The sets of rows are
put in one after the other, each when the one before is gone, so that no query sees another set than its own.
"""

import json
import os
from typing import Any

import duckdb

MAX_ROWS = 1000  # of a result; no reference has so many
MAX_TEXT = 200  # letters of a value, and of an error
SETTINGS: dict[str, Any] = {
    "threads": 1,
    "async_threads": 0,
    "memory_limit": "200MB",
    "max_temp_directory_size": "0KB",
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
    "python_scan_all_frames": False,
}


def opened() -> Any:
    """A database in memory that takes no setting any more."""
    connection = duckdb.connect(":memory:", config=SETTINGS)
    connection.execute("SET lock_configuration = true")
    return connection


# Opened in the warm parent, where it has no thread, and inherited by each child: opening takes as long as ten queries.
CONNECTION = opened()


def answer(query: str, databases: list[dict[str, Any]], nonce: str) -> str:
    """Run the query on every set of rows and write what came of it, in a line with the nonce: for each one
    `{"rows": [...]}` or `{"error": "..."}`; after an error no other set is tried. A set is
    `{"ddl": [...], "rows": {table: [[...], ...]}}`."""
    results: list[dict[str, Any]] = []
    for database in databases:
        results.append(results[-1] if results and "error" in results[-1] else of_one(query, database))
    os.write(1, f"{nonce} {json.dumps(results)}\n".encode("ascii"))
    return ""


def of_one(query: str, database: dict[str, Any]) -> dict[str, Any]:
    """What the query gives on one set of rows."""
    fill(database)
    try:
        return {"rows": rows_of(query)}
    except (duckdb.Error, RuntimeError, ValueError, OverflowError, UnicodeError) as error:
        return {"error": str(error)[:MAX_TEXT]}
    finally:
        for table in reversed(database["rows"]):
            CONNECTION.execute(f"DROP TABLE {table}")


def fill(database: dict[str, Any]) -> None:
    """Make the tables and put the rows in."""
    for ddl in database["ddl"]:
        CONNECTION.execute(ddl)
    for table, rows in database["rows"].items():
        places = ", ".join(f"({', '.join('?' for _ in row)})" for row in rows)
        CONNECTION.execute(f"INSERT INTO {table} VALUES {places}", [value for row in rows for value in row])


def rows_of(query: str) -> list[list[Any]]:
    """The rows that a single SELECT gives, in a transaction that only reads. Raises ValueError for any other."""
    statements = CONNECTION.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ValueError("expected one SELECT statement")
    CONNECTION.execute("BEGIN TRANSACTION READ ONLY")
    try:
        rows = CONNECTION.execute(statements[0]).fetchmany(MAX_ROWS)
        return [[plain(value) for value in row] for row in rows]
    finally:
        CONNECTION.execute("ROLLBACK")


def plain(value: Any) -> Any:
    """A value as JSON has it: whole numbers, floats, short texts, or None; anything else as a short text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else str(value)[:MAX_TEXT]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if type(value).__name__ == "Decimal":
        return float(value)
    return str(value)[:MAX_TEXT]


# Run once in the warm parent: what the engine sets up late is there then.
of_one("SELECT COUNT(*) FROM t", {"ddl": ["CREATE TABLE t (a INTEGER)"], "rows": {"t": [[1]]}})
