"""Small trainings of the tests' games on a tiny model."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cadre.config.experiment import Config, parse
from cadre.config.resolve import resolve
from cadre.envs.spec import env_class
from cadre.runs import jsonl
from cadre.runs.folder import Run
from cadre.training.checkpoint import latest_checkpoint
from cadre.training.loop import run_training

HERE = Path(__file__).parents[1]


def configured(model: Path, env: str = "Digit", policies: tuple[str, ...] = ("shared",), **sections) -> Config:
    roles = env_class(f"{HERE}/helpers/games.py:{env}").roles
    return parse(
        {
            "env": f"{HERE}/helpers/games.py:{env}",
            "team": {
                "policies": {policy: str(model) for policy in policies},
                "roles": {role: policies[i % len(policies)] for i, role in enumerate(roles)},
            },
            "algorithm": {"name": "at_grpo", "k": 8},
            "sampling": {"max_tokens": 2},
            "learner": {"learning_rate": 3e-3},
            "train": {"steps": 4, "tasks_per_step": 4},
            "evaluate": {"tasks": 8},
        }
        | sections
    )


def play(chosen: Config, folder: Path, console: Console, resume: bool = False):
    """Train in `folder`; returns the team and the run."""
    experiment = resolve(chosen)
    run = Run(folder, chosen) if resume else Run.create(folder, chosen)
    team, _ = run_training(experiment, run, console, resume)
    return team, run


def weights(folder: Path, policy: str) -> bytes:
    return (latest_checkpoint(folder / "checkpoints") / policy / "model.safetensors").read_bytes()


def lines(folder: Path, name: str) -> list[dict]:
    """Return a run's logged lines without times."""
    records = jsonl.records(folder / name)
    timed = ("time/", "_per_s")
    return [{key: value for key, value in line.items() if not any(t in key for t in timed)} for line in records]
