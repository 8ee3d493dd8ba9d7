"""What the judges of code and of answers get wrong: on references of code, gold answers, and a list of answers.

    python -m lab.tasks [references golds answers] [--sets humaneval math500] [--every 10]

`--every 10` takes a tenth of the gold answers. Appends `code.*` and `maths.*` to results/tasks.jsonl, for the sets that
are in $CADRE_DATA (or in data/ beside lab/); without any of them only `answers` has something to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator

from rich.console import Console

from bench.common import ROOT, record
from cadre.errors import DataError
from cadre_tasks.code.judge import all_tests, judge
from cadre_tasks.data import SPECS, CodingProblem, Problem, load
from cadre_tasks.maths.same_answer import solves

console = Console(soft_wrap=True)
DATA = os.environ.get("CADRE_DATA", str(ROOT / "data"))
COMMAND = " ".join(["python -m lab.tasks", *sys.argv[1:]])
LISTS = ROOT / "tests" / "cadre_tasks"


options = argparse.Namespace(sets=list(SPECS), every=1)


def keep(name: str, value: float, unit: str, n: int) -> None:
    record("tasks", name, [value], unit, COMMAND, n)
    console.print(f"{name}: {value:,} {unit} of {n:,}", highlight=False)


def at_hand(kind: str) -> Iterator[tuple[str, str, list]]:
    """(name, split, records) of every split of that kind which is there."""
    for name, spec in SPECS.items():
        for split in spec.splits if spec.kind == kind and name in options.sets else ():
            try:
                yield name, split, list(load(name, split, DATA))
            except DataError:
                continue


async def references() -> None:
    """The reference of every problem against all its tests."""
    for name, split, programs in at_hand("program"):
        known = [one for one in programs if isinstance(one, CodingProblem) and one.reference]
        if not known:
            console.print(f"{name} {split}: no references come with it")
            continue
        verdicts = await asyncio.gather(*(judge(one.reference, all_tests(one)) for one in known))
        failed = [one.id for one, verdict in zip(known, verdicts, strict=True) if not verdict.ok]
        console.print(f"{name} {split}: fail {failed}")
        suffix = "" if split == "test" else f".{split}"
        keep(f"code.{name}{suffix}.reference_pass", len(known) - len(failed), "problems", len(known))


async def golds() -> None:
    """The gold answer of every problem, boxed, against itself."""
    for name, split, problems in at_hand("problem"):
        golds = [one for one in problems if isinstance(one, Problem)][:: options.every]
        right = []
        for start in range(0, len(golds), 20):
            part = golds[start : start + 20]
            right += await asyncio.gather(*(solves(one.answer, one.answer, one.tolerance) for one in part))
        failed = [one.id for one, ok in zip(golds, right, strict=True) if not ok]
        console.print(f"{name} {split}: fail {failed[:20]}", markup=False)
        keep(f"maths.{name}{'' if split == 'test' else '.' + split}.gold_pass", sum(right), "problems", len(golds))


async def answers() -> None:
    """The list of right and wrong mathematical answers: how many of each are misjudged, in percent."""
    rows = [json.loads(line) for line in (LISTS / "maths" / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    for right, name in ((True, "maths.right_refused_pct"), (False, "maths.wrong_accepted_pct")):
        part = [(gold, answer) for _, gold, answer, is_right in rows if is_right is right]
        judged = [solves(gold, answer) for gold, answer in part]
        misjudged = [row for row, told in zip(part, await asyncio.gather(*judged), strict=True) if told is not right]
        console.print(f"misjudged: {misjudged}", markup=False)
        keep(name, 100 * len(misjudged) / len(part), "%", len(part))


PARTS = {
    "references": references,
    "golds": golds,
    "answers": answers,
}


async def main(parts: list[str]) -> None:
    if not os.path.isdir(DATA):
        console.print(f"There is no folder {DATA}: sets are left out. Set CADRE_DATA to their folder (docs/data.md).")
    for part in parts or PARTS:
        await PARTS[part]()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all unless named")
    parser.add_argument("--sets", nargs="+", choices=list(SPECS), default=list(SPECS))
    parser.add_argument("--every", type=int, default=1, help="take every so manyth problem for golds")
    parser.parse_args(namespace=options)
    asyncio.run(main(options.parts))
