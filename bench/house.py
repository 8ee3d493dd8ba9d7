"""The house in figures, and the suite from a fresh clone.

    python bench/house.py [house suite] [--times 3]

house   modules at the top of the package, the median and the longest function, the longest file
suite   `make train` and `make test` in a fresh clone with an environment of its own, so often: minutes of each
        `make test`, and how many clones had both green

Appends `house.*` and `suite.*` to results/suite.jsonl.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from statistics import median
from tempfile import TemporaryDirectory

from common import ROOT, record
from tests.test_house import FILES, PACKAGE, functions

COMMAND = "python bench/house.py"


def house(times: int) -> None:
    lengths = [lines for lines, _ in functions()]
    figures = {
        "modules_at_top": (len(list(PACKAGE.glob("*.py"))), "modules"),
        "function_median": (median(lengths), "lines"),
        "function_longest": (max(lengths), "lines"),
        "file_longest": (max(path.read_text().count("\n") for path in FILES), "lines"),
    }
    for name, (value, unit) in figures.items():
        print(record("suite", f"house.{name}", [value], unit, f"{COMMAND} house", len(FILES)))


def suite(times: int) -> None:
    minutes, green = [], 0
    for number in range(times):
        with TemporaryDirectory(prefix="cadre-suite-") as folder:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
            trained = subprocess.run(["make", "train"], cwd=folder).returncode
            began = time.monotonic()
            tested = subprocess.run(["make", "test"], cwd=folder).returncode
            minutes.append((time.monotonic() - began) / 60)
            green += trained == tested == 0
            print(f"{number + 1} of {times}: {minutes[-1]:.2f} min, exits {trained} and {tested}", flush=True)
    command = f"{COMMAND} suite --times {times}"
    print(record("suite", "suite.minutes", minutes, "min", command, times))
    print(record("suite", "suite.green", [green], "clones", command, times))


PARTS = {"house": house, "suite": suite}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=["house"])
    parser.add_argument("--times", type=int, default=3, help="runs of the suite")
    chosen = parser.parse_args()
    for part in chosen.parts:
        PARTS[part](chosen.times)


if __name__ == "__main__":
    main()
