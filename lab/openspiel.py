"""Games of OpenSpiel whose answers are known: `python -m lab.openspiel [ROW ...] [--runs runs/openspiel]`.

Trains the recipes through the command line, a run a row and seed, one after the other; runs that are complete are kept,
so the command goes on where it stopped. Figures are exact, from the policies' probabilities at temperature 1, before
and after training. Appends the figure of each row to results/openspiel.jsonl once all its seeds are there, and writes
the curves of all that have been trained to results/openspiel-curves.json. Leduc poker has a base of its own
(leduc_base.py), since the embedded model does not tell its cards apart. Needs the extra openspiel.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.common import RESULTS, ROOT, record
from lab import leduc_base
from lab.trainings import Run, commits, console

COMMAND = "python -m lab.openspiel"
CURVES = "openspiel-curves.json"
# Episodes of an evaluation; what is reported is exact and needs none.
EPISODES = 16


@dataclass(frozen=True)
class Row:
    """A recipe, how many seeds of it, the exact figure that its curve shows, and what is recorded by name."""

    recipe: str
    seeds: int
    exact: str
    figures: dict[str, Callable[[Run], float]]
    # Makes the policy's model; the one in the package where there is nothing to make.
    base: Callable[[Path], None] | None = None


def exact(run: Run, name: str, index: int = -1) -> float:
    """A figure of the evaluation of that index."""
    return float(curve(run, name)[index][1])


def curve(run: Run, name: str) -> list[tuple[int, float]]:
    """(step, figure) of every evaluation."""
    reports = map(json.loads, (run.folder / "evaluations.jsonl").read_text().splitlines())
    return [(report["step"], report["exact"][name]) for report in reports]


def share(run: Run, name: str) -> float:
    """Return the fraction of a figure that is left after training."""
    return exact(run, name) / exact(run, name, 0)


VALUE, GAP = partial(exact, name="value"), partial(exact, name="exploitability")
ROWS = {
    "hanabi-team": Row("tiny-hanabi", 10, "value", {"hanabi.team.value": VALUE}),
    "hanabi-magrpo": Row("tiny-hanabi-magrpo", 10, "value", {"hanabi.magrpo.value": VALUE}),
    "hanabi-shared": Row("tiny-hanabi-shared", 10, "value", {"hanabi.shared.value": VALUE}),
    "kuhn": Row(
        "kuhn-poker",
        3,
        "exploitability",
        {"kuhn.exploitability": GAP, "kuhn.untrained.exploitability": partial(GAP, index=0)},
    ),
    "leduc": Row(
        "leduc-poker",
        3,
        "exploitability",
        {
            "leduc.exploitability": GAP,
            "leduc.exploitability.ratio": partial(share, name="exploitability"),
        },
        leduc_base.make,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; all unless named")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "openspiel")
    chosen = parser.parse_args()
    for name in chosen.rows or ROWS:
        row, folder = ROWS[name], chosen.runs.absolute()
        changes = model_of(row, folder / f"{name}-base")
        runs = [Run(folder / f"{name}-{seed}", row.recipe, seed, changes, 0, EPISODES) for seed in range(row.seeds)]
        for run in runs:
            if not run.complete:
                run.train(threads=1)
            console.print(f"{run.folder.name}: {exact(run, row.exact):.3f}", highlight=False)
        for figure, value in row.figures.items():
            line = record(
                "openspiel",
                figure,
                [value(run) for run in runs],
                row.exact,
                COMMAND,
                row.seeds,
                range(row.seeds),
                commits(runs),
            )
            console.print(f"{figure}: {line['value']:.3f} [{line['low']:.3f}, {line['high']:.3f}]", highlight=False)
        keep_curves(name, row, runs)


def model_of(row: Row, folder: Path) -> tuple[str, ...]:
    """The overrides that name the row's own base, which is made if it is not there."""
    if row.base is None:
        return ()
    if not folder.exists():
        row.base(folder)
    return (f"team.policies.shared={folder}",)


def keep_curves(name: str, row: Row, runs: list[Run]) -> None:
    """The row's curves in place of those that were there."""
    file = RESULTS / CURVES
    curves = json.loads(file.read_text()) if file.exists() else {}
    curves[name] = {"figure": row.exact, "seeds": [curve(run, row.exact) for run in runs]}
    file.write_text(json.dumps(curves) + "\n")


if __name__ == "__main__":
    main()
