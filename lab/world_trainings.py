"""Worlds that are learned: `python -m lab.world_trainings [--worlds sql pddl] [--models DIR] [--write]`.

DIR/WORLD is a folder that `python -m cadre_tasks.models.make_world DIR/WORLD --world WORLD` wrote. A team (AT-GRPO) and
a single agent (GRPO, the world's form without a draft) sample equally many tokens, three seeds, paid by the outcome,
and solve tasks of the test split before and after. Appends `worlds.NAME.base.success`, `worlds.NAME.team.success` and
those of the single agent to results/worlds.jsonl.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cadre_tasks.models.make_world import WORLDS
from lab.taught import record_success, train_success

TOKENS = 200_000
TASKS = 200
SHARED: dict[str, Any] = {
    "sampling": {"max_tokens": 96},
    "learner": {"learning_rate": 2e-4},
    "train": {"steps": 1000, "tasks_per_step": 16, "max_tokens": TOKENS},
}
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "team": ("", {"name": "at_grpo", "k": 4}),
    "alone": ("-one-turn", {"name": "grpo", "k": 8}),
}


def train(world: str, side: str, model: Path, seed: int, first: int) -> list[float]:
    """Return the success before and after."""
    form, algorithm = SIDES[side]
    roles = WORLDS[world].team.roles if side == "team" else WORLDS[world].single.roles
    experiment = {
        "env": f"{world}{form}",
        "settings": {**WORLDS[world].settings, "prompts": "compact", "turns": 1, "reward": "outcome"},
        "team": {"policies": {"shared": str(model)}, "roles": dict.fromkeys(roles, "shared")},
        "algorithm": algorithm,
        **SHARED,
        "evaluate": {"tasks": TASKS, "first": first},
    }
    return train_success(experiment, seed, f"{world} {side}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--first", type=int, default=0, help="held-out task that an evaluation begins with")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    for world in chosen.worlds:
        for side in SIDES:
            curves = [train(world, side, chosen.models / world, seed, chosen.first) for seed in chosen.seeds]
            if chosen.write:
                base = "base" if side == "team" else f"{side}.base"
                record_success(
                    "worlds", f"worlds.{world}.{base}", f"worlds.{world}.{side}", curves, TASKS, chosen.seeds
                )


if __name__ == "__main__":
    main()
