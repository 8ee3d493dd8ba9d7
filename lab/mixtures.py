"""Several environments in one run: `python -m lab.mixtures step|resume|climb [--rounds N] [--write]`.

step    time per step of a mixture of three games over that of its parts, each alone with as many tasks a step, weighted
        by their shares; the embedded model at a learning rate that leaves it as it is; in turn, a ratio a round
resume  files of weights and lines of metrics that differ between a run of four steps of three games, a policy each, and
        one that is stopped after every step
climb   the level that the embedded model has reached after 12 steps of Plan-Path on grids of 3, 4 and 5 cells

Figures go to results/mixture.jsonl.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import cadre
from bench.common import record
from cadre.training.checkpoint import latest_checkpoint

GAMES: dict[str, tuple[int, dict[str, Any]]] = {
    "plan-path": (2, {"prompts": "compact", "turns": 1}),
    "sokoban": (1, {"prompts": "compact", "turns": 1, "max_moves": 20}),
    "sudoku": (1, {"prompts": "compact", "turns": 1}),
}
MIXED = [{"name": name, "weight": weight, "settings": settings} for name, (weight, settings) in GAMES.items()]
EACH = {"policies": dict.fromkeys(GAMES, "seed"), "roles": {f"{g}-{r}": g for g in GAMES for r in ("tool", "planner")}}
COMMON: dict[str, Any] = {
    **{"algorithm": {"name": "at_grpo", "k": 8}, "sampling": {"max_tokens": 96}},
    **{"learner.learning_rate": 1e-3, "evaluate": {"tasks": 0}},
}
STEPS, TASKS, RESUMED, CLIMBED = 6, 16, 4, 12
LEVELS = {"levels": [{"size": 3}, {"size": 4}, {"size": 5}], "up": 0.5, "down": 0.1, "window": 16}


def train(folder: Path, steps: int, resume: bool = False, **sections: Any) -> list[dict[str, Any]]:
    """Return the metrics of the steps of a run that is trained to so many in all."""
    given = {} if resume else {**COMMON, **sections}
    trained = cadre.train(run=folder, resume=resume, quiet=True, steps=steps, **given)
    trained.close()
    return trained.metrics()


def step_ratio(folder: Path) -> float:
    still = {"team": "seed", "learner.learning_rate": 1e-12, "train.tasks_per_step": TASKS}
    runs = {"mixture": (MIXED, {}), **{name: (name, settings) for name, (_, settings) in GAMES.items()}}
    time = {}
    for name, (env, settings) in runs.items():
        metrics = train(folder / name, STEPS, env=env, settings=settings, **still)
        time[name] = median(line["time/wait_s"] + line["time/learn_s"] for line in metrics[1:])
    total = sum(weight for weight, _ in GAMES.values())
    return time["mixture"] * total / sum(weight * time[name] for name, (weight, _) in GAMES.items())


def resume_mismatches(folder: Path) -> int:
    given = {"env": MIXED, "team": EACH, "train.tasks_per_step": 4}
    whole = train(folder / "whole", RESUMED, **given)
    for steps in range(1, RESUMED + 1):
        parted = train(folder / "parted", steps, resume=steps > 1, **given)
    names = [name for name in whole[0] if not name.startswith("time/") and not name.endswith("_per_s")]
    differing = sum(one.get(name) != two.get(name) for one, two in zip(whole, parted, strict=True) for name in names)
    ends = [latest_checkpoint(folder / run / "checkpoints") for run in ("whole", "parted")]
    files = [[(end / game / "model.safetensors").read_bytes() for game in GAMES] for end in ends]
    return differing + sum(one != two for one, two in zip(*files, strict=True))


def climbed_level(folder: Path) -> float:
    given = {"settings": {"prompts": "compact", "turns": 1, "size": 6}, "train.tasks_per_step": TASKS}
    return train(folder / "run", CLIMBED, env="plan-path", team="seed", curriculum=LEVELS, **given)[-1][
        "curriculum/level"
    ]


KINDS = {"step": step_ratio, "resume": resume_mismatches, "climb": climbed_level}
UNITS = {"step": "ratio", "resume": "differences", "climb": "level, from 0"}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=KINDS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    function, values = KINDS[asked.what], []
    for _ in range(asked.rounds):
        with tempfile.TemporaryDirectory() as folder:
            values.append(float(function(Path(folder))))
        print(function.__name__, values[-1], flush=True)
    if asked.write:
        command = f"python -m lab.mixtures {asked.what} --rounds {asked.rounds} --write"
        record("mixture", f"mixture.{function.__name__}", values, UNITS[asked.what], command, len(values))
