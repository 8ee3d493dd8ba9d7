"""SQL: the grammar by hand, verdicts by hand, and what the engine refuses."""

import asyncio
import importlib.util
import math
import random

import pytest

from cadre.env import Env
from cadre.errors import ConfigError
from cadre.types import Task
from cadre_tasks.worlds import sql
from cadre_tasks.worlds.database import Database, Result, run, same
from cadre_tasks.worlds.sql import Sql, SqlSingleAgent, by_sqlite
from cadre_tasks.worlds.sql_questions import Condition, SqlQuestion, Table, question, rows_of, swapped
from tests.cadre_tasks.worlds.trying import (
    check_contract,
    check_exploits,
    check_hostile,
    check_references,
    check_splits,
)
from tests.helpers.playing import play, seen

pytest.importorskip("duckdb")
GUIDE = Table("guide", "", ("city",), ("age",))
TRIP = Table("trip", "guide", ("kind",), ("price", "hours"))
SMALL = Database(
    (GUIDE.ddl, TRIP.ddl),
    {
        "guide": [(1, "rome", 30), (2, " ROME", 40), (3, "oslo", 50)],
        "trip": [(1, 1, "day", 5, 2), (2, 2, "day", 7, None), (3, 3, "night", 9, 4), (4, 3, "day", 11, 6)],
    },
)


def given(query: str, database: Database = SMALL) -> Result:
    return asyncio.run(run(query, [database]))[0]


def test_a_question_in_its_three_forms() -> None:
    requests = SqlQuestion(
        (GUIDE, TRIP), "sum", "price", (Condition("trip", "hours", ">", 1),), ("guide", "city"), least=2, clean=True
    )
    assert requests.sql() == (
        "SELECT lower(trim(guide.city)), SUM(trip.price) FROM trip JOIN guide ON trip.guide_id = guide.id "
        "WHERE trip.hours > 1 GROUP BY 1 HAVING COUNT(*) >= 2"
    )
    assert requests.brief() == "sum trip price where trip.hours > 1 by guide.city least 2"
    assert requests.english().startswith(
        "For each guide.city with at least 2 such rows, what is the sum of trip.price where trip.hours is above 1?"
    )
    assert given(requests.sql()).rows == (("oslo", 20),)


def test_words_that_are_dirty_and_a_nested_question() -> None:
    dirty = SqlQuestion((GUIDE, TRIP), "count", "", (Condition("guide", "city", "=", "rome"),), clean=True)
    assert given(dirty.sql()).rows == ((2,),)
    assert given(SqlQuestion((GUIDE, TRIP), "count", "", (Condition("guide", "city", "=", "rome"),)).sql()).rows == (
        (1,),
    )
    nested = SqlQuestion((TRIP,), "max", "price", (Condition("trip", "price", "<", "avg"),))
    assert given(nested.sql()).rows == ((7,),)
    busy = SqlQuestion((GUIDE, TRIP), "avg", "price", busy=2)
    assert given(busy.sql()).rows == ((10.0,),)


@pytest.mark.parametrize(
    ("rows", "reference", "equal"),
    [
        ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], True),
        ([(1.0000000001,)], [(1,)], True),
        ([(1.1,)], [(1,)], False),
        ([("1",)], [(1,)], False),
        ([(True,)], [(1,)], False),
        ([(1,), (1,)], [(1,)], False),
        ([(1, 2)], [(1,)], False),
        ([(None, 3)], [(None, 3)], True),
    ],
)
def test_when_results_are_the_same(rows: list, reference: list, equal: bool) -> None:
    assert same(Result(tuple(rows)), Result(tuple(reference))) is equal


def test_order_counts_only_where_it_is_asked_for() -> None:
    first, second = Result(((1,), (2,))), Result(((2,), (1,)))
    assert same(first, second)
    assert not same(first, second, ordered=True)
    assert not same(Result(error="no"), Result(error="no"))


REFUSED = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM glob('/*')",
    "COPY guide TO '/tmp/out.csv'",
    "ATTACH '/tmp/x.db' AS x",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "PRAGMA database_list",
    "INSERT INTO guide VALUES (9, 'x', 1)",
    "DROP TABLE guide",
    "CREATE TABLE x AS SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT * FROM databases",
    "SELECT * FROM CONNECTION",
    "SELECT random()",
    "SELECT now()",
    'SELECT "now" ()',
    "SELECT /* here */ current_date",
    'SELECT "current_date"',
    "SELECT 1 FROM guide WHERE localtime > TIME '12:00:00'",
    "FROM query('SELECT random()')",
    "FROM query_table('guide')",
    "SELECT list_transform([1], lambda a: a + random())",
    "SELECT age(DATE '2020-01-01')",
    "SELECT ago(INTERVAL 1 DAY)",
    "SELECT pg_postmaster_start_time()",
    "SELECT 1 UNION ALL SELECT txid_current()",
    "WITH a AS (SELECT gen_random_uuid() AS b) SELECT * FROM a",
    "SELECT * FROM guide TABLESAMPLE 1 ROWS",
    "SELECT * FROM duckdb_tables",
    "SELECT * FROM information_schema.tables",
    "SELECT 1 FROM duckdb_tables, (WITH duckdb_tables AS (SELECT 1 AS a) SELECT a FROM duckdb_tables) x",
    "SELECT * FROM pg_catalog.pg_tables",
    "FROM (PIVOT guide ON city)",
    "SELECT 1 USING SAMPLE 10%",
    "SELECT * FROM duckdb_settings()",
    "SELECT current_setting('memory_limit')",
    "SELECT " + "(" * 1900 + "1" + ")" * 1900,
    "SELECT '\ud800'",
    "SELECT 1 \x00",
    "",
]


def test_the_engine_refuses_what_is_no_reading_of_the_tables() -> None:
    async def all_of_them() -> list[Result]:
        return [(await run(query, [SMALL]))[0] for query in REFUSED]

    for query, result in zip(REFUSED, asyncio.run(all_of_them()), strict=True):
        assert result.error, query[:80]
        assert result.rows == ()
        assert "root:" not in result.error


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 'today' AS w -- the answer now",
        "/* a random sample */ SELECT 1 AS sample",
        "SELECT 1 AS current_price",
        "SELECT $$now()$$, e'it\\'s random()', $a$it's$a$",
        'SELECT random AS "now", t.today FROM (SELECT 1 AS random, 2 AS today) t',
        "WITH tables AS (SELECT 1) FROM tables",
        "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r WHERE a < 3) SELECT * FROM r",
        "SELECT * FROM main.GUIDE, range(3), unnest([1, 2])",
        "SELECT age(DATE '2020-01-01', DATE '2019-01-01'), CURRENT_DATES FROM (SELECT 1 AS current_dates)",
        "FROM guide SELECT *, row_number() OVER (ORDER BY city) QUALIFY row_number() OVER (ORDER BY city) < 3",
    ],
)
def test_words_that_call_nothing_are_no_reason_to_refuse(query: str) -> None:
    """Mistake: a comment, a text or a name is taken for a function that gives another result each time."""
    assert given(query).error == ""


def test_a_query_without_end_is_ended() -> None:
    endless = "WITH RECURSIVE a AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM a) SELECT COUNT(*) FROM a"
    assert given(endless).error == "the query took more time or memory than it may"
    assert given("SELECT COUNT(*) FROM guide").rows == ((3,),)


def test_each_set_of_rows_is_seen_alone() -> None:
    other_database = Database(SMALL.ddl, {**SMALL.rows, "guide": [(7, "lima", 1)]})
    results = asyncio.run(run("SELECT id, age FROM guide", [SMALL, other_database, SMALL]))
    assert [result.rows for result in results] == [((1, 30), (2, 40), (3, 50)), ((7, 1),), ((1, 30), (2, 40), (3, 50))]


def test_the_rows_of_a_task_tell_its_question_from_others() -> None:
    for number in range(20):
        draw = random.Random(number)
        requests = question(draw, {"joins": 1, "filters": 1, "grouping": 1, "nesting": 0, "dirty": 0})
        assert len({*swapped(requests.sql()), *(second.sql() for second in requests.others())}) >= 4
        rows = rows_of(requests.chain, draw, 6, 0.5)
        assert [len(rows[table.name]) for table in requests.chain] == [6, 9]
    task = Sql.tasks("test")[0]
    sets = sql.databases(task.data)
    expected = by_sqlite(task.data["reference"], sets)
    assert all(result.rows for result in expected[1:])
    assert expected[0] not in expected[1:]


def test_what_is_shown_and_what_is_hidden() -> None:
    task = Sql.tasks("test")[0]
    env = Sql(task)
    assert task.data["english"] in seen(env, "analyst")
    assert task.data["reference"] not in seen(env, "analyst")
    play(env, task.data["reference"])
    hidden = sql.databases(task.data)[1:]
    (expected,) = by_sqlite(task.data["reference"], hidden[:1])
    assert str(expected.rows[0]) not in seen(env, "checker")
    assert env.privileged() == f"reference {task.data['reference']}"
    assert env.render() is not None


def test_compact_prompts() -> None:
    task = Sql.tasks("train", joins=0, grouping=0)[0]
    env = Sql(task, prompts="compact")
    assert seen(env, "analyst").startswith("sql draft\n")
    assert seen(env, "analyst").endswith(task.data["brief"])
    play(env, task.data["reference"])
    assert seen(env, "checker").endswith(f"{task.data['brief']}\n{task.data['reference']}\ngave 1 x 1")


@pytest.mark.parametrize("share", [0.05, pytest.param(1.0, marks=pytest.mark.slow)])
def test_references_exploits_and_hostile_answers(share: float) -> None:
    check_references("sql", math.ceil(share * 4))
    check_exploits("sql", math.ceil(share * 4))
    check_hostile("sql", math.ceil(share * 40))


@pytest.mark.slow
def test_splits_and_contract() -> None:
    check_splits("sql", "tables reference")
    check_contract(["sql-single-agent"], ["SELECT 1"], turns=1, joins=0, grouping=0)


def test_a_clear_error_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*\[worlds\]"):
        Sql.tasks("train")


def test_a_solo_agent_sees_what_its_query_gave() -> None:
    task: Task = SqlSingleAgent.tasks("test")[1]
    env: Env = SqlSingleAgent(task)
    play(env, task.data["reference"])
    assert "rows on the rows at hand" in seen(env, "agent")


def test_a_second_subquery_without_a_second_table_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"settings.nesting: got 2 with joins 0; expected at most 1"):
        Sql.tasks("train", joins=0, nesting=2)
