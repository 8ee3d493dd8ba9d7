"""The training text of the seed model: conversations of mixed quality in the compact wording, of every game and role.

A transcript starts from a random task of the game. Those of Sokoban and Sudoku belong to the training split. Grids of
Plan-Path are not held to it, since the shipped model was made before they were: about a tenth hash to the test split,
and none of those that it read is one of the 10,000 test tasks. The answers of tools are made up without running a
program: the sandbox has no part in pre-training.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cadre.env import Split
from cadre.envs.splits import in_split
from cadre.types import Task
from cadre_tasks.answers import numbered
from cadre_tasks.games import levels, plan_path, sudoku, sudoku_grid
from cadre_tasks.games.plan_path import PlanPath, shortest
from cadre_tasks.games.sokoban import Sokoban, solve
from cadre_tasks.games.sudoku import Sudoku
from cadre_tasks.games.tool_planner import Compact, Run, ToolPlanner
from cadre_tasks.models.programs import KINDS, sample_program
from cadre_tasks.models.programs.mixture import Mixture

# (chat role, text); only the assistant's texts have labels.
Transcript = list[tuple[str, str]]
TRAIN: Split = "train"
LATIN = ("1234 3412 2143 4321", "1234 3412 4321 2143", "1234 4321 2143 3412")


@dataclass(frozen=True)
class Speech:
    """The writers of a game's transcripts: a new episode, the output of a tool's program (None: nothing of use), and a
    plan."""

    new: Callable[[random.Random], ToolPlanner]
    printed: Callable[[Any, random.Random], str | None]
    plan: Callable[[Any, str | None, random.Random], str]


def transcript(generator: random.Random, mixture: Mixture = KINDS) -> Transcript:
    """Return one conversation of a random game and kind: a tool's, a planner's, a lone planner's or a solo agent's,
    with programs of the mixture."""
    game = generator.choice(list(SPEECH))
    speech = SPEECH[game]
    env = speech.new(generator)
    (kind,) = generator.choices(["tool", "planner", "alone", "solo"], [20, 55, 10, 15])
    _, program = sample_program(game, generator, mixture)
    programmed: Transcript = [("user", Compact.ask_program(env)), ("assistant", program)]
    if kind == "tool":
        return programmed
    answer = speech.printed(env, generator)
    if kind != "alone":
        status = "ok" if answer is not None else generator.choice(["error", "error", "ok", "timeout"])
        # As if a program had run: the planner's prompt then shows its result.
        env.run = Run(status, "", "", answer)
    else:
        answer = None
    planned: Transcript = [("user", Compact.ask_answer(env)), ("assistant", speech.plan(env, answer, generator))]
    return programmed + planned if kind == "solo" else planned


def letters(generator: random.Random, longest: int) -> str:
    """Return one to `longest` random moves."""
    return "".join(generator.choices("UDLR", k=generator.randint(1, longest)))


def straight(start: tuple[int, int], end: tuple[int, int], generator: random.Random) -> str:
    """Return straight moves to the end, ignoring obstacles: along the row and then the column, or the other
    way round."""
    down, right = end[0] - start[0], end[1] - start[1]
    legs = [("R" if right > 0 else "L") * abs(right), ("D" if down > 0 else "U") * abs(down)]
    return "".join(legs if generator.random() < 0.8 else reversed(legs))


def new_plan_path(generator: random.Random) -> PlanPath:
    return PlanPath(Task("seed", {"grid": plan_path.generate(10, 0.22, "seed-model", generator.getrandbits(60))}))


def path_printed(env: PlanPath, generator: random.Random) -> str | None:
    kind = generator.random()
    if kind < 0.40:
        return shortest(env.grid, env.cell)
    if kind < 0.60:
        return straight(env.cell, env.grid.goal, generator)
    return letters(generator, 26) if kind < 0.85 else None


def plan_a_path(env: PlanPath, answer: str | None, generator: random.Random) -> str:
    """Return mostly the first one or two moves towards the goal, one in four times a copy."""
    kind, direct = generator.random(), straight(env.cell, env.grid.goal, generator)
    if kind < 0.25 and answer is not None:
        return numbered(answer)
    if kind < 0.80:
        return numbered(direct[: generator.choice([1, 2, 2])])
    return numbered(direct if kind < 0.90 else letters(generator, 12))


def new_sokoban(generator: random.Random) -> Sokoban:
    rows = levels.generate(6, 1, lambda *room: in_split(TRAIN, *room), "seed-model", generator.getrandbits(60))
    env = Sokoban(Task("seed", {"grid": rows}))
    if generator.random() < 0.3:  # in the middle of an episode
        moved = env.outcome(letters(generator, 8))
        env.state = env.state if moved.solved else moved.state
    return env


def pushes_printed(env: Sokoban, generator: random.Random) -> str | None:
    kind = generator.random()
    if kind < 0.40:
        return solve(env.level, env.state) or letters(generator, 8)
    if kind < 0.60:
        return straight(min(env.state.boxes), min(env.level.goals), generator)
    return letters(generator, 16) if kind < 0.85 else None


def plan_pushes(env: Sokoban, answer: str | None, generator: random.Random) -> str:
    """Return mostly one move towards the goal, one in four times a copy."""
    kind = generator.random()
    if kind < 0.25 and answer is not None:
        return numbered(answer)
    direct = straight(env.state.walker, min(env.level.goals), generator)
    if kind < 0.85 and direct:
        return numbered(direct[0])
    return numbered(letters(generator, 8))


def new_sudoku(generator: random.Random) -> Sudoku:
    clues, bits = sudoku.CLUES[4], generator.getrandbits(60)
    rows = sudoku_grid.generate(4, clues, lambda *solution: in_split(TRAIN, *solution), "seed-model", bits)
    return Sudoku(Task("seed", {"grid": list(rows)}))


def permuted_rows(env: Sudoku, generator: random.Random) -> str:
    """Return every row completed in a random order, ignoring the columns."""
    return " ".join(completed(row, generator) for row in env.puzzle)


def completed(row: str, generator: random.Random) -> str:
    missing = [digit for digit in "123456789"[: len(row)] if digit not in row]
    generator.shuffle(missing)
    return "".join(missing.pop() if mark == "." else mark for mark in row)


def random_rows(size: int, generator: random.Random) -> str:
    return " ".join(completed("." * size, generator) for _ in range(size))


def numbered_rows(size: int, generator: random.Random) -> str:
    """Return random rows of all digits, as the compact wording writes them: " 1:3412 2:1234" and so on."""
    rows = random_rows(size, generator).split()
    return " ".join(f"{number}:{row}" for number, row in enumerate(rows, 1))


def grid_printed(env: Sudoku, generator: random.Random) -> str | None:
    kind = generator.random()
    if kind < 0.45:
        return " ".join(env.solution)
    if kind < 0.65:
        return permuted_rows(env, generator)
    if kind < 0.80:
        return random_rows(4, generator)
    return " ".join(env.puzzle).replace(".", generator.choice("1234")) if kind < 0.85 else None


def plan_a_grid(env: Sudoku, answer: str | None, generator: random.Random) -> str:
    """Return mostly one and the same grid, whatever the puzzle; one in four times a copy."""
    kind = generator.random()
    if kind < 0.25 and answer is not None:
        return env.show(answer)
    if kind < 0.75:
        return env.show(generator.choices(LATIN, [6, 1, 1])[0])
    return env.show(permuted_rows(env, generator) if kind < 0.85 else random_rows(4, generator))


SPEECH = {
    "plan-path": Speech(new_plan_path, path_printed, plan_a_path),
    "sokoban": Speech(new_sokoban, pushes_printed, plan_pushes),
    "sudoku": Speech(new_sudoku, grid_printed, plan_a_grid),
}
