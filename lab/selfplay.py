"""Self-play at TicTacToe against a pool of earlier weights: `python -m lab.selfplay [--seeds 0 1] [--write]`.

TextArena's game (the extra textarena), its board in nine words. A model of 100,000 parameters, which has read that a
player takes one of the best moves four times of ten and else any legal one, is trained in both seats. Every tenth step
gives the exact share of draws, at temperature 1, against minimax, which takes any of its best moves: nobody gets more
than a draw. `--present` is the control, whose opponent is its present self. Complete runs are kept, others go on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

import cadre
from bench.common import record
from cadre.training.checkpoint import checkpoint_name, checkpoint_steps
from cadre.types import Message, Observation
from cadre_tasks.integrations.textarena import TextArena
from cadre_tasks.models.make_games import descend
from cadre_tasks.models.make_seed import byte_level, tiny_llama

# A board is nine letters, as the player to move sees it.
FREE, OWN, OTHER = ".", "+", "-"
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
EVERY, EARLY = 10, 40  # steps between two evaluations; the step of the first figure
FOLDER = Path("runs/selfplay")  # of the model and the runs


def moved(board: str, cell: int) -> str:
    return (board[:cell] + OWN + board[cell + 1 :]).translate(str.maketrans(OWN + OTHER, OTHER + OWN))


def lost(board: str) -> bool:
    return any(all(board[cell] == OTHER for cell in line) for line in LINES)


def legal(board: str) -> list[int]:
    return [cell for cell, mark in enumerate(board) if mark == FREE and not lost(board)]


@cache
def value(board: str) -> int:
    """Return what the player to move gets by perfect play: 1, 0 or -1."""
    return max((-value(moved(board, cell)) for cell in legal(board)), default=-lost(board))


def best(board: str) -> list[int]:
    return [cell for cell in legal(board) if -value(moved(board, cell)) == value(board)]


def words(board: str) -> str:
    return " ".join(f"{cell}{mark}" for cell, mark in enumerate(board))


class TicTacToe(TextArena):
    """TextArena's game, the board in nine words."""

    def observe(self) -> dict[str, Observation]:
        marks = {"": FREE, "OX"[self.seen[0]]: OWN}
        board = "".join(marks.get(cell, OTHER) for row in self.game.state.game_state["board"] for cell in row)
        return {role: Observation(role, (Message("user", words(board)),)) for role in super().observe()}


@cache
def boards() -> list[str]:
    """Return every board on which there is a move to make."""
    found, waiting = dict[str, None](), [FREE * 9]
    while waiting:
        if (board := waiting.pop()) not in found and legal(board):
            found[board] = None
            waiting += [moved(board, cell) for cell in legal(board)]
    return list(found)


def answers(model: Any, tokenizer: Any, rows: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities of the nine answers on some boards."""
    talks = [[{"role": "user", "content": words(boards()[row])}] for row in rows]
    ids = tokenizer.apply_chat_template(talks, add_generation_prompt=True, return_dict=False)
    cells = tokenizer.convert_tokens_to_ids([*"012345678"])
    return model(input_ids=torch.tensor(ids)).logits[:, -1].log_softmax(-1)[:, cells]


def draws(folder: Path) -> float:
    """Return the share of games, half of them in each seat, that the model of a folder draws at temperature 1."""
    model, tokenizer = LlamaForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        play = dict(zip(boards(), answers(model, tokenizer, range(len(boards()))).exp().tolist(), strict=True))

    @cache
    def drawn(board: str, is_models_turn: bool) -> float:
        if not legal(board):
            return float(not lost(board))
        if is_models_turn:  # an illegal answer loses
            return sum(play[board][cell] * drawn(moved(board, cell), False) for cell in legal(board))
        return fmean(drawn(moved(board, cell), True) for cell in best(board))

    return (drawn(FREE * 9, True) + drawn(FREE * 9, False)) / 2


def write_base(folder: Path) -> None:
    """Write the model, half a minute of a core."""
    target = torch.zeros(len(boards()), 9)
    for row, board in zip(target, boards(), strict=True):
        row[legal(board)] += 0.6 / len(legal(board))
        row[best(board)] += 0.4 / len(best(board))
    torch.manual_seed(0)
    tokenizer = byte_level(r" ?\d[.+-]|\d", (f"{words(board)}{cell}" for board in boards() for cell in range(9)), 320)
    model = tiny_llama(tokenizer, len(tokenizer), hidden=64, mlp=128, layers=2, context=64)
    parts = (torch.randint(len(target), (256,)).tolist() for _ in count())
    descend(model, (-(target[part] * answers(model, tokenizer, part)).sum(1).mean() for part in parts), 500, 3e-3)
    for made in (model, tokenizer):
        made.save_pretrained(folder)


def curve(folder: Path, base: Path, seed: int, steps: int, present: bool) -> dict[int, float]:
    """Return the share of draws by step of a training in this folder, which is made, or goes on, if it is not there."""
    pool = {} if present else {"opponents": {"every": EVERY, "kept": 8, "draw": "results"}}
    sections: dict[str, Any] = {
        "env": f"{__file__}:TicTacToe",
        "team": {"policies": {"player": str(base)}, "roles": dict.fromkeys(TicTacToe.roles, "player"), **pool},
        **{"algorithm": {"name": "spiral", "k": 1}, "loss": {"kl": 0.2}, "learner": {"learning_rate": 3e-4}},
        **{"sampling": {"max_tokens": 1}, "evaluate": {"tasks": 0}},
        "train": {"steps": steps, "tasks_per_step": 48, "seed": seed, "trees_kept": 0, "checkpoint_every": EVERY},
    }
    saved = folder / "checkpoints"
    if steps not in checkpoint_steps(saved):
        cadre.train(**({} if folder.exists() else sections), run=folder, resume=folder.exists(), quiet=True).close()
    return {step: draws(saved / checkpoint_name(step) / "player") for step in checkpoint_steps(saved)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--present", action="store_true", help="the control without a pool")
    parser.add_argument("--write", action="store_true", help="append to results/")
    chosen = parser.parse_args()
    if not (base := FOLDER / "base").exists():
        write_base(base)
    name, curves = "selfplay.present" if chosen.present else "selfplay", []
    for seed in chosen.seeds:
        curves.append(curve(FOLDER / f"{name}-{seed}", base, seed, chosen.steps, chosen.present))
        print(f"{name}-{seed}: {', '.join(f'{share:.3f}' for share in curves[-1].values())}", flush=True)
    figures = {f"draws.step{step}": [shares[step] for shares in curves] for step in (0, EARLY, chosen.steps)}
    figures["end_of_best"] = [shares[chosen.steps] / max(shares.values()) for shares in curves]
    for figure, values in figures.items() if chosen.write else ():
        command = "python -m lab.selfplay --write" + " --present" * chosen.present
        record("prove", f"{name}.{figure}", values, "share", command, 1, chosen.seeds)


if __name__ == "__main__":
    main()
