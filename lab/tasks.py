"""Misjudged answers of a list of right and wrong mathematical answers: `python -m lab.tasks answers`.

Appends `maths.right_refused_pct` and `maths.wrong_accepted_pct` to results/tasks.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from rich.console import Console

from bench.common import ROOT, record
from cadre_tasks.maths.same_answer import solves

LIST = ROOT / "tests" / "cadre_tasks" / "maths" / "answers.jsonl"
console = Console(soft_wrap=True)


async def answers() -> None:
    rows = [json.loads(line) for line in LIST.read_text(encoding="utf-8").splitlines()]
    for right, name in ((True, "maths.right_refused_pct"), (False, "maths.wrong_accepted_pct")):
        part = [(gold, answer) for _, gold, answer, is_right in rows if is_right is right]
        judged = await asyncio.gather(*(solves(gold, answer) for gold, answer in part))
        misjudged = [row for row, solved in zip(part, judged, strict=True) if solved is not right]
        console.print(f"misjudged: {misjudged}", markup=False)
        value = 100 * len(misjudged) / len(part)
        record("tasks", name, [value], "%", "python -m lab.tasks answers", len(part))
        console.print(f"{name}: {value:.3g}% of {len(part):,}", highlight=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["answers"])
    parser.parse_args()
    asyncio.run(answers())
