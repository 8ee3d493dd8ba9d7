"""Self-play at TicTacToe against a pool of earlier weights: `python -m lab.selfplay [--seeds 0 1 2 3 4] [--steps 256]`.

TextArena's game, shown in nine words. A model of 100,000 parameters that has read legal random play is trained in both
seats; every tenth step it plays 1,000 greedy games, half of them in each seat, against exact minimax, which takes any
of its best moves: a draw is the most that anybody gets. `--present` is the control, whose opponent is its present self.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch

import cadre
from cadre import random_keys
from cadre.types import Message, Observation, Reward, Task
from cadre_tasks.integrations.textarena import TextArena
from cadre_tasks.models.make_seed import byte_level, pretrain, tiny_llama
from lab.taught import batches, example

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
FREE, OWN, OTHER = ".", "+", "-"


def free(board: str) -> list[int]:
    return [cell for cell, mark in enumerate(board) if mark == FREE]


def moved(board: str, cell: int) -> str:
    """Return the board after a move, as the other player sees it."""
    return (board[:cell] + OWN + board[cell + 1 :]).translate(str.maketrans(OWN + OTHER, OTHER + OWN))


def lost(board: str) -> bool:
    """Return True if the other player has three in a row."""
    return any(all(board[cell] == OTHER for cell in line) for line in LINES)


@cache
def value(board: str) -> int:
    """Return what the player to move gets by perfect play: 1, 0 or -1."""
    return -1 if lost(board) else max((-value(moved(board, cell)) for cell in free(board)), default=0)


def best(board: str) -> list[int]:
    return [cell for cell in free(board) if -value(moved(board, cell)) == value(board)]


class TicTacToe(TextArena):
    """TextArena's game, the board in nine words; with `minimax` that plays the seat that is not the task's."""

    def __init__(self, task: Task, minimax: bool = False, moves: tuple[str, ...] = ()) -> None:
        super().__init__(task)
        self.minimax, self.moves, self.seat = minimax, moves, int(task.data["deal"].rpartition("-")[2]) % 2
        for move in moves:
            self.game.step(move)
        self.seen = self.game.get_observation()

    @property
    def board(self) -> str:
        cells = [cell for row in self.game.state.game_state["board"] for cell in row]
        own = "OX"[self.seen[0]]
        return "".join(FREE if not cell else OWN if cell == own else OTHER for cell in cells)

    def observe(self) -> dict[str, Observation]:
        return {role: Observation(role, (Message("user", words(self.board)),)) for role in super().observe()}

    async def until_ready(self) -> None:
        while self.minimax and not self.over and self.seen[0] != self.seat:
            draw = random_keys.generator("minimax", self.task.data["deal"], self.turns)
            await self.step({"": str(draw.choice(best(self.board)))})

    async def step(self, actions: dict[str, str]) -> Reward:
        self.moves += tuple(actions.values())
        return await super().step(actions)

    def fork(self) -> Self:
        """Return the same state, by the same moves: a deep copy of the game's logs takes five times as long."""
        twin = type(self)(self.task, self.minimax, self.moves)
        twin.turns = self.turns
        return twin

    @property
    def success(self) -> bool:
        """Return True for a draw."""
        return self.over and not any(self.paid.values())


def words(board: str) -> str:
    return " ".join(f"{cell}{mark}" for cell, mark in enumerate(board))


def write_base(folder: Path) -> None:
    """Write a model that plays any legal move."""
    generator = random.Random(0)
    lines: dict[str, dict[str, Any]] = {}
    for _ in range(4000):
        board = FREE * 9
        while free(board) and not lost(board):
            for cell in free(board):
                lines[f"{board}{cell}"] = {"prompt": words(board), "answer": str(cell)}
            board = moved(board, generator.choice(free(board)))
    torch.manual_seed(0)
    tokenizer = byte_level(r"\d[.+-]|\d| ", (f"{line['prompt']} {line['answer']}" for line in lines.values()), 320)
    model = tiny_llama(tokenizer, len(tokenizer), hidden=64, mlp=128, layers=2, context=64)
    print(f"{model.num_parameters():,} parameters, {len(lines):,} moves")
    rows = [example(line, tokenizer) for line in lines.values()]
    pretrain(model, batches(rows, 256, generator), 400, 3e-3)
    for part in (model, tokenizer):
        part.save_pretrained(folder)


def experiment(base: Path, seed: int, steps: int, present: bool) -> dict[str, Any]:
    pool = {} if present else {"opponents": {"every": 10, "kept": 8, "draw": "results"}}
    return {
        "env": "lab/selfplay.py:TicTacToe",
        "team": {"policies": {"player": str(base)}, "roles": {f"player_{n}": "player" for n in (0, 1)}} | pool,
        "algorithm": {"name": "grpo_by_role", "k": 8},
        "loss": {"entropy": 0.01},
        "sampling": {"max_tokens": 1},
        "learner": {"learning_rate": 1e-3},
        "train": {"steps": steps, "tasks_per_step": 8, "seed": seed, "trees_kept": 0, "checkpoint_minutes": 0},
        "evaluate": {"every": 10, "tasks": 1000, "settings": {"minimax": True}},
    }


if __name__ == "__main__":
    import sys

    if not Path("/tmp/ttt").exists():
        write_base(Path("/tmp/ttt"))
    from lab.taught import train_with_metrics
    import yaml, time

    chosen = experiment(Path("/tmp/ttt"), 100, 40, "present" in sys.argv)
    for pair in sys.argv[1:]:
        if "=" in pair:
            key, _, val = pair.partition("=")
            at = chosen
            *path, last = key.split(".")
            for part in path:
                at = at.setdefault(part, {})
            at[last] = yaml.safe_load(val)
    began = time.monotonic()
    evaluations, metrics = train_with_metrics(chosen)
    print(sys.argv[1:], f"{time.monotonic() - began:.0f} s")
    print([round(report["success"], 3) for report in evaluations])
    for line in metrics[:: max(1, len(metrics) // 6)]:
        print(
            {k: round(v, 3) for k, v in line.items() if k.startswith(("time/", "player")) or k == "rollout/episodes"}
            if line is metrics[0]
            else {
                k: round(v, 3)
                for k, v in line.items()
                if any(s in k for s in ("elo", "score", "entropy", "time/", "decisions"))
            }
        )
