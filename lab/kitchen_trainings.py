"""Cooks that learn, and cooks of different seeds together.

    python -m lab.kitchen_trainings make FOLDER [--layouts cramped_room]
    python -m lab.kitchen_trainings train FOLDER [--layouts cramped_room] [--seeds 0 1 2] [--runs DIR] [--write]
    python -m lab.kitchen_trainings cross [--layouts cramped_room] [--seeds 0 1 2] [--runs DIR] [--write]

make   a tiny model for a layout, pre-trained on cooks who do what is needed next in a third of their answers, and wait
       in the others
train  two policies that begin as that model, GRPO over whole episodes, a run for each layout and seed in DIR
cross  points of cooks of the same run, and of the first cook of one run with the second one of another

Points are the mean over held-out starts of 400 steps: greedy, and of eight episodes a start at temperature 1, at which
the cooks are trained. Greedy cooks wait for ever where waiting is the likeliest answer. `--write` appends
`worlds.kitchen.LAYOUT.base`, `.team`, `.self_play` and `.cross_play`, all greedy, and the same with `_sampled`, at
temperature 1, to results/worlds.jsonl.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import cadre
from bench.common import record
from cadre.evaluation.evaluate import Repeats
from cadre.runs.export import export_policy
from cadre.runs.folder import Run
from cadre_tasks.worlds.kitchen_rules import LAYOUTS, SOUP_POINTS
from lab.kitchen import examples
from lab.taught import teach, training_parser

COOKS = {"cook_1": "one", "cook_2": "other"}
TASKS = 6  # held-out starts of the smallest layout
EPISODES = 8  # of a start, at temperature 1
Points = tuple[float, float]  # greedy, and at temperature 1


def experiment(layout: str, models: dict[str, str], **sections: Any) -> dict[str, Any]:
    """Return the settings of two cooks with a model each."""
    return {
        "env": "kitchen",
        "team": {"policies": models, "roles": COOKS},
        "algorithm": {"name": "grpo", "k": 8},
        "sampling": {"max_tokens": 6},
        **sections,
        "settings": {"prompts": "compact", "layout": layout, "plan": 1, **sections.get("settings", {})},
    }


def measure_points(layout: str, models: dict[str, str]) -> Points:
    """Return the mean points of held-out starts in 400 steps, greedy and at temperature 1."""
    team = cadre.load(experiment(layout, models, settings={"horizon": 400, "reward": "outcome"}))
    try:
        reports = team.evaluate(TASKS), team.evaluate_sampled(Repeats(EPISODES, temperature=1.0), TASKS)
    finally:
        team.close()
    # The reward is in soups, less the fines for answers that cannot be read.
    greedy, sampled = (SOUP_POINTS * report.reward for report in reports)
    return greedy, sampled


def train(model: Path, layout: str, seed: int, folder: Path, steps: int, rate: float) -> None:
    """Train two cooks from the model of their layout; the run's policies are exported beside it."""
    settings = experiment(
        layout,
        dict.fromkeys(COOKS.values(), str(model / layout)),
        settings={"horizon": 200},
        learner={"learning_rate": rate},
        train={"steps": steps, "tasks_per_step": 4, "seed": seed},
    )
    cadre.train(settings, run=folder / "run", quiet=True).close()
    for policy in COOKS.values():
        export_policy(Run.open(folder / "run"), policy, folder / policy, merge=False)


def report(name: str, points: list[Points], seeds: list[int], write: bool) -> None:
    command = " ".join(["python -m lab.kitchen_trainings", *sys.argv[1:]])
    for suffix, values, count in zip(
        ("", "_sampled"), zip(*points, strict=True), (TASKS, TASKS * EPISODES), strict=True
    ):
        listed = ", ".join(f"{value:.1f}" for value in values)
        print(f"{name}{suffix}: {fmean(values):.1f} points ({listed})", flush=True)
        if write:
            record("worlds", f"worlds.kitchen.{name}{suffix}", values, "points", command, count, seeds)


def main() -> None:
    parser = training_parser(__doc__, ["make", "train", "cross"], "models/kitchen")
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=["cramped_room"])
    parser.add_argument("--runs", type=Path, default=Path("runs/kitchen"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=3e-4)
    options = parser.parse_args()
    for layout in options.layouts:
        folders = {seed: options.runs / f"{layout}-{seed}" for seed in options.seeds}
        if options.part == "make":
            teach(examples(layout), options.folder / layout, 600)
        elif options.part == "train":
            base = measure_points(layout, dict.fromkeys(COOKS.values(), str(options.folder / layout)))
            report(f"{layout}.base", [base], [], options.write)
            for seed, folder in folders.items():
                train(options.folder, layout, seed, folder, options.steps, options.rate)
            points = [
                measure_points(layout, {policy: str(folder / policy) for policy in COOKS.values()})
                for folder in folders.values()
            ]
            report(f"{layout}.team", points, options.seeds, options.write)
        else:
            pairs = list(product(options.seeds, repeat=2))
            points = [
                measure_points(layout, {"one": str(folders[first] / "one"), "other": str(folders[second] / "other")})
                for first, second in pairs
            ]
            self_play = [value for value, (first, second) in zip(points, pairs, strict=True) if first == second]
            cross_play = [value for value, (first, second) in zip(points, pairs, strict=True) if first != second]
            report(f"{layout}.self_play", self_play, options.seeds, options.write)
            report(f"{layout}.cross_play", cross_play, options.seeds, options.write)


if __name__ == "__main__":
    main()
