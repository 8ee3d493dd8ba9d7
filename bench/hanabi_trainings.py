"""Two players who learn Hanabi: tiny models that follow a convention now and then, trained on whole games.

    python bench/hanabi_trainings.py make FOLDER
    python bench/hanabi_trainings.py train FOLDER [--seeds 0 1 2] [--write]

make   a tiny model, pre-trained on compact prompts of training deals of the small game. In a third of its answers it
       plays by the convention of bench/hanabi.py, in the others it discards its oldest card, or gives a hint that
       calls for no play where nothing can be discarded. Greedy play of it hardly scores
train  two policies that begin as that model, GRPO over whole games; greedy scores on held-out deals before and after

`--write` appends `worlds.hanabi.small.base` and `.team` to results/worlds.jsonl, beside the convention's points.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path
from typing import Any

from cadre_tasks.games.hanabi import Hanabi
from common import record
from hanabi import by_convention, misleads
from taught import teach, train_once

DEALS = 200
FOLLOWS = 1 / 3


def cautious(env: Hanabi, draw: random.Random) -> str:
    """Return the convention's move, or more often the first discard, or else a hint that calls for no play."""
    table, words = env.table(env.state.current_player()), list(env.words())
    if draw.random() < FOLLOWS or not (others := [word for word in words if not word.startswith("play")]):
        return by_convention(env, draw)
    # A hint that points out a card which does not fit would make a partner who follows the convention end the game.
    safe = (word for word in others if word.startswith("discard") or not misleads(table, word))
    return next(safe, others[0])


def examples(count: int) -> list[dict[str, str]]:
    """Return prompts and moves of games of the training split."""
    draw, lines, tasks = random.Random("hanabi"), list[dict[str, str]](), Hanabi.tasks("train", "small")

    async def play(env: Hanabi) -> None:
        while observed := env.observe():
            ((role, observation),) = observed.items()
            lines.append({"role": role, "prompt": observation.messages[-1].content, "answer": cautious(env, draw)})
            # What is played now and then is the convention's move, so that later prompts of its games are read too.
            move = by_convention(env, draw) if draw.random() < 0.5 else lines[-1]["answer"]
            await env.step({role: move})

    game = 0
    while len(lines) < count:
        asyncio.run(play(Hanabi(tasks[game], "small", "compact")))
        game += 1
    return lines


def train(model: Path, seed: int, steps: int, rate: float) -> list[float]:
    """Return the mean scores on held-out deals, before and after."""
    experiment: dict[str, Any] = {
        "env": "hanabi",
        "settings": {"size": "small", "prompts": "compact"},
        "team": {
            "policies": {"one": str(model), "other": str(model)},
            "roles": {"player_0": "one", "player_1": "other"},
        },
        "algorithm": {"name": "grpo", "k": 8},
        "sampling": {"max_tokens": 6},
        "learner": {"learning_rate": rate},
        "train": {"steps": steps, "tasks_per_step": 4, "seed": seed},
        "evaluate": {"tasks": DEALS},
    }
    scores = [report["parts"]["score"] for report in train_once(experiment)]
    print(f"seed {seed}: {', '.join(f'{score:.2f}' for score in scores)}", flush=True)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["make", "train"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=int, default=20_000, help="for make")
    parser.add_argument("--make-steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.part == "make":
        teach(examples(options.examples), options.folder, options.make_steps, spread=0.08)
        return
    results = [train(options.folder, seed, options.steps, options.rate) for seed in options.seeds]
    if options.write:
        command = " ".join(["python bench/hanabi_trainings.py", *sys.argv[1:]])
        for name, values in (("base", [line[0] for line in results]), ("team", [line[-1] for line in results])):
            record("worlds", f"worlds.hanabi.small.{name}", values, "points", command, DEALS, options.seeds)


if __name__ == "__main__":
    main()
