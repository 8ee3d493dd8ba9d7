"""Schemas, rows and questions of the world `sql`, made from seeds, each question with its reference query.

A schema is a chain of one to three tables, each a child of the one before. A question asks for a count or another
aggregate of the last table, over conditions, groups and subqueries as the dials say, and has three forms: English, one
line for small models, and SQL that DuckDB and SQLite both take. Rows follow from the schema and a number. What is left
out: dates, windows and everything that only one dialect has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

PLACES = ("customer", "driver", "patient", "farmer", "singer", "guide")
EVENTS = ("visit", "loan", "trip", "claim", "rental", "repair")
ITEMS = ("line", "note", "part", "photo")
WORDS = {
    "city": ("rome", "oslo", "lima", "cairo"),
    "grade": ("gold", "silver", "bronze"),
    "colour": ("red", "blue", "green"),
    "kind": ("long", "short", "night", "day"),
    "team": ("north", "south", "east", "west"),
}
NUMBERS = ("amount", "score", "weight", "price", "age", "hours")
AGGREGATES = ("count", "sum", "avg", "max", "min")
ENGLISH = {"sum": "the sum", "avg": "the average", "max": "the largest", "min": "the smallest"}
HIGHEST = 20  # numbers are drawn from 1 to here

Value = int | str | None
Rows = list[tuple[Value, ...]]


@dataclass(frozen=True)
class Table:
    """`Table("visit", "customer", ("kind",), ("amount", "hours"))`: columns id, customer_id, kind, amount and hours."""

    name: str
    parent: str
    words: tuple[str, ...]
    numbers: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return ("id", *((f"{self.parent}_id",) if self.parent else ()), *self.words, *self.numbers)

    @property
    def ddl(self) -> str:
        kinds = dict.fromkeys(self.columns, "INTEGER") | dict.fromkeys(self.words, "VARCHAR")
        return f"CREATE TABLE {self.name} ({', '.join(f'{name} {kind}' for name, kind in kinds.items())})"


@dataclass(frozen=True)
class Condition:
    """`Condition("visit", "amount", ">", 7)`; `value` is a number, a word, or "avg" for the column's own average."""

    table: str
    column: str
    sign: str
    value: int | str


@dataclass(frozen=True)
class SqlQuestion:
    """A query in the grammar's own terms. `chain` are the tables from the first to the one that is counted; `group` a
    (table, column) of words; `most` keeps the group with the largest figure, `least` those with so many rows;
    `busy` only first tables that have so many rows in the second one. `clean` says that words are dirty."""

    chain: tuple[Table, ...]
    aggregate: str
    column: str
    conditions: tuple[Condition, ...] = ()
    group: tuple[str, str] | None = None
    most: bool = False
    least: int = 0
    busy: int = 0
    clean: bool = False

    @property
    def base(self) -> str:
        return self.chain[-1].name

    def word(self, table: str, column: str) -> str:
        return f"lower(trim({table}.{column}))" if self.clean else f"{table}.{column}"

    def condition(self, it: Condition) -> str:
        if isinstance(it.value, int):
            return f"{it.table}.{it.column} {it.sign} {it.value}"
        if it.value == "avg":
            return f"{it.table}.{it.column} {it.sign} (SELECT AVG({it.column}) FROM {it.table})"
        return f"{self.word(it.table, it.column)} {it.sign} '{it.value}'"

    @property
    def figure(self) -> str:
        return "COUNT(*)" if self.aggregate == "count" else f"{self.aggregate.upper()}({self.base}.{self.column})"

    def sql(self) -> str:
        """Return the reference query."""
        joins = [
            f" JOIN {above.name} ON {below.name}.{above.name}_id = {above.name}.id"
            for above, below in reversed(list(zip(self.chain, self.chain[1:], strict=False)))
        ]
        where = [self.condition(it) for it in self.conditions]
        if self.busy:
            first, second = self.chain[0].name, self.chain[1].name
            many = f"SELECT {first}_id FROM {second} GROUP BY {first}_id HAVING COUNT(*) >= {self.busy}"
            where.append(f"{first}.id IN ({many})")
        head = f"{self.word(*self.group)}, " if self.group else ""
        query = f"SELECT {head}{self.figure} FROM {self.base}{''.join(joins)}"
        query += f" WHERE {' AND '.join(where)}" if where else ""
        return query + self.tail()

    def tail(self) -> str:
        if not self.group:
            return ""
        having = f" HAVING COUNT(*) >= {self.least}" if self.least else ""
        return f" GROUP BY 1{having}" + (" ORDER BY 2 DESC, 1 LIMIT 1" if self.most else "")

    def english(self) -> str:
        """Return the question in words."""
        base = self.base
        clause = f"how many rows of {base} are there"
        if self.aggregate != "count":
            clause = f"what is {ENGLISH[self.aggregate]} of {base}.{self.column}"
        parts = [self.condition_english(it) for it in self.conditions]
        if self.busy:
            parts.append(f"{self.chain[0].name} has at least {self.busy} rows of {self.chain[1].name}")
        condition_clause = f" where {' and '.join(parts)}" if parts else ""
        if not self.group:
            return f"{clause}{condition_clause}?".capitalize()
        name, minimum = ".".join(self.group), f" with at least {self.least} such rows" if self.least else ""
        largest = f"which {name} has the largest answer to this, and what is it: "
        groups = largest if self.most else f"for each {name}{minimum}, "
        return f"{groups}{clause}{condition_clause}?".capitalize() + self.shape()

    def shape(self) -> str:
        tie = " Of equal ones take the first in the alphabet." if self.most else ""
        return f"{tie} Give two columns, {'.'.join(self.group or ())} and the figure."

    def condition_english(self, it: Condition) -> str:
        name, than = f"{it.table}.{it.column}", {">": "above", "<": "below", "=": ""}[it.sign]
        if it.value == "avg":
            return f"{name} is {than} the average of {it.column} over all rows of {it.table}"
        return f"{name} is {than} {it.value}".replace("  ", " ")

    def brief(self) -> str:
        """Return the question in a line for small models."""
        words = [self.aggregate, self.base, *([self.column] if self.aggregate != "count" else [])]
        for number, it in enumerate(self.conditions):
            words += ["and" if number else "where", f"{it.table}.{it.column}", it.sign, str(it.value)]
        words += ["busy", str(self.busy)] if self.busy else []
        words += ["by", ".".join(self.group)] if self.group else []
        words += ["most"] if self.most else []
        return " ".join(words + (["least", str(self.least)] if self.least else []))

    def others(self) -> Iterator[SqlQuestion]:
        """Yield questions with a single difference: a right answer to one of them is wrong here."""
        for name in AGGREGATES:
            if name != self.aggregate and self.aggregate != "count" != name:
                yield replace(self, aggregate=name)
        for position, it in enumerate(self.conditions):
            rest = self.conditions[:position], self.conditions[position + 1 :]
            yield replace(self, conditions=(*rest[0], *rest[1]))
            if it.sign != "=":
                yield replace(self, conditions=(*rest[0], replace(it, sign="<" if it.sign == ">" else ">"), *rest[1]))
        if self.group and not self.most:
            yield replace(self, group=None)
        for change in ({"most": False}, {"least": 0}, {"busy": 0}, {"clean": False}):
            if any(getattr(self, name) != value for name, value in change.items()):
                yield replace(self, **change)  # type: ignore[arg-type]


# Changes in the text of a reference after which it says something else.
SWAPS = (
    ("MAX(", "MIN("), ("MIN(", "SUM("), ("SUM(", "AVG("), ("AVG(", "MAX("), ("COUNT(*)", "COUNT(*) + 1"),
    (" > ", " < "), (" < ", " > "), (" WHERE ", " WHERE NOT "), (" AND ", " OR "), ("SELECT ", "SELECT 1, "),
    (" DESC", ""), (" >= ", " < "), ("lower(", "upper("), (" LIMIT 1", ""), (" = '", " <> '"),
)  # fmt: skip


def swapped(reference: str) -> list[str]:
    """Return the reference with one change in its text, for each change that applies."""
    return [reference.replace(old, new, 1) for old, new in SWAPS if old in reference]


def schema(draw: random.Random, joins: int) -> tuple[Table, ...]:
    """Return a chain of `joins` + 1 tables."""
    names = [draw.choice(names) for names in (PLACES, EVENTS, ITEMS)]
    # Without joins the only table is of the first or of the second kind.
    names = names[: joins + 1] if joins or draw.random() < 0.5 else names[1:2]
    # Without repetition over the tables, so that a column name belongs to one table only.
    words, numbers = draw.sample(sorted(WORDS), 5), draw.sample(NUMBERS, 6)
    return tuple(
        Table(
            name,
            names[position - 1] if position else "",
            tuple(words[position : position + 1]),
            tuple(numbers[2 * position : 2 * position + 2]),
        )
        for position, name in enumerate(names)
    )


def question(draw: random.Random, dials: dict[str, Any]) -> SqlQuestion:
    """Return a question as hard as the dials say: `joins`, `filters`, `grouping`, `nesting` and `dirty`."""
    chain = schema(draw, dials["joins"])
    first, base = chain[0], chain[-1]
    aggregate = draw.choice(AGGREGATES)
    numbers = [(base.name, name) for name in base.numbers]
    drawn_question = SqlQuestion(chain, aggregate, draw.choice(base.numbers) if aggregate != "count" else "")
    words = [(first.name, first.words[0]), (base.name, base.words[0])]
    group = words[0] if dials["grouping"] else None
    free = [name for name in dict.fromkeys(words) if name != group] + numbers
    conditions = tuple(_condition(draw, name) for name in draw.sample(free, min(dials["filters"], len(free))))
    if dials["nesting"]:
        unused_numbers = [name for name in numbers if name[1] not in {it.column for it in conditions}] or numbers
        conditions += (Condition(*draw.choice(unused_numbers), draw.choice("<>"), "avg"),)
    drawn_question = replace(drawn_question, conditions=conditions, group=group, clean=dials["dirty"] > 0)
    if dials["grouping"] > 1:
        drawn_question = replace(drawn_question, **draw.choice(({"most": True}, {"least": 2}, {"least": 3})))
    busy = dials["nesting"] > 1 and len(chain) > 1
    return replace(drawn_question, busy=draw.choice((2, 3))) if busy else drawn_question


def _condition(draw: random.Random, name: tuple[str, str]) -> Condition:
    table, column = name
    if column in WORDS:
        return Condition(table, column, "=", draw.choice(WORDS[column]))
    return Condition(table, column, draw.choice("<>"), draw.randint(5, HIGHEST - 5))


def rows_of(chain: Sequence[Table], draw: random.Random, count: int, dirty: float) -> dict[str, Rows]:
    """Return the rows of every table: `count` in the first one and half as many again in each one below it."""
    rows: dict[str, Rows] = {}
    for index, table in enumerate(chain):
        parent_count = len(rows[table.parent]) if index else 0
        # Later tables are larger, so that some parents have several rows and some none.
        number = int(count * 1.5**index)
        rows[table.name] = [_row(table, key, parent_count, draw, dirty) for key in range(1, number + 1)]
    return rows


def _row(table: Table, key: int, parent_count: int, draw: random.Random, dirty: float) -> tuple[Value, ...]:
    values: list[Value] = [key, *([draw.randint(1, parent_count)] if table.parent else [])]
    for name in table.words:
        word = draw.choice(WORDS[name])
        values.append(draw.choice((word.upper(), f" {word}", f"{word} ", word.title())) if _hit(draw, dirty) else word)
    for _ in table.numbers:
        number = draw.randint(1, HIGHEST)
        # Half as often as dirty words, since a NULL takes the row out of every condition on the column.
        values.append(None if _hit(draw, dirty / 2) else number)
    return tuple(values)


def _hit(draw: random.Random, share: float) -> bool:
    return draw.random() < share
