"""Run the tests of every situation in docs/correctness.md: inputs on which a result was once wrong without a message.

`python bench/correctness.py` prints the outcomes by situation; `--write` appends `correct.cases`, `correct.cases_right`
and, of the second table, `second.cases` and `second.cases_right` to results/correctness.jsonl.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from common import ROOT, record

PAGE = ROOT / "docs" / "correctness.md"
ROW = re.compile(r"^\| (?!situation|-)(.*?) \|.*\| (`tests/.*`) \|$")
SECOND = "## A second round"


@dataclass(frozen=True)
class Situation:
    """A row of the page, and the tests that fail without the mend: ids of pytest, or files."""

    name: str
    tests: tuple[str, ...]


def situations(text: str) -> list[Situation]:
    """Return the rows of a part of the page."""
    rows = filter(None, map(ROW.match, text.splitlines()))
    return [Situation(row[1], tuple(re.findall(r"`(tests/[^`]*)`", row[2]))) for row in rows]


def run_tests(tests: list[str]) -> list[tuple[str, str]]:
    """Return (id without parameters, outcome) of every test; all run in one call of pytest."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "2", f"--junitxml={report}", *tests]
        subprocess.run(command, cwd=ROOT, check=False)
        return [(_test_id(case), _outcome(case)) for case in ElementTree.parse(report).iter("testcase")]


def _test_id(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').partition('[')[0]}"


def _outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="append the figures to results/correctness.jsonl")
    options = parser.parse_args()
    text = PAGE.read_text()
    groups = {"correct": situations(text), "second": situations(text.partition(SECOND)[2])}
    outcomes = run_tests(sorted({test for situation in groups["correct"] for test in situation.tests}))
    for prefix, group in groups.items():
        right = 0
        for situation in group:
            counts = Counter(kind for test, kind in outcomes if {test, test.partition("::")[0]} & {*situation.tests})
            right += counts["passed"] > 0 and not counts["failed"]
            print(f"{situation.name}: {dict(counts)}")
        print(f"{right} of {len(group)} situations are right ({prefix})")
        for name, value in ((f"{prefix}.cases", len(group)), (f"{prefix}.cases_right", right)) if options.write else ():
            record("correctness", name, [value], "situations", "python bench/correctness.py --write", n=len(group))


if __name__ == "__main__":
    main()
