"""Robots that learn: a tiny model is taught plans of mixed quality, then trained as a team or as a single agent.

    python -m lab.robot_trainings make FOLDER
    python -m lab.robot_trainings train FOLDER [--sides team alone] [--seeds 0 1 2] [--tokens 30000] [--write]

make   a tiny model, pre-trained on compact prompts of both forms of training tasks (one cube is
       handed over), with plans of which a third is right and the others lack their last primitive
train  GRPO over whole episodes of both forms, with equally many sampled tokens, and held-out tasks before and after

Needs MuJoCo. `--write` appends `worlds.robots.team.success`, `worlds.robots.alone.success` and those of the base to
results/worlds.jsonl.
"""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

from cadre_tasks.worlds.robots import Robots, RobotsSingleAgent
from lab.robots import examples
from lab.taught import record_success, teach, train_success, training_parser

SETTINGS: dict[str, Any] = {"plan": 3, "turns": 2}
TASKS = 100
SIDES: dict[str, tuple[str, type[Robots], int]] = {
    "team": ("robots", Robots, 40),
    "alone": ("robots-single-agent", RobotsSingleAgent, 80),
}


def make(folder: Path, count: int, steps: int) -> None:
    """Write a model that has read `count` prompts of each form."""
    draw = random.Random("robots")
    lines = [
        line for _, form, _ in SIDES.values() for line in islice(examples(form, "handover", draw, **SETTINGS), count)
    ]
    teach(lines, folder, steps)


def train(model: Path, side: str, seed: int, tokens: int, rate: float) -> list[float]:
    """Return the success on held-out tasks, before and after."""
    env, form, max_tokens = SIDES[side]
    experiment = {
        "env": env,
        "settings": {**SETTINGS, "prompts": "compact", "kind": "handover", "objects": 1},
        "team": {"policies": {"shared": str(model)}, "roles": dict.fromkeys(form.roles, "shared")},
        "algorithm": {"name": "grpo", "k": 8},
        "sampling": {"max_tokens": max_tokens},
        "learner": {"learning_rate": rate},
        "train": {"steps": 1000, "tasks_per_step": 8, "max_tokens": tokens},
        "evaluate": {"tasks": TASKS},
    }
    return train_success(experiment, seed, side)


def main() -> None:
    parser = training_parser(__doc__, ["make", "train"], "models/robots")
    parser.add_argument("--examples", type=int, default=4000, help="of each form, for make")
    parser.add_argument("--steps", type=int, default=2500, help="of make")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--rate", type=float, default=6e-4)
    options = parser.parse_args()
    if options.part == "make":
        make(options.folder, options.examples, options.steps)
        return
    for side in options.sides:
        results = [train(options.folder, side, seed, options.tokens, options.rate) for seed in options.seeds]
        if options.write:
            base = "base" if side == "team" else f"{side}.base"
            record_success("worlds", f"worlds.robots.{base}", f"worlds.robots.{side}", results, TASKS, options.seeds)


if __name__ == "__main__":
    main()
