"""SQL is learned: `python -m lab.sql_trainings MODEL [--write]`, where MODEL is from `cadre_tasks.models.make_sql`.

A team (AT-GRPO) and a single agent (GRPO, without a draft) sample equally many tokens, three seeds, paid by the
outcome, and solve tasks of the test split before and after. Appends `worlds.sql.base.success`,
`worlds.sql.team.success` and those of the single agent to results/worlds.jsonl.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cadre_tasks.models.make_sql import SETTINGS
from cadre_tasks.worlds.sql import Sql, SqlOneTurn
from lab.taught import record_success, train_success

TOKENS = 200_000
TASKS = 200
SHARED: dict[str, Any] = {
    "sampling": {"max_tokens": 96},
    "learner": {"learning_rate": 2e-4},
    "train": {"steps": 1000, "tasks_per_step": 16, "max_tokens": TOKENS},
}
SIDES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "team": ("sql", Sql.roles, {"name": "at_grpo", "k": 4}),
    "alone": ("sql-one-turn", SqlOneTurn.roles, {"name": "grpo", "k": 8}),
}


def train(side: str, model: Path, seed: int, first: int) -> list[float]:
    """Return the success before and after."""
    env, roles, algorithm = SIDES[side]
    experiment = {
        "env": env,
        "settings": {**SETTINGS, "prompts": "compact", "turns": 1, "reward": "outcome"},
        "team": {"policies": {"shared": str(model)}, "roles": dict.fromkeys(roles, "shared")},
        "algorithm": algorithm,
        **SHARED,
        "evaluate": {"tasks": TASKS, "first": first},
    }
    return train_success(experiment, seed, f"sql {side}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--first", type=int, default=0, help="held-out task that an evaluation begins with")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    for side in SIDES:
        curves = [train(side, chosen.model, seed, chosen.first) for seed in chosen.seeds]
        if chosen.write:
            base = "base" if side == "team" else f"{side}.base"
            record_success("worlds", f"worlds.sql.{base}", f"worlds.sql.{side}", curves, TASKS, chosen.seeds)


if __name__ == "__main__":
    main()
