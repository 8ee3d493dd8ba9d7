"""Runs one SQL query on several sets of rows, in a child of a warm parent that has DuckDB loaded.

The query is a model's. The engine itself refuses what is no single SELECT, reaches no file, no network, no extension
and no variable of Python, and takes no setting any more; the child's own layers stand behind that. What gives another
result each time, waits, or reads what is no table of the set is found in the engine's own parse. The sets of rows are
put in one after the other, each when the one before is gone, so that no query sees another set than its own.
"""

import json
import os
import re
from collections.abc import Iterator
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

# Names without brackets that are the clock where no column is called so; functions of a table that read nothing else.
CLOCKS = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
TABLE_FUNCTIONS = {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}


def unsteady() -> set[str]:
    """The functions that the engine says are not the same at every call, and the macros that are made of them."""
    known = CONNECTION.execute("SELECT lower(function_name), stability, macro_definition FROM duckdb_functions()")
    rows = known.fetchall()
    found = {name for name, stability, _ in rows if stability not in (None, "CONSISTENT")} | CLOCKS
    macros = {name: set(re.findall(r"\w+", definition.lower())) for name, _, definition in rows if definition}
    while more := {name for name, words in macros.items() if name not in found and words & found}:
        found |= more
    return found


UNSTEADY = unsteady()
OWN = "SELECT view_name FROM duckdb_views() WHERE schema_name IN ('main', 'pg_catalog')"  # found without their schema
VIEWS = {name.lower() for (name,) in CONNECTION.execute(OWN).fetchall()}


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
        return {"rows": rows_of(query, {table.lower() for table in database["rows"]})}
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


def rows_of(query: str, tables: set[str]) -> list[list[Any]]:
    """The rows that a single SELECT of these tables gives, in a transaction that only reads. Raises ValueError for any
    other."""
    statements = CONNECTION.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ValueError("expected one SELECT statement")
    if refused := refusal(query, tables):
        raise ValueError(f"{refused} is not allowed here")
    CONNECTION.execute("BEGIN TRANSACTION READ ONLY")
    try:
        rows = CONNECTION.execute(statements[0]).fetchmany(MAX_ROWS)
        return [[plain(value) for value in row] for row in rows]
    finally:
        CONNECTION.execute("ROLLBACK")


def refusal(query: str, tables: set[str]) -> str:
    """What in a SELECT is not the same each time, or is neither one of the tables nor made of them; empty where
    nothing is."""
    parsed = json.loads(CONNECTION.execute("SELECT json_serialize_sql(?)", [query]).fetchone()[0])
    if parsed["error"]:
        raise ValueError("expected one SELECT statement")
    nodes = list(nodes_of(parsed))
    made = {entry["key"].lower() for node in nodes for entry in node.get("cte_map", {}).get("map", ())}
    if taken := made & VIEWS:  # which would name the engine's own elsewhere in the query
        return taken.pop()
    named = tables | made
    return next(filter(None, (refused(node, named) for node in nodes)), "")


def refused(node: dict[str, Any], named: set[str]) -> str:
    """What a node of a parse is, where that is refused; `named` are the tables and what the query itself names."""
    kind = node.get("type")
    if node.get("sample"):
        return "a sample"
    if kind == "BASE_TABLE":
        known = node["table_name"].lower() in named and node["schema_name"] in ("", "main")
        return "" if known else node["table_name"]
    if kind == "TABLE_FUNCTION":
        name = node["function"]["function_name"].lower()
        return "" if name in TABLE_FUNCTIONS else name
    if kind == "FUNCTION":
        name = node["function_name"].lower()
        counts = name == "age" and len(node["arguments"]) == 1  # from today
        return name if name in UNSTEADY or counts else ""
    if kind == "COLUMN_REF" and len(node["column_names"]) == 1 and node["column_names"][0].lower() in CLOCKS:
        return node["column_names"][0]
    return ""


def nodes_of(parsed: Any) -> Iterator[dict[str, Any]]:
    """Every object of a parse, in the order of what it says."""
    waiting = [parsed]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
        if isinstance(value, dict | list):
            waiting += reversed(list(value.values()) if isinstance(value, dict) else value)


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
