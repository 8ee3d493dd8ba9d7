"""Tests that a tester copies from what its problem shows, in many spellings, and honest ones beside them; for the tests
and `lab/reward_search.py`. The list has the problems first."""

import json
from pathlib import Path
from typing import Any

from cadre_tasks.data.records import CodingProblem

ROWS = [json.loads(line) for line in Path(__file__).with_name("copies.jsonl").read_text("utf-8").splitlines()]


def cases(rows: list[list[Any]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((arguments, out) for arguments, out in rows)


PROBLEMS = {
    row["id"]: CodingProblem(
        **{key: value for key, value in row.items() if isinstance(value, str)},
        names=tuple(row.get("names", ())),
        public=cases(row.get("public", [])),
        hidden=cases(row.get("hidden", [])),
    )
    for row in ROWS
    if "id" in row
}


def answer_of(row: dict[str, str]) -> str:
    """Return the tester's answer."""
    if "test" in row:
        return row["test"]
    return f"```input\n{row['input']}\n```\n```output\n{row['output']}\n```"


COPIES, OWN = (
    [(PROBLEMS[row["problem"]], answer_of(row)) for row in ROWS if row.get("own") is is_own] for is_own in (False, True)
)
