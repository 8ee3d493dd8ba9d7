"""Run one SQL query on several sets of rows, in a child of a warm parent that has DuckDB loaded.

The query was written by a model. The engine accepts only a single SELECT, reaches no file, network, extension or Python
variable, and takes no settings any more; behind that are the child's own layers. Functions that are not deterministic
or wait, and tables that are not in the set, are found in the engine's own parse of the query. Each set of rows is
inserted after the one before it was dropped, so that a query sees only its own set.
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


def open_database() -> Any:
    """Return a database in memory whose settings are locked."""
    connection = duckdb.connect(":memory:", config=SETTINGS)
    connection.execute("SET lock_configuration = true")
    return connection


# Opened in the warm parent and inherited by each child: opening takes as long as ten queries. With SETTINGS it starts
# no thread, which a fork would lose.
CONNECTION = open_database()

# Names that read the clock without brackets, if no column has the name; table functions that read nothing outside.
CLOCKS = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
TABLE_FUNCTIONS = {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}


def find_unsteady_functions() -> set[str]:
    """Return the functions that the engine declares not to be deterministic, and the macros that use them."""
    result = CONNECTION.execute("SELECT lower(function_name), stability, macro_definition FROM duckdb_functions()")
    rows = result.fetchall()
    names = {name for name, stability, _ in rows if stability not in (None, "CONSISTENT")} | CLOCKS
    macros = {name: set(re.findall(r"\w+", definition.lower())) for name, _, definition in rows if definition}
    # A macro may use another macro: repeat until no new name is added.
    while more := {name for name, words in macros.items() if name not in names and words & names}:
        names |= more
    return names


UNSTEADY = find_unsteady_functions()
# The engine's own views that a query can name without their schema.
BUILT_IN_VIEWS = "SELECT view_name FROM duckdb_views() WHERE schema_name IN ('main', 'pg_catalog')"
VIEWS = {name.lower() for (name,) in CONNECTION.execute(BUILT_IN_VIEWS).fetchall()}


def answer(query: str, databases: list[dict[str, Any]], nonce: str) -> str:
    """Run the query on every set of rows and write the results in one line with the nonce.

    A set is `{"ddl": [...], "rows": {table: [[...], ...]}}`, a result `{"rows": [...]}` or `{"error": "..."}`. After an
    error the query is not run on the remaining sets.
    """
    results: list[dict[str, Any]] = []
    for database in databases:
        results.append(results[-1] if results and "error" in results[-1] else run_on_rows(query, database))
    os.write(1, f"{nonce} {json.dumps(results)}\n".encode("ascii"))
    return ""


def run_on_rows(query: str, database: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the query on one set of rows."""
    create_tables(database)
    try:
        return {"rows": fetch_rows(query, {table.lower() for table in database["rows"]})}
    except (duckdb.Error, RuntimeError, ValueError, OverflowError, UnicodeError) as error:
        return {"error": str(error)[:MAX_TEXT]}
    finally:
        for table in reversed(database["rows"]):
            CONNECTION.execute(f"DROP TABLE {table}")


def create_tables(database: dict[str, Any]) -> None:
    """Create the tables and insert the rows."""
    for ddl in database["ddl"]:
        CONNECTION.execute(ddl)
    for table, rows in database["rows"].items():
        placeholders = ", ".join(f"({', '.join('?' for _ in row)})" for row in rows)
        CONNECTION.execute(f"INSERT INTO {table} VALUES {placeholders}", [value for row in rows for value in row])


def fetch_rows(query: str, tables: set[str]) -> list[list[Any]]:
    """Return the rows of a single SELECT from these tables, run in a read-only transaction.

    Raises ValueError for any other query.
    """
    statements = CONNECTION.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ValueError("expected one SELECT statement")
    if violation := find_violation(query, tables):
        raise ValueError(f"{violation} is not allowed here")
    CONNECTION.execute("BEGIN TRANSACTION READ ONLY")
    try:
        rows = CONNECTION.execute(statements[0]).fetchmany(MAX_ROWS)
        return [[plain(value) for value in row] for row in rows]
    finally:
        CONNECTION.execute("ROLLBACK")


def find_violation(query: str, tables: set[str]) -> str:
    """Return the first part of a SELECT that is not deterministic or not made of the tables, or an empty string."""
    parsed = json.loads(CONNECTION.execute("SELECT json_serialize_sql(?)", [query]).fetchone()[0])
    if parsed["error"]:
        raise ValueError("expected one SELECT statement")
    nodes = list(iterate_nodes(parsed))
    cte_names = {entry["key"].lower() for node in nodes for entry in node.get("cte_map", {}).get("map", ())}
    if hidden_views := cte_names & VIEWS:
        # Elsewhere in the query, where the common table expression is not in scope, the name means the engine's view.
        return hidden_views.pop()
    allowed = tables | cte_names
    return next(filter(None, (violation_of(node, allowed) for node in nodes)), "")


def violation_of(node: dict[str, Any], allowed: set[str]) -> str:
    """Return the name of a parse node that is not allowed, or an empty string; `allowed` are names of tables."""
    kind = node.get("type")
    if node.get("sample"):
        return "a sample"
    if kind == "BASE_TABLE":
        is_allowed = node["table_name"].lower() in allowed and node["schema_name"] in ("", "main")
        return "" if is_allowed else node["table_name"]
    if kind == "TABLE_FUNCTION":
        name = node["function"]["function_name"].lower()
        return "" if name in TABLE_FUNCTIONS else name
    if kind == "FUNCTION":
        name = node["function_name"].lower()
        reads_clock = name == "age" and len(node["arguments"]) == 1  # counts from today
        return name if name in UNSTEADY or reads_clock else ""
    if kind == "COLUMN_REF" and len(node["column_names"]) == 1 and node["column_names"][0].lower() in CLOCKS:
        return node["column_names"][0]
    return ""


def iterate_nodes(parsed: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a parse, in the order of the text."""
    pending = [parsed]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
        if isinstance(value, dict | list):
            pending += reversed(list(value.values()) if isinstance(value, dict) else value)


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: None, bool, int, float, or a text of at most MAX_TEXT characters."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else str(value)[:MAX_TEXT]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if type(value).__name__ == "Decimal":
        return float(value)
    return str(value)[:MAX_TEXT]


# Run once in the warm parent, so that children inherit what the engine initialises at its first query.
run_on_rows("SELECT COUNT(*) FROM t", {"ddl": ["CREATE TABLE t (a INTEGER)"], "rows": {"t": [[1]]}})
