"""The generators: tasks a second on one core, and what is true of every task that they make.

    python -m lab.generators [--tasks 10000] [--games plan-path sokoban sudoku sudoku-9x9]

Makes that many tasks of each split, solves every one (Sudoku: proves that there is one solution), and compares the
splits. Stops with an error where a task is not solvable or is in both. Speed is by processor time, generation alone.
Appends `generator.*` to results/generators.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from bench.common import record
from cadre.env import Env
from cadre_tasks.games.plan_path import PlanPath, parse_grid, shortest
from cadre_tasks.games.sokoban import Sokoban, parse_level, solve
from cadre_tasks.games.sudoku import Sudoku
from cadre_tasks.games.sudoku_grid import solutions

console = Console()
COMMAND = "python -m lab.generators"


def path_length(rows: Sequence[str]) -> int:
    return len(shortest(*parse_grid(rows)) or "")


def pushes_length(rows: Sequence[str]) -> int:
    return len(solve(*parse_level(rows)) or "")


def cells_to_fill(rows: Sequence[str]) -> int:
    return "".join(rows).count(".") if len(solutions(rows)) == 1 else 0


# (environment, its settings, length of a task's solution or 0 where it has none or several, share of --tasks)
Row = tuple[type[Env], dict[str, Any], Callable[[Sequence[str]], int], float]
GAMES: dict[str, Row] = {
    "plan-path": (PlanPath, {}, path_length, 1.0),
    "sokoban": (Sokoban, {}, pushes_length, 1.0),
    "sudoku": (Sudoku, {}, cells_to_fill, 1.0),
    "sokoban-2-boxes": (Sokoban, {"boxes": 2}, pushes_length, 0.1),
    "sudoku-9x9": (Sudoku, {"size": 9}, cells_to_fill, 0.1),
}


def measure(game: str, count: int) -> None:
    env, settings, length, share = GAMES[game]
    count = int(count * share)
    speeds, lengths, drawn = [], [], {}
    for split in ("train", "test"):
        tasks = env.tasks(split, **settings)  # type: ignore[arg-type]
        began = time.process_time()
        made = [task.data["grid"] for task in tasks[:count]]
        speeds.append(count / (time.process_time() - began))
        lengths += [length(rows) for rows in made]
        drawn[split] = {tuple(rows) for rows in made}
    unsolved, shared = lengths.count(0), len(drawn["train"] & drawn["test"])
    if unsolved or shared:
        raise SystemExit(f"{game}: {unsolved} tasks without one solution, {shared} in both splits; expected none.")

    def keep(name: str, values: Sequence[float], unit: str) -> None:
        line = record("generators", f"generator.{game}.{name}", values, unit, COMMAND, 2 * count)
        console.print(f"{line['name']}: {line['value']:g} [{line['low']:g}, {line['high']:g}] {unit}")

    keep("tasks_per_s", speeds, "1/s")
    keep("solved", [1 - unsolved / len(lengths)], "share")
    keep("in_both_splits", [shared], "tasks")
    keep("distinct", [len(found) / count for found in drawn.values()], "share")
    keep("solution_length", [min(lengths), statistics.median(lengths), max(lengths)], "moves or cells")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the generators.")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    chosen = parser.parse_args()
    for game in chosen.games:
        measure(game, chosen.tasks)


if __name__ == "__main__":
    main()
