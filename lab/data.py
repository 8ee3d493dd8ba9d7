"""Counts and leaks of every public data set that a folder holds: `python -m lab.data --from DIR`.

Appends `data.SET.SPLIT.rows`, `.judged`, `.contradictory` and `.repeated`, and `data.SET.leaks.TEST`, to
results/data.jsonl. Sets that are not in the folder are named and left out.
"""

from __future__ import annotations

import argparse

from bench.common import record
from cadre.errors import DataError
from cadre_tasks.data import SPECS
from cadre_tasks.data.examine import examine
from lab.trainings import console

COMMAND = "python -m lab.data --from DIR"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", required=True, help="a folder of data sets, a folder each")
    source = parser.parse_args().source
    for name in SPECS:
        try:
            looked = examine(name, source)
        except DataError as error:
            console.print(f"{name}: left out: {error}", highlight=False, markup=False)
            continue
        for split in looked.splits:
            for figure in ("rows", "judged", "contradictory", "repeated"):
                record(
                    "data",
                    f"data.{name}.{split.split}.{figure}",
                    [getattr(split, figure)],
                    "items",
                    COMMAND,
                    split.rows,
                )
            console.print(f"{name} {split.split}: {split.rows} ({split.verdict})", highlight=False)
        for test, count in looked.leaks.items():
            record("data", f"data.{name}.leaks.{test}", [count], "items", COMMAND, count)


if __name__ == "__main__":
    main()
