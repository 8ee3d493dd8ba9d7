"""How large the code is, and the suite from a fresh clone.

    python bench/house.py [lines suite] [--times 3]

lines   of `cadre`, of all packages that are shipped, and of bench, lab and their tests, as `wc -l` counts them
suite   `make train` and `make test` in a fresh clone with an environment of its own, so often: minutes of each
        `make test`, and how many clones had both green

Appends `house.*` and `suite.*` to results/suite.jsonl.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from tempfile import TemporaryDirectory

from common import ROOT, SHIPPED, commit, record

COMMAND = "python bench/house.py"
FOLDERS = {
    "lines": ("cadre",),
    "product_lines": SHIPPED,
    "lab_lines": ("bench", "lab", "tests/bench", "tests/lab"),
}


def lines(times: int) -> None:
    for name, folders in FOLDERS.items():
        files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
        count = sum(path.read_bytes().count(b"\n") for path in files)
        print(record("suite", f"house.{name}", [count], "lines", f"{COMMAND} lines", len(files)))


def suite(times: int) -> None:
    minutes, green, measured = [], 0, commit()  # of the clones: others may commit meanwhile
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
    print(record("suite", "suite.minutes", minutes, "min", command, times, measured=measured))
    print(record("suite", "suite.green", [green], "clones", command, times, measured=measured))


PARTS = {"lines": lines, "suite": suite}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=["lines"])
    parser.add_argument("--times", type=int, default=3, help="runs of the suite")
    chosen = parser.parse_args()
    for part in chosen.parts:
        PARTS[part](chosen.times)


if __name__ == "__main__":
    main()
