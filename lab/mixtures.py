"""Several environments in one run: `python -m lab.mixtures step|resume|climb [--rounds N] [--write]`.

step    CPU time of this process, for a sampled token, of a mixture of three games over that of its parts, each alone
        with as many tasks a step and weighted by its share; the embedded model, at a learning rate that leaves it as it
        is. By token, as what is drawn of a game differs from step to step
resume  weights and metrics that differ between four steps of three games, a policy each, and as many with three stops
climb   the level of Plan-Path on grids of 3, 4 and 5 cells that the embedded model has reached after 12 steps
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import cadre
from bench.common import record, timeless
from cadre.training.checkpoint import latest_checkpoint

SHORT = {"prompts": "compact", "turns": 1}
GAMES: list[dict[str, Any]] = [
    {"name": "plan-path", "weight": 2, "settings": SHORT},
    {"name": "sokoban", "weight": 1, "settings": {**SHORT, "max_moves": 20}},
    {"name": "sudoku", "weight": 1, "settings": SHORT},
]
NAMES = [game["name"] for game in GAMES]
EACH = {"policies": dict.fromkeys(NAMES, "seed"), "roles": {f"{g}-{r}": g for g in NAMES for r in ("tool", "planner")}}
COMMON = {"algorithm": {"name": "at_grpo", "k": 8}, "sampling.max_tokens": 96, "evaluate.tasks": 0}
STEPS, TASKS, RESUMED, CLIMBED = 6, 16, 4, 12
LEVELS = {"levels": [{"size": 3}, {"size": 4}, {"size": 5}], "up": 0.5, "down": 0.1, "window": 16}


def train(folder: Path, steps: int, resume: bool = False, **sections: Any) -> list[dict[str, Any]]:
    """Return the metrics of the steps of a run that is trained to so many in all."""
    given = {} if resume else {**COMMON, "learner.learning_rate": 1e-3, **sections}
    trained = cadre.train(run=folder, resume=resume, quiet=True, steps=steps, **given)
    trained.close()
    return trained.metrics()


def step_ratio(folder: Path) -> float:
    still: dict[str, Any] = {"team": "seed", "learner.learning_rate": 1e-12, "train.tasks_per_step": TASKS}
    spent: list[tuple[float, float]] = []
    for game in [{"name": GAMES, "settings": {}}, *GAMES]:
        marks: list[float] = []
        still["train.on_step"] = lambda *step: marks.append(time.process_time())  # noqa: B023 - a training is over by then
        metrics = train(folder / str(len(spent)), STEPS, env=game["name"], settings=game["settings"], **still)
        # The first step warms up.
        spent.append((marks[-1] - marks[0], sum(line["rollout/tokens"] for line in metrics[1:])))
    (seconds, tokens), *parts = spent
    of_parts = [sum(game["weight"] * part[kind] for game, part in zip(GAMES, parts, strict=True)) for kind in (0, 1)]
    return seconds / tokens / (of_parts[0] / of_parts[1])


def resume_mismatches(folder: Path) -> int:
    given = {"env": GAMES, "team": EACH, "train.tasks_per_step": 4}
    whole = train(folder / "whole", RESUMED, **given)
    for steps in range(1, RESUMED + 1):
        parted = train(folder / "parted", steps, resume=steps > 1, **given)
    names = timeless(whole[0])
    differing = sum(a.get(name) != b.get(name) for a, b in zip(whole, parted, strict=True) for name in names)
    one, two = (latest_checkpoint(folder / run / "checkpoints") for run in ("whole", "parted"))
    files = [f"{game}/model.safetensors" for game in NAMES]
    return differing + sum((one / file).read_bytes() != (two / file).read_bytes() for file in files)


def climbed_level(folder: Path) -> float:
    given = {"env": "plan-path", "settings": {**SHORT, "size": 6}, "team": "seed", "train.tasks_per_step": TASKS}
    return train(folder / "run", CLIMBED, curriculum=LEVELS, **given)[-1]["curriculum/level"]


KINDS = {"step": (step_ratio, "ratio"), "resume": (resume_mismatches, "differences"), "climb": (climbed_level, "level")}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=KINDS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    (function, unit), values = KINDS[asked.what], []
    for _ in range(asked.rounds):
        with tempfile.TemporaryDirectory() as folder:
            values.append(float(function(Path(folder))))
        print(function.__name__, values[-1], flush=True)
    if asked.write:
        command = f"python -m lab.mixtures {asked.what} --rounds {asked.rounds} --write"
        record("mixture", f"mixture.{function.__name__}", values, unit, command, len(values))
