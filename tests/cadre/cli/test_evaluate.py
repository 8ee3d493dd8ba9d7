"""`cadre eval` and `cadre play` of a run, a recipe and a model, without any training data; and the report in words."""

import json
from pathlib import Path

import pytest
import yaml

from cadre.cli.evaluate import format_report
from tests.cadre.cli.calling import call

GAME = '''
from cadre.env import Env
from cadre.types import Message, Observation, Reward, Task

class Once(Env):
    """Say anything; `data` says which set is played, and only its test split exists."""

    roles = ("speaker",)

    def __init__(self, task, data="first"):
        super().__init__(task)
        self.said = None

    def observe(self):
        shown = Observation("speaker", (Message("user", self.task.data["from"]),))
        return {"speaker": shown} if self.said is None else {}

    async def step(self, actions):
        self.said = actions["speaker"]
        return Reward(team=0.25, parts={"said": 1.0})

    @property
    def success(self):
        return True

    @classmethod
    def tasks(cls, split, data="first"):
        if split == "train":
            raise FileNotFoundError("there are no training data here")
        return [Task(f"{data}-{i}", {"from": data, "i": i}) for i in range(7)]
'''


@pytest.fixture
def recipe(speaker: Path, tmp_path: Path) -> str:
    """A recipe whose environment has no training split."""
    (tmp_path / "once.py").write_text(GAME)
    sections = {
        "env": f"{tmp_path}/once.py:Once",
        "team": {"policies": {"shared": str(speaker)}, "roles": {"speaker": "shared"}},
        "algorithm": {"name": "grpo", "k": 2},
        "sampling": {"max_tokens": 3},
    }
    path = tmp_path / "once.yaml"
    path.write_text(yaml.safe_dump(sections))
    return str(path)


def test_a_recipe_is_played_without_its_training_data(recipe: str) -> None:
    result = call("eval", recipe, "--all")
    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        "success    100.0% of 7 held-out tasks (95% interval 64.6% to 100.0%)",
        "reward     +0.25 an episode",
        "decisions  1.0 an episode",
        "tokens     3 an episode",
        "parts      said 1.00",
        "played     greedily; token limit: speaker 3",
    ]


def test_settings_of_the_evaluation_such_as_other_data(recipe: str, tmp_path: Path) -> None:
    episodes = tmp_path / "new" / "episodes.jsonl"
    changes = ("settings.data=second", "sampling.max_tokens=2")
    result = call("eval", recipe, *changes, "--tasks", "2", "--first", "3", "--episodes", str(episodes), "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["max_tokens"] == {"speaker": 2}
    trees = [json.loads(line) for line in episodes.read_text().splitlines()]
    assert [tree["task"]["id"] for tree in trees] == ["second-3", "second-4"]


def test_a_model_plays_every_role_of_the_environment_beside_it(speaker: Path, recipe: str, tmp_path: Path) -> None:
    result = call("eval", str(speaker), f"env={tmp_path}/once.py:Once", "sampling.max_tokens=1", "--tasks", "3")
    assert result.code == 0, result.err
    assert "100.0% of 3 held-out tasks" in result.out
    assert "token limit: speaker 1" in result.out


def test_a_run_is_played_on_other_data_and_as_before_training(speaker: Path, tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(GAME.replace("raise FileNotFoundError", "return [Task('t', {'from': 'x'})] #"))
    sections = {
        "env": f"{tmp_path}/once.py:Once",
        "team": {"policies": {"shared": str(speaker)}, "roles": {"speaker": "shared"}},
        "algorithm": {"name": "grpo", "k": 2},
        "sampling": {"max_tokens": 3},
        "train": {"steps": 1, "tasks_per_step": 1},
        "evaluate": {"tasks": 0},
    }
    (tmp_path / "once.yaml").write_text(yaml.safe_dump(sections))
    run = str(tmp_path / "run")
    assert call("train", str(tmp_path / "once.yaml"), "--run", run).code == 0
    (tmp_path / "once.py").write_text(GAME)
    for options in ([], ["--base"], ["settings.data=second"], ["--untrained", "speaker"]):
        result = call("eval", run, *options, "--tasks", "2")
        assert (result.code, "of 2 held-out tasks" in result.out) == (0, True), result.err
    played = call("play", run, "settings.data=second", "--task", "6")
    assert (played.code, "second" in played.out) == (0, True), played.err
    assert "reward team +0.25 (said +1.00): solved" in played.out
    assert "step 1, task t; > marks" in call("play", run, "--step", "1").out


def test_only_a_run_has_kept_trees(recipe: str) -> None:
    result = call("play", recipe, "--step", "1")
    assert (result.code, "which is no run" in result.err) == (2, True)


def test_changes_of_a_training_are_taken_along(recipe: str) -> None:
    pasted = (
        "train.steps=9",
        "train={tasks_per_step: 2}",
        "evaluate.every=0",
        "learner.learning_rate=1",
        "loss.kl=0.1",
    )
    result = call("eval", recipe, *pasted, "sampling={max_tokens: 2}", "--tasks", "1")
    assert (result.code, "token limit: speaker 2" in result.out) == (0, True), result.err


GREEDY = {
    "tasks": 1200,
    "failures": 0,
    "success": 0.98765,
    "low": 0.97,
    "high": 0.9951,
    "reward": 1.23456,
    "decisions": 3.04,
    "tokens": 1234.5,
    "parts": {},
    "temperature": 0.0,
    "max_tokens": {"tool": 2048, "planner": 96},
}
SAMPLED = {
    "tasks": 30,
    "failures": 2,
    "samples": 16,
    "temperature": 0.6,
    "max_tokens": {"solver": 512},
    "average": (0.25, 0.2, 0.3),
    "passing": {1: (0.25, 0.2, 0.3), 16: (0.5, 0.4, 0.6)},
    "reward": -0.1,
    "tokens": 80.2,
    "parts": {f"part-{letter}": 0.5 for letter in "abcdefgh"},
}


def test_a_greedy_report() -> None:
    assert format_report(GREEDY) == [
        "success    98.8% of 1,200 held-out tasks (95% interval 97.0% to 99.5%)",
        "reward     +1.23 an episode",
        "decisions  3.0 an episode",
        "tokens     1,234 an episode",
        "played     greedily; token limit: tool 2,048, planner 96",
    ]


def test_a_sampled_report() -> None:
    assert format_report(SAMPLED) == [
        "success    25.0% of 16 episodes a task, 30 held-out tasks (95% interval 20.0% to",
        "           30.0%)",
        "pass@1     25.0% (95% interval 20.0% to 30.0%)",
        "pass@16    50.0% (95% interval 40.0% to 60.0%)",
        "reward     -0.10 an episode",
        "tokens     80 an episode",
        "parts      part-a 0.50, part-b 0.50, part-c 0.50, part-d 0.50, part-e 0.50,",
        "           part-f 0.50, part-g 0.50, part-h 0.50",
        "played     at temperature 0.6; token limit: solver 512",
        "failed     0.4% of the episodes; they count as not solved",
    ]


def test_tokens_that_no_endpoint_returns_are_not_zero() -> None:
    """Mistake: a remote team is said to have played without a token."""
    assert [line for line in format_report(GREEDY | {"tokens": 0.0}) if "token" in line] == [
        "played     greedily; token limit: tool 2,048, planner 96"
    ]
