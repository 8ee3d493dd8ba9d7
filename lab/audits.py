"""Agreement of advantages with later success: ten algorithms under the same policies, on two games.

    python -m lab.audits [plan-path tiny-hanabi] [--only at_grpo c3] [--runs runs/audits]

Trains the recipe of each game for some of its steps, once. Then the team as it was before and the team as it is then
are audited through the command line under each algorithm, on the same tasks. What is complete is kept, so the command
goes on where it stopped. Each new audit is appended to results/audit.jsonl, with 95% intervals by bootstrap over tasks:
`audit.NAME.GAME.correlation`, `.explained` and `.at_most` of all decisions, `.minutes` of a core, and
`audit.NAME.GAME.ROLE/DEPTH.correlation` of a role's decisions at a depth; those of the untrained team have `.untrained`
after the game. The game of cards needs the extra openspiel.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import CADRE, ROOT, commit, record, validate_commit
from cadre.config.recipes import read_recipe
from cadre.statistics import Interval
from lab.trainings import Run, console
from lab.trainings import run as timed

COMMAND = "python -m lab.audits"
# The recipe whose section `algorithm` is audited on every game, or the section itself.
CREDITS: dict[str, str | dict[str, Any]] = {
    "at_grpo": "plan-path",
    "grpo": {"name": "grpo", "k": 8},
    "magrpo": "plan-path-magrpo",
    "c3": {"name": "c3", "k": 3},
    "tree_rl": {"name": "tree_rl", "k": 4, "decisions": 1},
    "counterfactual": {"name": "counterfactual", "k": 8},
    "shapley": {"name": "shapley", "k": 8},
    "state_value": {"name": "state_value", "k": 8},
    "hierarchical_grpo": {"name": "hierarchical_grpo", "k": 3},
    "gdpo": {"name": "grpo", "k": 8, "parts": {"goal": 1.0, "format": 0.2}},
}
PLAYS, SEED = 8, 0
# As they are called here, in a report, and their unit.
FIGURES = (
    ("correlation", "correlation", "correlation"),
    ("explained", "explained", "share"),
    ("at_most", "ceiling", "share"),
)


@dataclass(frozen=True)
class Game:
    """A recipe, the steps of it that are trained, the tasks that are audited, its decision points (roles at
    depths of the tree), and the credits that need what its rewards do not have."""

    words: str
    recipe: str
    steps: int
    tasks: int
    decision_points: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def run(self, runs: Path) -> Run:
        return Run(runs / self.recipe, self.recipe, SEED, (f"train.steps={self.steps}",))


GAMES = {
    game.recipe: game
    for game in (
        Game("Plan-Path", "plan-path", 4, 48, ("tool/0", "planner/1", "tool/2", "planner/3")),
        Game("Tiny Hanabi", "tiny-hanabi", 60, 64, ("player_0/0", "player_1/1"), ("gdpo",)),
    )
}


@dataclass(frozen=True)
class Audit:
    """One credit on one game, of the trained team or of the untrained one."""

    game: Game
    run: Run
    name: str
    untrained: bool

    @property
    def label(self) -> str:
        return label(self.name, self.game, self.untrained)

    @property
    def file(self) -> Path:
        return self.run.folder.with_name(f"{self.label}.json")

    def make(self) -> None:
        """Audit it now, on one core."""
        tasks = self.game.tasks
        sizes = {
            "--tasks": tasks,
            "--decisions": tasks * len(self.game.decision_points),
            "--plays": PLAYS,
            "--seed": SEED,
        }
        options = [str(word) for size in sizes.items() for word in size] + ["--base"] * self.untrained
        command = [*CADRE, "audit", str(self.run.folder), override(self.name), *options, "--json"]
        printed, measured = self.file.with_suffix(".out"), commit()
        validate_commit(measured)
        with printed.open("w") as out, self.file.with_suffix(".log").open("w") as log:
            one_core = os.environ | {"OMP_NUM_THREADS": "1"}
            used = timed(command, cwd=ROOT, stdout=out, stderr=log, env=one_core)
        report = json.loads(printed.read_text())
        self.file.write_text(json.dumps({"report": report, "minutes": used / 60, "commit": measured}))

    def made(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.file.read_text())
        return result

    def keep(self) -> None:
        """Append its figures, the lowest and the highest being the ends of the interval."""
        result = self.made()
        for name, interval, unit, decisions in figures(result["report"]):
            record("audit", f"{self.label}.{name}", interval, unit, COMMAND, decisions, [SEED], result["commit"])
        minutes = [result["minutes"]]
        record("audit", f"{self.label}.minutes", minutes, "min", COMMAND, self.game.tasks, [SEED], result["commit"])

    def line(self) -> str:
        result = self.made()
        value, low, high = result["report"]["all"]["correlation"]
        return f"{self.label}: correlation {value:.3f} [{low:.3f}, {high:.3f}], {result['minutes']:.1f} minutes"


def label(name: str, game: Game, untrained: bool) -> str:
    """Return the prefix of an audit's figures."""
    return f"audit.{name}.{game.recipe}" + ".untrained" * untrained


def override(name: str) -> str:
    """Return the override of the algorithm, with the settings of its recipe."""
    credit = CREDITS[name]
    return f"algorithm={json.dumps(read_recipe(credit)['algorithm'] if isinstance(credit, str) else credit)}"


def figures(report: dict[str, Any]) -> Iterator[tuple[str, Interval, str, int]]:
    """(name, interval, unit, decisions): those of all decisions, and the correlation at each place."""
    for part, audit in report.items():
        if part == "all":
            yield from ((name, tuple(audit[figure]), unit, audit["decisions"]) for name, figure, unit in FIGURES)
        elif "/" in part:
            yield f"{part}.correlation", tuple(audit["correlation"]), "correlation", audit["decisions"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", help=f"of {', '.join(GAMES)}; all unless named")
    parser.add_argument("--only", nargs="+", choices=CREDITS, default=list(CREDITS))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "audits")
    chosen = parser.parse_args()
    for game in chosen.games or GAMES:
        run = GAMES[game].run(chosen.runs.absolute())
        if not run.complete:
            run.train(threads=1)
        names = [name for name in chosen.only if name not in GAMES[game].left_out]
        for audit in (Audit(GAMES[game], run, name, untrained) for untrained in (True, False) for name in names):
            if not audit.file.exists():
                audit.make()
                audit.keep()
            console.print(audit.line(), highlight=False)


if __name__ == "__main__":
    main()
