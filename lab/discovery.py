"""Can training write a program that it has never read? `python -m lab.discovery [check base train beside]`.

The embedded model has read the right program of each game, and training picks it. Here a base is made in whose text no
right program stands (`cadre_tasks.models.programs.PARTS`): what it is made of stands in programs with three mistakes
each.

    check   runs every program of that mixture: none may solve `PROOF` tasks
    base    makes the base in RUNS/base (`python -m cadre_tasks.models.make_seed --mixture parts`)
    train   trains the games' recipes on it, a run a game and seed, and looks through everything that was sampled
    beside  the same on the embedded model, for comparison

Runs that are complete are kept. Appends `discovery.GAME.base.success`, `.team.success`, `.programs` (how many distinct
right programs were written in training), `.tokens` and `.first` (tokens sampled until the first of them) to
results/discovery.jsonl, and of the embedded model the same under `discovery.GAME.embedded`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.common import ROOT, record
from cadre.env import Env
from cadre.rollout import walk
from cadre.runs.kept_trees import read_all_trees
from cadre_tasks.games.plan_path import PlanPath
from cadre_tasks.games.sokoban import Sokoban
from cadre_tasks.games.sudoku import Sudoku
from cadre_tasks.models.programs import PARTS
from lab.trainings import Run, commits, console

COMMAND = "python -m lab.discovery"
GAMES: dict[str, type[Env]] = {"plan-path": PlanPath, "sokoban": Sokoban, "sudoku": Sudoku}
# A program is right if it solves so many tasks of the test split, in one turn and without the planner.
PROOF = 10
# Tasks that no setting was chosen on, as in lab/paper.py.
FIRST, TASKS = 2000, 200
KEEP = ("train.trees_kept=16", "train.trees_megabytes=2000")
# What fails is not pushed against: a right program differs in a line from hundreds that are wrong, and would be pushed
# with them. A success weighs by how rare it is at its decision (MaxRL, arXiv 2602.02710). Nothing but success is paid.
SUCCESSES = (
    "algorithm={name: custom, shape: greedy, k: 16, returns: first_reward, group: node, baseline: none, scale: mean}",
    "settings.reward=outcome",
    "learner.learning_rate=5e-4",
    "train.steps=40",
)
# Trained on tasks that a shortcut solves more seldom than it does those that are reported.
HARDER: dict[str, tuple[str, ...]] = {
    "plan-path": ("settings.size=14", "settings.blocked=0.35", "evaluate.settings={size: 10, blocked: 0.22}"),
    "sokoban": (),
    "sudoku": ("settings.clues=4", "evaluate.settings={clues: 6}"),
}


def right(game: str, program: str) -> bool:
    """Return True if the program solves all tasks of the proof; stop at the first failure."""

    async def solves(index: int) -> bool:
        env = GAMES[game](tasks[index])
        return (await env.step({"tool": program})).parts["tool/goal"] == 1.0

    tasks = GAMES[game].tasks("test")
    return all(asyncio.run(solves(index)) for index in range(PROOF))


def check(game: str, programs: Iterable[str]) -> list[str]:
    """Those of the programs that are right."""
    return [program for program in dict.fromkeys(programs) if right(game, program)]


def fixed(game: str) -> Iterator[str]:
    """Every program of the mixture that is not drawn at random; those are lists of moves."""
    for kind in PARTS[game].values():
        yield from (template for template in kind.templates if isinstance(template, str))


def make_base(folder: Path, steps: int) -> None:
    """The base, unless it is there."""
    if not (folder / "model.safetensors").exists():
        make = [
            sys.executable,
            "-m",
            "cadre_tasks.models.make_seed",
            str(folder),
            "--mixture",
            "parts",
            "--steps",
            str(steps),
        ]
        subprocess.run(make, cwd=ROOT, check=True)


def written(run: Run) -> dict[str, float]:
    """Return the run's programs that solved their task, with the number of tokens sampled before each."""
    spent, tokens_before_step = 0.0, []
    for step in run.steps():
        spent += step["rollout/tokens"]
        tokens_before_step.append(spent)
    programs: dict[str, float] = {}
    for entry in read_all_trees(run.folder):
        for node in walk.nodes(entry.tree.root):
            for branch in node.branches:
                if branch.reward.parts.get("tool/goal") == 1.0:
                    programs.setdefault(
                        node.samples["tool"][branch.choice["tool"]].text, tokens_before_step[entry.step]
                    )
    return programs


def discovered(game: str, run: Run) -> dict[str, float]:
    """The right programs of a run, with the tokens by then; looked for once."""
    cache = run.folder / "discovered.json"
    if not cache.exists():
        cache.write_text(json.dumps({text: spent for text, spent in written(run).items() if right(game, text)}))
    programs: dict[str, float] = json.loads(cache.read_text())
    return programs


def train(game: str, seeds: list[int], runs: Path, model: str, name: str) -> None:
    """Train the game's recipe on a model, and record what came of it under a name."""
    base = (f"team.policies.shared={model}", *SUCCESSES, *HARDER[game], *KEEP)
    trained = [Run(runs / f"{name}-{seed}", game, seed, base, FIRST, TASKS) for seed in seeds]
    for run in trained:
        if not run.complete:
            run.train(threads=1)
        console.print(f"{run.folder.name}: {run.before():.3f} to {run.after():.3f}", highlight=False)
    programs_by_run = [discovered(game, run) for run in trained]
    figures = {
        "base.success": ([run.before() for run in trained], "share"),
        "team.success": ([run.after() for run in trained], "share"),
        "programs": ([float(len(programs)) for programs in programs_by_run], "count"),
        "tokens": ([run.total("rollout/tokens") for run in trained], "tokens"),
    }
    if all(programs_by_run):
        figures["first"] = ([min(programs.values()) for programs in programs_by_run], "tokens")
    for figure, (values, unit) in figures.items():
        line = record("discovery", f"discovery.{name}.{figure}", values, unit, COMMAND, TASKS, seeds, commits(trained))
        console.print(f"{line['name']}: {line['value']:.4g} [{line['low']:.4g}, {line['high']:.4g}]", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="of check, base, train, beside; all unless named")
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1600, help="of the base's pre-training")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "discovery")
    chosen = parser.parse_args()
    parts, runs = chosen.parts or ["check", "base", "train", "beside"], chosen.runs.absolute()
    if "check" in parts:
        for game in chosen.games:
            programs = list(fixed(game))
            console.print(f"{game}: {len(check(game, programs))} of {len(set(programs))} programs are right")
    if "base" in parts:
        make_base(runs / "base", chosen.steps)
    if "train" in parts:
        for game in chosen.games:
            train(game, chosen.seeds, runs, str(runs / "base"), game)
    if "beside" in parts:
        for game in chosen.games:
            train(game, chosen.seeds, runs, "seed", f"{game}.embedded")


if __name__ == "__main__":
    main()
