"""Environments of other packages, and a role with a published MCP server, trained ten steps from the recipe alone.

    python -m lab.shared_environments verifiers openenv mcp --model DIR [--write]

Each part runs `cadre train` in a folder that holds the recipe and nothing else, with packages that this interpreter can
import: a taskset of verifiers and a server of OpenEnv (tests/cadre_tasks/integrations/packages, in the form of an
installed package), and `mcp-server-calculator` on the PATH (examples/mcp_sums.py). A part counts only if ten steps were
trained, with an update in one of them, and if no episode failed. Recorded are the lines of code beside the recipe.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from bench.common import ROOT, record

PACKAGES = ROOT / "tests" / "cadre" / "integrations" / "packages"
STEPS = 10
RECIPES = {
    "verifiers": {"env": "verifiers", "settings": {"id": "cadre-sums-v1"}, "team": {"roles": {"agent": "p"}}},
    "openenv": {
        "env": "openenv",
        "settings": {"app": "cadre_guess_env:app", "observation": "text", "sessions": 2, "turns": 3},
        "team": {"roles": {"agent": "p"}},
    },
    "mcp": {"env": str(ROOT / "examples" / "mcp_sums.py:Sums"), "team": {"roles": {"clerk": "p"}}},
}
CALLS = "parts/tools/calls"


def recipe(name: str, model: str) -> dict[str, object]:
    """Return the whole recipe of a part."""
    policy = {"model": model, "lora": {"rank": 8, "alpha": 16}}
    raw = RECIPES[name]
    return {
        **raw,
        "team": {"policies": {"p": policy}, **raw["team"]},  # type: ignore[dict-item]
        "algorithm": {"name": "grpo", "k": 4},
        "sampling": {"max_tokens": 40 if name == "mcp" else 8},
        "learner": {"learning_rate": 2.0e-4},
        "train": {"steps": STEPS, "tasks_per_step": 1},
        "evaluate": {"tasks": 1},
    }


def lines_beside(folder: Path) -> int:
    """Return the number of lines of code in a folder, its recipe and its run left out."""
    files = (path for path in folder.rglob("*.py") if "run" not in path.relative_to(folder).parts[:1])
    return sum(bool(line.strip()) for path in files for line in path.read_text().splitlines())


def train(name: str, model: str) -> int:
    """Train a part, print what it came to, and return the lines beside its recipe. Raises SystemExit if it failed."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(name, model)))
        paths = os.pathsep.join([str(ROOT), str(PACKAGES), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "cadre", "train", "recipe.yaml", "--run", "run"]
        done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: the training ended with {done.returncode}")
        steps = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        updates = sum(any(value for key, value in step.items() if key.endswith("/updates")) for step in steps)
        failures = sum(step["rollout/failures"] for step in steps)
        calls = [step[CALLS] for step in steps if CALLS in step]
        print(f"{name}: {len(steps)} steps, {updates} with an update, {failures:g} failures, calls of tools {calls}")
        if len(steps) < STEPS or not updates or failures:
            raise SystemExit(f"{name}: expected {STEPS} steps, an update and no failure")
        return lines_beside(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=RECIPES)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="a folder or a hub name")
    parser.add_argument("--write", action="store_true", help="append to results/programs.jsonl")
    options = parser.parse_args()
    for name in options.parts:
        lines = train(name, options.model)
        print(f"adapters.{name}.lines: {lines} beside the recipe")
        if options.write and name != "mcp":
            command = f"python -m lab.shared_environments {name} --model SmolLM2-135M-Instruct --write"
            record("programs", f"adapters.{name}.lines", [lines], "lines", command, n=STEPS, seeds=[0])


if __name__ == "__main__":
    main()
