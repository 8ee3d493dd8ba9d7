"""A joint reward model from its pairs to a team that is trained on it."""

import math
from pathlib import Path

import pytest
from rich.console import Console

from cadre.envs.wrappers import joint_prompt, joint_text
from cadre.types import Message, Observation
from cadre_tasks.reward_models.pairs import PreferencePair
from cadre_tasks.reward_models.training import RewardSettings, train_reward_model
from tests.cadre.engines import tiny
from tests.helpers.training import configured, play


def polite(count: int = 24) -> list[PreferencePair]:
    """Joint actions in which both say please are preferred to those in which one does not, whatever is asked."""
    pairs = []
    for number in range(count):
        requests = {role: Observation(role, (Message("user", f"q{number}"),)) for role in ("left", "right")}
        good = {"left": f"please {number * 7 % 10}", "right": f"please {number * 3 % 10}"}
        bad = {**good, ("left", "right")[number % 2]: f"never {number % 10}"}
        pairs.append(PreferencePair(joint_prompt(requests), joint_text(good), joint_text(bad)))
    return pairs


@pytest.mark.slow
def test_it_beats_chance_on_unseen_prompts_and_pays_the_team(tmp_path: Path, quiet: Console) -> None:
    model = tiny.build(tmp_path / "tiny")
    settings = RewardSettings(steps=40, learning_rate=2e-3, validate=0.25, pairs=8)
    report = train_reward_model(polite(), str(model), tmp_path / "judge", settings, lambda step, loss: None)
    assert report is not None
    assert report.before < 0.9
    assert (report.prompts, report.margin) == ((1.0,) * 6, pytest.approx(6 / (6 + 1.96**2) - 0.5))
    algorithm = {"name": "ippo", "k": 2, "reward_model": str(tmp_path / "judge")}
    train = {"steps": 2, "tasks_per_step": 2}
    chosen = configured(model, env="Pair", algorithm=algorithm, train=train, evaluate={"tasks": 0})
    team, run = play(chosen, tmp_path / "run", quiet)
    team.close()
    steps = run.metrics()
    assert len(steps) == 2
    assert all(math.isfinite(step["reward_model/score"]) for step in steps)
    # Random bytes earn hardly anything of the task, so what moves the policy is the model's score.
    assert [step["shared/updates"] for step in steps] == [1, 1]
