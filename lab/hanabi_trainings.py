"""Two players who learn Hanabi: tiny models that follow a convention now and then, trained on whole games.

    python -m lab.hanabi_trainings make FOLDER
    python -m lab.hanabi_trainings train FOLDER [--seeds 0 1 2] [--write]

make   a tiny model, pre-trained on compact prompts of training deals of the small game: first on the moves of the
       convention of lab/hanabi.py, from which it learns to read a prompt, then on moves of which a third are the
       convention's. In the others it discards its oldest card, or gives a hint that calls for no play where nothing can
       be discarded. Greedy play of it hardly scores
train  two policies that begin as that model, GRPO over whole games; greedy points on held-out deals before and after,
       and points at temperature 1 in the first and the last steps of the training

`--write` appends `worlds.hanabi.small.base` and `.team`, and of temperature 1 `.base_sampled` and `.team_sampled`, to
results/worlds.jsonl, beside the convention's points.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.common import record
from cadre_tasks.games.hanabi import Hanabi
from lab.hanabi import by_convention, misleads
from lab.taught import teach, train_with_metrics, training_parser

DEALS = 200
FOLLOWS = 1 / 3
STEPS = 5  # the first and the last so many steps are averaged
STEP_TASKS, GROUP = 4, 8
LINES = ("base", "team", "base_sampled", "team_sampled")


def cautious(env: Hanabi, draw: random.Random, follows: float = FOLLOWS) -> str:
    """Return the convention's move, or more often the first discard, or else a hint that calls for no play."""
    table, words = env.table(env.state.current_player()), list(env.words())
    if draw.random() < follows or not (candidates := [word for word in words if not word.startswith("play")]):
        return by_convention(env, draw)
    # A hint that points out a card which does not fit would make a partner who follows the convention end the game.
    safe = (word for word in candidates if word.startswith("discard") or not misleads(table, word))
    return next(safe, candidates[0])


def examples(count: int, follows: float = FOLLOWS) -> list[dict[str, str]]:
    """Return prompts and moves of games of the training split. `follows` is the share of the convention's moves."""
    draw, lines, tasks = random.Random("hanabi"), list[dict[str, str]](), Hanabi.tasks("train", "small")

    async def play(env: Hanabi) -> None:
        while observed := env.observe():
            ((role, observation),) = observed.items()
            prompt = observation.messages[-1].content
            lines.append({"role": role, "prompt": prompt, "answer": cautious(env, draw, follows)})
            # What is played now and then is the convention's move, so that later prompts of its games are read too.
            await env.step({role: by_convention(env, draw) if draw.random() < 0.5 else cautious(env, draw)})

    game = 0
    while len(lines) < count:
        asyncio.run(play(Hanabi(tasks[game], "small", "compact")))
        game += 1
    return lines


def train(model: Path, seed: int, steps: int, rate: float) -> list[float]:
    """Return mean points: greedy on held-out deals before and after, at temperature 1 in the first and the last steps.

    The latter are those of the training's own games, each of a deal that was not played before.
    """
    experiment: dict[str, Any] = {
        "env": "hanabi",
        "settings": {"size": "small", "prompts": "compact"},
        "team": {
            "policies": {"one": str(model), "other": str(model)},
            "roles": {"player_0": "one", "player_1": "other"},
        },
        "algorithm": {"name": "grpo", "k": GROUP},
        "sampling": {"max_tokens": 6},
        "learner": {"learning_rate": rate},
        "train": {"steps": steps, "tasks_per_step": STEP_TASKS, "seed": seed},
        "evaluate": {"tasks": DEALS},
    }
    evaluations, metrics = train_with_metrics(experiment)
    greedy = [report["reward"] for report in evaluations]  # the team's, the change of the score summed up
    # The metric is a mean over decisions, of which the last of a game has its points.
    points = [line["parts/score"] * line["rollout/env_steps"] / line["rollout/episodes"] for line in metrics]
    scores = [greedy[0], greedy[-1], fmean(points[:STEPS]), fmean(points[-STEPS:])]
    print(f"seed {seed}: {', '.join(f'{score:.2f}' for score in scores)}", flush=True)
    return scores


def main() -> None:
    parser = training_parser(__doc__, ["make", "train"], "models/hanabi")
    parser.add_argument("--examples", type=int, default=20_000, help="for make")
    parser.add_argument("--make-steps", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    if options.part == "make":
        easier = examples(options.examples, follows=1.0)
        teach(examples(options.examples), options.folder, options.make_steps, easier=easier, spread=0.08)
        return
    results = [train(options.folder, seed, options.steps, options.rate) for seed in options.seeds]
    if options.write:
        command = " ".join(["python -m lab.hanabi_trainings", *sys.argv[1:]])
        games = STEPS * STEP_TASKS * GROUP
        for name, values, count in zip(LINES, zip(*results, strict=True), (DEALS, DEALS, games, games), strict=True):
            record("worlds", f"worlds.hanabi.small.{name}", values, "points", command, count, options.seeds)


if __name__ == "__main__":
    main()
