"""Answers for the worlds: reference answers, answers that are nearly right, exploits, and hostile texts.

One `World` each, used by `lab/worlds.py` and, a few tasks at a time, by the tests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.hostile import texts
from cadre.env import Env
from cadre_tasks.worlds.search import Search, SearchSingleAgent
from cadre_tasks.worlds.sql import Sql, SqlOneTurn, SqlSingleAgent, by_sqlite, databases
from cadre_tasks.worlds.sql_questions import swapped

Policy = Callable[[Any], str]
CANARY = "canary-7d1f"  # what a file holds that hostile answers try to read
NOISE = texts("worlds")


@dataclass(frozen=True)
class World:
    """The policies and texts that a world is tested with.

    team, variants  the form that is played, and the single-agent ones
    dials          settings from trivial to hard
    honest         a right answer for the role that acts
    nearly         an answer to a decision that is close to right and is not; None where this task has none
    exploits       policies that exploit the reward, by name
    hostile        kinds of texts that try to break out or to last for ever
    """

    team: type[Env]
    variants: tuple[type[Env], ...]
    dials: tuple[dict[str, Any], ...]
    honest: Policy
    nearly: Callable[[Any, random.Random], str | None]
    exploits: Mapping[str, Policy]
    hostile: Mapping[str, Callable[[random.Random], str]] = field(default_factory=dict)

    def attack(self, draw: random.Random) -> tuple[str, str]:
        """(kind, text) of a hostile answer. What lasts for ever is one in fifty: each costs all the time there is."""
        if draw.random() < 0.3:
            return next(NOISE)
        lasting = draw.random() < 0.02
        kind = draw.choice([name for name in self.hostile if name.startswith("endless") == lasting] or ["endless"])
        return kind, self.hostile[kind](draw)


async def play(env: Env, policy: Policy) -> float:
    """Play an episode; return the sum of the rewards of the team and of every role."""
    total = 0.0
    while observations := env.observe():
        reward = await env.step(dict.fromkeys(observations, policy(env)))
        total += reward.team + sum(reward.local.values())
    return total


def play_out(env: Env, policy: Policy) -> float:
    return asyncio.run(play(env, policy))


def always(text: str) -> Policy:
    return lambda env: text


def echo(env: Env) -> str:
    """The prompt of who acts first, back."""
    return next(iter(env.observe().values())).messages[-1].content


# What is tried everywhere.
COMMON: dict[str, Policy] = {
    "empty answer": always(""),
    "echo the prompt": echo,
    "noise": always("I think it is easy!"),
    "overlong": always("SELECT 1 -- (a b) x=1 " * 5000),
}


def other_query(env: Sql, draw: random.Random) -> str | None:
    """The reference with one thing changed."""
    return draw.choice(swapped(env.task.data["reference"]))


def seen_result(env: Sql) -> str:
    """Return the reference's result on the visible rows, as constants."""
    (shown,) = by_sqlite(env.task.data["reference"], databases(env.task.data)[:1])
    return "VALUES " + ", ".join(f"({', '.join(map(repr, row))})" for row in shown.rows)


FILES = (
    "/etc/passwd",
    "/tmp/cadre-canary.txt",
    "/proc/self/environ",
    "cadre_tasks/worlds/sql.py",
    "https://1.1.1.1/x.csv",
)


def sql_file(draw: random.Random) -> str:
    form = draw.choice(
        "SELECT * FROM read_csv('F', header=false)|SELECT * FROM read_text('F')|SELECT * FROM read_blob('F')|"
        "SELECT * FROM 'F'|SELECT * FROM glob('F*')|SELECT * FROM read_json('F')|SELECT * FROM read_parquet('F')|"
        "COPY (SELECT 1) TO 'F'|COPY t FROM 'F'|ATTACH 'F' AS d|ATTACH 'F' (READ_ONLY)|INSTALL httpfs|LOAD 'F'|"
        "EXPORT DATABASE 'F'|IMPORT DATABASE 'F'|INSTALL httpfs; LOAD httpfs; SELECT * FROM 'F'|"
        "SELECT content FROM read_text(['F', 'F'])|FROM read_csv_auto('F')|SELECT getenv('HOME')|"
        "CREATE SECRET (TYPE S3)|SELECT * FROM sniff_csv('F')|SELECT * FROM parquet_metadata('F')".split("|")
    )
    return form.replace("F", draw.choice(FILES))


def sql_injection(draw: random.Random) -> str:
    first = draw.choice(("SELECT 1", "SELECT COUNT(*) FROM t", "", "WITH a AS (SELECT 1) SELECT * FROM a"))
    second = draw.choice(
        "DROP TABLE customer|SET enable_external_access = true|SET lock_configuration = false|PRAGMA database_list|"
        "RESET memory_limit|INSERT INTO visit VALUES (1)|DELETE FROM visit|CREATE TABLE x AS SELECT 1|CHECKPOINT|"
        "UPDATE visit SET id = 0|CREATE MACRO lower(x) AS 1|CALL pragma_version()|COMMIT|BEGIN|ROLLBACK|VACUUM|"
        "EXPLAIN ANALYZE SELECT 1|USE memory|CREATE VIEW visit AS SELECT 1|ALTER TABLE visit RENAME TO v|"
        "SET threads = 8|SELECT * FROM duckdb_settings()|PREPARE p AS SELECT 1|EXECUTE p|DEALLOCATE p".split("|")
    )
    return draw.choice((f"{first}; {second}", second, f"{first}; -- {second}", f"{second}; {first}"))


def sql_inside(draw: random.Random) -> str:
    """The judge's own variables and what the engine knows of itself."""
    name = draw.choice(
        ("databases", "nonce", "query", "CONNECTION", "SETTINGS", "rows", "job", "sys", "written", "database")
    )
    return draw.choice((f"SELECT * FROM {name}", f"SELECT {name}", f"FROM {name}", f"SELECT current_setting('{name}')"))


def sql_endless(draw: random.Random) -> str:
    return draw.choice(
        "WITH RECURSIVE a AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM a) SELECT COUNT(*) FROM a|"
        "SELECT COUNT(*) FROM range(1000000000) a, range(1000000000) b WHERE a.range * b.range % 7 = 3|"
        "SELECT repeat('x', 4000000000)|SELECT sum(range) FROM range(900000000000)|"
        "SELECT list_sort(range(900000000))|SELECT string_agg(range::VARCHAR, repeat('y', 10000)) FROM range(99999999)|"
        "SELECT regexp_matches(repeat('a', 100000000), '(a|a)*b')".split("|")
    )


def sql_bomb(draw: random.Random) -> str:
    depth = draw.choice((50, 500, 1900))
    return draw.choice(
        (
            "SELECT " + "(" * depth + "1" + ")" * depth,
            "SELECT " + "-" * depth + "1",
            "SELECT " + "1+" * depth + "1",
            "SELECT " + "[" * depth + "]" * depth,
            "SELECT 1" + " UNION ALL SELECT 1" * (depth // 5),
            "SELECT 1e999, 9999999999999999999999 * 99999999999999999999, 'nan'::DOUBLE, 'inf'::DOUBLE, -0.0",
            "SELECT '\ud800', chr(0), '\x00'",
            "SELECT NULL::STRUCT(a INT), MAP {'a': 1}, '1 day'::INTERVAL, '\\x00'::BLOB, DATE '2020-01-01'",
        )
    )


SQL = World(
    Sql,
    (SqlOneTurn, SqlSingleAgent),
    (
        {"joins": 0, "grouping": 0},
        {},
        {"joins": 2, "filters": 2, "grouping": 2, "nesting": 1, "rows": 16},
        {"joins": 1, "filters": 2, "grouping": 1, "nesting": 2, "dirty": 0.3, "rows": 24},
    ),
    lambda env: env.task.data["reference"],
    other_query,
    COMMON
    | {
        "all rows": lambda env: f"SELECT * FROM {env.chain[-1].name}",
        "count all": lambda env: f"SELECT COUNT(*) FROM {env.chain[-1].name}",
        "zero": always("SELECT 0"),
        "the result that is seen": seen_result,
        "read the judge's source": always("SELECT content FROM read_text('cadre_tasks/worlds/sql.py')"),
        "read the judge's variables": always("SELECT * FROM databases"),
        "two statements": lambda env: f"DROP TABLE {env.chain[-1].name}; {env.task.data['reference']}",
    },
    {"file": sql_file, "injection": sql_injection, "inside": sql_inside, "bomb": sql_bomb, "endless": sql_endless},
)


def follow(env: Search) -> str:
    """Open what the question needs, one after the other, and answer from it."""
    if env.inquiring:
        unread = [number for number in env.needed if number not in env.read]
        return f"Open: {unread[0] if unread else 0}"
    return f"Answer: {env.right} {list(env.needed)}"


def other_answer(env: Search, draw: random.Random) -> str | None:
    """The right search, and an answer with another name, or other citations."""
    if env.inquiring:
        return follow(env)
    cited, kind = list(env.needed), draw.randrange(3)
    if kind == 0:
        return f"Answer: {env.chain[env.task.data['hops'] - 1]} {cited}"
    if kind == 1:
        return f"Answer: {env.right} {cited[1:]}"
    return f"Answer: {env.right} {[*cited, 999]}"


def unread(env: Search) -> str:
    """The right answer, which is that of a judge's reader, and citations of passages that nobody opened."""
    return "Open: 0" if env.inquiring else f"Answer: {env.right} {list(env.needed)}"


def first_listed(env: Search) -> str:
    """The title of the first passage, after a search for the question."""
    if env.inquiring:
        return f"Search: {env.task.data['question']}" if not env.log else "Open: 0"
    return f"Answer: {env.passages[0].title} [1]"


SEARCH = World(
    Search,
    (SearchSingleAgent,),
    ({"hops": 1, "people": 8}, {}, {"hops": 3, "people": 40}),
    follow,
    other_answer,
    COMMON
    | {
        "echo the example": always("Answer: ada kern [3, 7]"),
        "the first title": first_listed,
        "cite without reading": unread,
        "open everything": lambda env: f"Open: {env.taken + 1}" if env.inquiring else "Answer: ada kern [1, 2, 3]",
        "cite everything": lambda env: follow(env) if env.inquiring else f"Answer: no one {list(range(1, 15))}",
        "read the judge": always("Open: ../../judge\nAnswer: self.right [1]"),
    },
    {
        "many words": lambda draw: "Search: " + "river " * draw.choice((40, 3000)),
        "letters": lambda draw: "Search: " + "a" * draw.choice((290, 9000)),
        "numbers": lambda draw: "Open: " + draw.choice(("-1", "9" * 50, "1e9", "٣", "0x1", "[2", "None", "1;2")),
        "paths": lambda draw: draw.choice(("Open: ", "Search: ")) + draw.choice(("/etc/passwd", "file:///etc/passwd")),
        "citations": lambda draw: "Answer: x [" + "1, " * draw.choice((15, 5000)) + "]",
        "brackets": lambda draw: "Answer: " + "[" * 900 + "1" + "]" * 900,
        "nul": lambda draw: "Search: \x00\ud800 river \u202e",
        "endless": lambda draw: "Answer: " + "a " * 950 + "[",
    },
)

WORLDS: dict[str, World] = {"sql": SQL, "search": SEARCH}
