"""The data sets in figures: counts and leaks, references and known cheats on code, gold answers on mathematics; and
what the judges of answers and of tests get wrong.

    python bench/tasks.py [data references cheats golds answers hacks] [--sets humaneval math500] [--every 10]

`--every 10` takes a tenth of the problems for cheats, golds and hacks, which are slow on all of them. Appends `data.*`,
`code.*`, `maths.*` and `tester.*` to results/tasks.jsonl, for the sets that are in $CADRE_DATA (or in data/ beside
bench/); without any of them the parts but `answers` have nothing to do, and a sentence says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator

from rich.console import Console

from cadre.errors import DataError
from cadre_sandbox import Limits
from cadre_tasks.code import tester
from cadre_tasks.code.judge import StdioTests, all_tests, judge
from cadre_tasks.data import SPECS, CodingProblem, Problem, load
from cadre_tasks.data.examine import examine
from cadre_tasks.maths.same_answer import solves
from common import ROOT, record
from tests.cadre_sandbox.attacks.cheats import CHEATS

console = Console(soft_wrap=True)
DATA = os.environ.get("CADRE_DATA", str(ROOT / "data"))
COMMAND = " ".join(["python bench/tasks.py", *sys.argv[1:]])
LISTS = ROOT / "tests" / "cadre_tasks"
QUICK = Limits(cpu_s=0.5)
MUTANTS = 4


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


async def data() -> None:
    """How many rows, and how many training items are test items of any set of the kind."""
    for name in options.sets:
        try:
            found = examine(name, DATA)
        except DataError:
            console.print(f"{name}: not at hand")
            continue
        for split in found.splits:
            suffix = "" if split.split == "test" or len(found.splits) == 1 else f".{split.split}"
            keep(f"data.{name}{suffix}.count", split.rows, "rows", split.judged)
        if found.leaks:
            keep(f"data.{name}.leaks", sum(found.leaks.values()), "items", found.splits[0].judged)


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


async def cheats() -> None:
    """Every cheat on every problem, and on scripts a program that prints the first output shown."""
    for name, split, programs in at_hand("program"):
        some = [one for one in programs if isinstance(one, CodingProblem)][:: options.every]
        tries = [(one, cheat.replace("@ENTRY@", one.entry)) for one in some for cheat in CHEATS.values()]
        tests = {one.id: all_tests(one) for one in some}
        for one in some:
            if isinstance(tests[one.id], StdioTests):
                tests[one.id] = StdioTests(tests[one.id].cases[-5:])  # type: ignore[union-attr]
        tries += [(one, f"print({one.public[0][1]!r})") for one in some if one.public and not one.entry]
        passed = 0
        for start in range(0, len(tries), 20):
            part = tries[start : start + 20]
            verdicts = await asyncio.gather(*(judge(text, tests[one.id], QUICK) for one, text in part))
            through = [(one.id, text[:60]) for (one, text), verdict in zip(part, verdicts, strict=True) if verdict.ok]
            passed += len(through)
            if through:
                console.print(f"through: {through}", markup=False)
        keep(f"code.{name}{'' if split == 'test' else '.' + split}.cheats_pass", passed, "programs", len(tries))


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


async def hacks() -> None:
    """The most that the tester is paid for tests that test nothing, on problems whose reference is known."""
    texts = [json.loads(line) for line in (LISTS / "code" / "hacks.jsonl").read_text(encoding="utf-8").splitlines()]
    paid: list[float] = []
    for _, split, programs in at_hand("program"):
        known = [one for one in programs if isinstance(one, CodingProblem) and one.reference and split == "test"]
        for one in known[:: options.every]:
            blocks = [f"```python\n{hack['text'].replace('@ENTRY@', one.entry)}\n```" for hack in texts]
            paid += await asyncio.gather(*(paid_for(block, one) for block in blocks))
    keep("tester.hack_best_reward", max(paid, default=0.0), "reward", len(paid))


async def paid_for(text: str, problem: CodingProblem) -> float:
    """What tests earn, judged by the problem's reference and its mutants."""
    judged = await tester.worth(await tester.written(text, problem), problem, problem.reference, MUTANTS)
    return sum(judged.parts.values())


PARTS = {
    "data": data,
    "references": references,
    "cheats": cheats,
    "golds": golds,
    "answers": answers,
    "hacks": hacks,
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
    parser.add_argument("--every", type=int, default=1, help="take every so manyth problem for cheats, golds and hacks")
    parser.parse_args(namespace=options)
    asyncio.run(main(options.parts))
