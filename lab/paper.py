"""The table of "Stronger Together" (arXiv 2510.11062) in miniature: three games, eleven rows, and ablations.

    python -m lab.paper [main adapters ablation] [--games plan-path sokoban sudoku] [--seeds 0 1 2] [--jobs 2]

Trains through the command line, a run a row and seed, `--jobs` of them at once with the cores shared out, or
`--threads` each. Runs that are complete are kept, so the command goes on where it stopped. What a row costs is
held equal: every row of a game and seed stops at the tokens that the team's own run sampled. Appends
`table.ROW.GAME.*`, `ablation.NAME.plan-path.*` and, for what has a name outside the table, `GAME.*` to
results/paper.jsonl and plan-path.jsonl, a row as soon as all its seeds are there. `python bench/readme.py`
makes the tables and the plot.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.common import RESULTS, ROOT, latest, record
from lab.trainings import Run, commits, console, stop_at

COMMAND = "make results"
CURVES = "curves.json"
GAMES = ("plan-path", "sokoban", "sudoku")
# Settings were looked at on tasks 0 to 399 and 1,000 to 1,099 of the test split; these have been looked at by none.
FIRST, TASKS = 2000, 200

# What training cost, by figure: its unit, and how it is read off a run.
COSTS: dict[str, tuple[str, Callable[[Run], float]]] = {
    "tokens": ("tokens", partial(Run.total, metric="rollout/tokens")),
    "env_steps": ("steps", partial(Run.total, metric="rollout/env_steps")),
    "episodes": ("episodes", partial(Run.total, metric="rollout/episodes")),
    "processor_minutes": ("min", Run.processor_minutes),
}


@dataclass(frozen=True)
class Row:
    """A row of the table: the recipe's ending that it trains, and what of that run is its success.

    Without `trained` the row is about models as they were before training, and costs nothing.
    """

    ending: str
    value: Callable[[Run], float] = Run.after
    trained: bool = True


ROWS: dict[str, Row] = {
    "single": Row("-single-agent", Run.before, trained=False),
    "single-grpo": Row("-solo-grpo"),
    "single-at-grpo": Row("-single-agent"),
    "team-prompted": Row("", Run.before, trained=False),
    "team-grpo": Row("-grpo-by-role"),
    "team-shared": Row(""),
    "team-per-role": Row("-roles"),
    "tool-alone": Row("-tool"),
    "planner-alone": Row("-no-tool"),
    "alone-as-team": Row("-roles-of-alone", Run.before, trained=False),
    "swapped": Row("-roles", Run.swapped, trained=False),
}
# Rows whose recipe is another row's with another algorithm.
CHANGED = {
    "-solo-grpo": ("-single-agent", "algorithm={name: grpo, k: 8}"),
    "-grpo-by-role": ("", "algorithm={name: grpo_by_role, k: 8}"),
}
# Rows that have a name outside the table too.
HEADLINES = {"team-prompted": ("base.success",), "team-shared": ("team.success",)}
PLAN_PATH = HEADLINES | {
    "team-shared": ("team.success", "L0.success"),
    "team-per-role": ("L2.success",),
    "swapped": ("swapped.success", "L2.swapped.success"),
    "planner-alone": ("single.success",),
    "single-at-grpo": ("single-with-tool.success",),
}
ABLATIONS: dict[str, tuple[str, ...]] = {
    "carry-sample": ("algorithm.select=sample",),
    "carry-random": ("algorithm.select=random",),
    "k2": ("algorithm.k=2",),
    "k4": ("algorithm.k=4",),
    "outcome-only": ("settings.reward=outcome",),
    "alpha-0.25": ("algorithm.alpha=0.25",),
    "alpha-4": ("algorithm.alpha=4",),
}


class Paper:
    """One call of the benchmark: where runs lie, and which seeds are trained."""

    def __init__(self, runs: Path, seeds: Sequence[int], jobs: int, threads: int | None = None) -> None:
        self.runs, self.seeds, self.jobs = runs, seeds, jobs
        self.threads = threads or max(1, (os.cpu_count() or 1) // jobs)

    def run(self, game: str, ending: str, seed: int, *overrides: str) -> Run:
        base, *changes = CHANGED.get(ending, (ending,))
        return Run(self.runs / f"{game}{ending}-{seed}", f"{game}{base}", seed, (*changes, *overrides), FIRST, TASKS)

    def team(self, game: str, seed: int) -> Run:
        return self.run(game, "", seed)

    def equal(self, game: str, ending: str, seed: int) -> Run:
        """A row's run, stopped at the tokens of the team's, which must be complete."""
        return self.run(game, ending, seed, *stop_at(self.team(game, seed).total("rollout/tokens")))

    def of_alone(self, game: str, seed: int) -> Run:
        """The two roles that were trained alone, put together. One step, since an evaluation comes with training."""
        tool = self.run(game, "-tool", seed).model("shared")
        planner = self.run(game, "-no-tool", seed).model("shared")
        policies = (f"team.policies.coder={tool}", f"team.policies.mover={planner}", "train.steps=1")
        return Run(self.runs / f"{game}-roles-of-alone-{seed}", f"{game}-roles", seed, policies, FIRST, TASKS)

    def ablated(self, name: str, seed: int) -> Run:
        stop = stop_at(self.team("plan-path", seed).total("rollout/tokens"))
        folder = self.runs / f"ablation-{name}-{seed}"
        return Run(folder, "plan-path", seed, (*ABLATIONS[name], *stop), FIRST, TASKS)

    def train(self, runs: Sequence[Run], callback: Callable[[], None]) -> None:
        """Train those that are not complete; `after` is called when one is."""

        def one(run: Run) -> None:
            console.print(f"{time.strftime('%H:%M')} training {run.folder.name}", highlight=False)
            run.train(self.threads)

        with ThreadPoolExecutor(self.jobs) as pool:
            callback()
            for _ in pool.map(one, [run for run in runs if not run.complete]):
                callback()

    def keep(self, name: str, runs: Sequence[Run], value: Callable[[Run], float], unit: str = "share") -> None:
        """Append a figure, unless the newest one of its name is the same."""
        values = sorted(value(run) for run in runs)
        measured = commits(runs)
        newest = latest().get(name, {})
        same = [float(f"{values[0]:.6g}"), float(f"{values[-1]:.6g}"), measured, list(self.seeds)]
        if [newest.get(part) for part in ("low", "high", "commit", "seeds")] == same:
            return
        file = "plan-path" if name.startswith("plan-path.") else "paper"
        line = record(file, name, values, unit, COMMAND, TASKS, self.seeds, measured)
        console.print(
            f"  {name}: {line['value']:.4g} ({line['low']:.4g} to {line['high']:.4g}) {unit}", highlight=False
        )

    def keep_row(self, name: str, game: str, runs: Sequence[Run]) -> None:
        row = ROWS[name]
        self.keep(f"table.{name}.{game}.success", runs, row.value)
        for figure in (PLAN_PATH if game == "plan-path" else HEADLINES).get(name, ()):
            self.keep(f"{game}.{figure}", runs, row.value)
        for figure, (unit, cost) in COSTS.items() if row.trained else ():
            self.keep(f"table.{name}.{game}.{figure}", runs, cost, unit)

    def curves(self, games: Sequence[str]) -> None:
        """Write the curves of rewards, success and turns for the plot, an object per game, seed and step; other games'
        stay."""
        recorded = json.loads((RESULTS / CURVES).read_text()) if (RESULTS / CURVES).exists() else []
        steps = [step for step in recorded if step["game"] not in games]
        for game in games:
            for seed in self.seeds:
                for step in self.team(game, seed).steps():
                    metrics = ("step", "tool/reward", "planner/reward", "rollout/success", "rollout/decisions")
                    steps.append({"game": game, "seed": seed} | {name: step[name] for name in metrics})
        (RESULTS / CURVES).write_text(json.dumps(steps, indent=0))


def main_table(paper: Paper, games: Sequence[str]) -> None:
    """Every row for the games: the teams first, whose tokens the others are given."""

    def runs(ending: str, game: str) -> list[Run]:
        make = {"": paper.team, "-roles-of-alone": paper.of_alone}.get(ending)
        return [make(game, seed) if make else paper.equal(game, ending, seed) for seed in paper.seeds]

    def keep(endings: Sequence[str]) -> None:
        for ending in endings:
            for game in games:
                row_runs = runs(ending, game)
                rows = [name for name, row in ROWS.items() if row.ending == ending]
                for name in rows if all(run.complete for run in row_runs) else ():
                    paper.keep_row(name, game, row_runs)

    for endings in (
        ("",),
        ("-roles", "-single-agent", "-grpo-by-role", "-tool", "-no-tool", "-solo-grpo"),
        ("-roles-of-alone",),
    ):
        table_runs = [run for ending in endings for game in games for run in runs(ending, game)]
        paper.train(table_runs, partial(keep, endings))
    paper.curves(games)


def adapters(paper: Paper, games: Sequence[str]) -> None:
    """A LoRA per role on one frozen base, on Plan-Path, by its own recipe to its end."""
    runs = [paper.run("plan-path", "-lora", seed) for seed in paper.seeds]

    def keep() -> None:
        if all(run.complete for run in runs):
            paper.keep("plan-path.L1.success", runs, Run.after)
            paper.keep("plan-path.L1.swapped.success", runs, Run.swapped)
            paper.keep("plan-path.L1.tokens", runs, partial(Run.total, metric="rollout/tokens"), "tokens")

    paper.train(runs, keep)


def ablations(paper: Paper, games: Sequence[str]) -> None:
    """One thing changed in the Plan-Path team at a time, with its tokens."""

    def keep() -> None:
        for name, runs in changed.items():
            if all(run.complete for run in runs):
                paper.keep(f"ablation.{name}.plan-path.success", runs, Run.after)

    paper.train([paper.team("plan-path", seed) for seed in paper.seeds], lambda: None)
    changed = {name: [paper.ablated(name, seed) for seed in paper.seeds] for name in ABLATIONS}
    paper.train([run for runs in changed.values() for run in runs], keep)


PARTS: dict[str, Callable[[Paper, Sequence[str]], None]] = {
    "main": main_table,
    "adapters": adapters,
    "ablation": ablations,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all unless named")
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trainings at once")
    parser.add_argument("--threads", type=int, help="threads of a training; the cores shared out unless given")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "paper")
    chosen = parser.parse_args()
    unknown = [part for part in chosen.parts if part not in PARTS]
    if unknown:
        parser.error(f"got {unknown[0]!r}; expected some of {', '.join(PARTS)}")
    paper = Paper(chosen.runs.absolute(), chosen.seeds, chosen.jobs, chosen.threads)
    for part in chosen.parts or PARTS:
        PARTS[part](paper, chosen.games)


if __name__ == "__main__":
    main()
