"""A team that is trained on the scores of a joint reward model."""

import math
from pathlib import Path

import pytest
from rich.console import Console

from tests.cadre.engines import tiny
from tests.helpers.training import configured, play


@pytest.mark.slow
def test_it_pays_the_team(tmp_path: Path, quiet: Console) -> None:
    model = tiny.build(tmp_path / "tiny")
    algorithm = {"name": "ippo", "k": 2, "reward_model": str(tiny.judge(model, tmp_path / "judge"))}
    train = {"steps": 2, "tasks_per_step": 2}
    chosen = configured(model, env="Pair", algorithm=algorithm, train=train, evaluate={"tasks": 0})
    team, run = play(chosen, tmp_path / "run", quiet)
    team.close()
    steps = run.metrics()
    assert len(steps) == 2
    assert all(math.isfinite(step["reward_model/score"]) for step in steps)
    # Random bytes earn hardly anything of the task, so what moves the policy is the model's score.
    assert [step["shared/updates"] for step in steps] == [1, 1]
