"""Pairs of a helper and a function, for the tests and `lab/reward_search.py`: those whose function does all the work
and makes a show of calling the helper, and honest ones of many kinds."""

import json
from pathlib import Path

from cadre_tasks.data.records import CodingProblem

ROWS = [json.loads(line) for line in Path(__file__).with_name("helpers.jsonl").read_text("utf-8").splitlines()]


def problem_of(row: dict[str, str]) -> CodingProblem:
    return CodingProblem(row["name"], "", row["entry"], tests=row["tests"], names=(row["entry"],))


# name: (problem, helper, function)
PAIRS = {row["name"]: (problem_of(row), row["aux"], row["main"]) for row in ROWS}
SHOWS, HONEST = ([row["name"] for row in ROWS if row["honest"] is honest] for honest in (False, True))
# One test that is judged as a whole, as it needs the function around it.
WHOLE = CodingProblem(
    "whole", "Return twice the number.", "twice",
    tests="def check(candidate):\n    if candidate(3) != 6:\n        return 1 / 0\n    for n in range(5):\n"
    "        assert candidate(n) == 2 * n\n    return None",
    names=("twice",),
)  # fmt: skip
