"""Ten steps of a real coder on a processor: Qwen2.5-Coder-0.5B-Instruct, two adapters, Plan-Path and pairs on MBPP.

    python bench/coder.py --coder DIR [--runs DIR]

Trains the recipes `pairs-mbpp-qwen2.5-coder-0.5b` and `plan-path-qwen2.5-coder-0.5b` in float32 with two siblings and
one task a step, which is too little to learn by: it shows that the whole path runs with real prompts and real programs,
and what it costs. Appends `coder.*` to results/tasks.jsonl and writes every step to results/coder.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from common import RESULTS, ROOT, record
from trainings import Run, console

COMMAND = "python bench/coder.py --coder DIR"
STEPS = 10
ROLES = {"pairs-mbpp": ("aux", "main"), "plan-path": ("tool", "planner")}
# A decision after another takes minutes, so one turn.
SMALL = ("algorithm.k=2", "settings.turns=1", f"train.steps={STEPS}", "train.tasks_per_step=1", "evaluate.every=0")


def overrides(roles: tuple[str, ...], coder: Path) -> tuple[str, ...]:
    """What turns the recipe of a graphics card into one of a processor."""
    policies = [f"team.policies.{role}.{change}" for role in roles for change in (f"model={coder}", "dtype=float32")]
    return (*SMALL, *policies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coder", type=Path, required=True, help="the folder of Qwen2.5-Coder-0.5B-Instruct")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "coder")
    chosen = parser.parse_args()
    found = {}
    for name, roles in ROLES.items():
        changes = overrides(roles, chosen.coder.absolute())
        run = Run(chosen.runs.absolute() / name, f"{name}-qwen2.5-coder-0.5b", 0, changes, tasks=0)
        if not run.complete:
            run.train()
        found[name] = run.steps()

        def keep(what: str, value: float, unit: str, name: str = name, run: Run = run) -> None:
            record("tasks", f"coder.{name}.{what}", [value], unit, COMMAND, STEPS, [0], run.done()["commit"])
            console.print(f"coder.{name}.{what}: {value:.4g} {unit}", highlight=False)

        keep("minutes", run.minutes(), "min")
        keep("tokens", run.total("rollout/tokens"), "tokens")
        keep("env_steps", run.total("rollout/env_steps"), "steps")
        for role in roles:
            keep(f"{role}.reward", run.total(f"{role}/reward") / STEPS, "reward")
    (RESULTS / "coder.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
