"""Several environments in one run: their names, the deal of their tasks, what is refused, and an exact resume."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cadre.config.checks import find_warnings
from cadre.config.experiment import Config, load, parse
from cadre.config.resolve import resolve
from cadre.env import Env, GeneratedTasks
from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.errors import CadreError, ConfigError
from cadre.runs.folder import Run
from cadre.runs.resume import task_digests
from cadre.training.loop import pick_tasks, run_training
from cadre.types import Message, Observation, Reward, Sample, Task
from tests.cadre.cli.calling import call
from tests.helpers.training import lines, weights

GAMES = [
    {"name": "plan-path", "weight": 2, "settings": {"prompts": "compact", "turns": 1}},
    {"name": "sokoban", "settings": {"prompts": "compact", "turns": 1, "max_moves": 20}},
    {"name": "sudoku", "settings": {"prompts": "compact", "turns": 1}},
]
ROLES = tuple(f"{game['name']}-{role}" for game in GAMES for role in ("tool", "planner"))


def mixed(**sections: Any) -> dict[str, Any]:
    return {
        "env": GAMES,
        "team": "seed",
        "algorithm": {"name": "at_grpo", "k": 4},
        "sampling": {"max_tokens": 48},
        "learner": {"learning_rate": 1e-3},
        "train": {"steps": 2, "tasks_per_step": 4},
        "evaluate": {"tasks": 3},
        **sections,
    }


def spec_of(*envs: Any, **settings: Any) -> EnvSpec:
    return EnvSpec("mixture", {"envs": list(envs), **settings})


# ---- Names


def test_the_mixture_of_three_games_keeps_the_contract() -> None:
    spec = spec_of(*GAMES)
    assert spec.roles == ROLES
    assert len(asyncio.run(check_env(spec))) == 6


FILE = """
from cadre import Env, Message, Observation, Reward, Task

class Duel(Env):
    '''Two act at once; the better-ranked of the joint actions earns a point.'''
    roles = ("left", "right")
    rewards_absent = True

    def __init__(self, task, points: float = 1.0):
        super().__init__(task)
        self.points, self.said = points, None

    def observe(self):
        shown = Message("user", f"Task {self.task.id}: {self.task.data['n']}")
        return {} if self.said else {role: Observation(role, (shown,)) for role in self.roles}

    async def step(self, actions):
        self.said = dict(actions)
        return Reward(0.5, {"left": self.points}, {"style": 2.0})

    async def compare(self, forks, actions, rewards):
        assert all(set(reward.local) == {"left"} and set(reward.parts) >= {"style"} for reward in rewards)
        assert all(sample.role == role for action in actions for role, sample in action.items())
        return [Reward(float(len(fork.said["left"])), {"right": 3.0}, {"rank": 1.0}) for fork in forks]

    def default_action(self, role):
        return f"nothing from {role}"

    def privileged(self):
        return "the solution"

    @property
    def success(self):
        return self.said is not None and self.said["left"] == "a"

    @classmethod
    def tasks(cls, split, points: float = 1.0):
        return [Task(f"{split}-{n}", {"n": n, "split": split}) for n in range(3)]
"""


@pytest.fixture
def duel(tmp_path: Path) -> str:
    (tmp_path / "duel.py").write_text(FILE)
    return f"{tmp_path}/duel.py:Duel"


def sample_of(role: str, text: str) -> Sample:
    return Sample(role, "shared", text, (1,), (2,), (0.0,), "stop", 0)


def test_an_episode_speaks_under_the_names_of_the_mixture(duel: str) -> None:
    """The environment itself sees its own names alone: of the task, of roles and of parts."""
    spec = spec_of({"name": duel, "as": "duel-1", "settings": {"points": 2.0}}, "plan-path")
    env = spec.make(spec.tasks("train")[0])
    shown = env.observe()
    assert list(shown) == ["duel-1-left", "duel-1-right"]
    assert shown["duel-1-left"] == Observation("duel-1-left", (Message("user", "Task train-0: 0"),))
    assert env.task.id == "duel-1/train-0"
    assert env.default_action("duel-1-right") == "nothing from right"
    assert (env.privileged(), env.rewards_absent, env.success) == ("the solution", True, False)
    texts = ("a", "bcd")
    actions = [{role: sample_of(role, text) for role in shown} for text in texts]
    forks = [env.fork() for _ in texts]
    rewards = [asyncio.run(fork.step_samples(action)) for fork, action in zip(forks, actions, strict=True)]
    parts = {"duel-1/style": 2.0, "duel-1/success": 1.0}
    assert rewards[0] == Reward(0.5, {"duel-1-left": 2.0}, parts)
    assert rewards[1].parts["duel-1/success"] == 0.0
    judged = asyncio.run(env.compare(forks, actions, rewards))
    assert judged[0] == Reward(1.0, {"duel-1-right": 3.0}, {"duel-1/rank": 1.0, "duel-1/success": 1.0})
    assert (judged[1].team, judged[1].parts["duel-1/success"]) == (3.0, 0.0)
    assert env.observe() == shown  # forks are apart


def test_a_list_in_a_recipe_names_files_from_its_folder(duel: str, tmp_path: Path, monkeypatch: Any) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("env: [{name: plan-path, weight: 3}, 'duel.py:Duel']\nteam: seed\nalgorithm: magrpo\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load(str(recipe))
    assert config.env == "mixture"
    assert config.settings == {"envs": [{"name": "plan-path", "weight": 3}, duel]}
    assert list(config.team.roles) == ["plan-path-tool", "plan-path-planner", "Duel-left", "Duel-right"]
    other = load(str(recipe), [f"env=[sokoban, {{name: '{duel}', as: duel}}]"])
    assert list(other.team.roles)[2:] == ["duel-left", "duel-right"]


class Plain(Env):
    roles = ("one",)

    def observe(self) -> dict[str, Observation]:
        return {}

    async def step(self, actions: dict[str, str]) -> Reward:
        return Reward()

    @property
    def success(self) -> bool:
        return True

    @classmethod
    def tasks(cls, split: str, **settings: Any) -> list[Task]:
        return [Task(f"{split}-0", {"split": split})]


def test_python_takes_classes_in_the_list() -> None:
    import cadre.api

    raw = cadre.api._merge_sections(
        None, {"env": ["plan-path", {"name": Plain}], "team": "seed", "algorithm": "magrpo"}
    )
    assert list(parse(raw).team.roles) == ["plan-path-tool", "plan-path-planner", "Plain-one"]


# ---- Tasks


def names_of(tasks: list[Task]) -> Counter[str]:
    return Counter(task.id.partition("/")[0] for task in tasks)


def test_every_block_and_step_has_each_environment_by_its_weight() -> None:
    tasks = spec_of(*GAMES).tasks("train")
    assert isinstance(tasks, GeneratedTasks)
    assert tasks.period == 4
    assert len(tasks) == 400_000  # until the 100,000 of sokoban and of sudoku are dealt; those of weight 2 come twice
    assert [task.id.partition("/")[0] for task in tasks[:4]] == ["plan-path", "sokoban", "sudoku", "plan-path"]
    for step in range(5):
        assert names_of(pick_tasks(tasks, 8, step, seed=3)) == {"plan-path": 4, "sokoban": 2, "sudoku": 2}
    steps = [[task.id for task in pick_tasks(tasks, 8, step, seed)] for step, seed in ((0, 3), (1, 3), (0, 4))]
    assert steps[0] != steps[1] != steps[2] != steps[0]
    assert pick_tasks(tasks, 8, 1, seed=3) == pick_tasks(tasks, 16, 0, seed=3)[8:]


def test_a_short_split_is_dealt_again_and_all_of_it_equally_often(duel: str) -> None:
    """Three tasks at weight 2 beside as many at weight 1: in an epoch of 3 blocks each of them twice, and once."""
    spec = spec_of({"name": duel, "weight": 2}, {"name": duel, "as": "other"})
    tasks = spec.tasks("train")
    assert len(tasks) == 9
    epoch = Counter(task.id for task in pick_tasks(tasks, 9, 0, seed=0))
    assert epoch == {f"Duel/train-{n}": 2 for n in range(3)} | {f"other/train-{n}": 1 for n in range(3)}
    assert tasks[0].data == {"n": 0, "split": "train"}


def test_held_out_tasks_come_in_turn_and_until_the_shortest_split_ends(duel: str) -> None:
    tasks = spec_of(*GAMES, duel).tasks("test")
    assert len(tasks) == 12
    assert names_of(tasks[:8]) == {"plan-path": 2, "sokoban": 2, "sudoku": 2, "Duel": 2}


def test_weights_replace_those_of_the_entries(duel: str) -> None:
    tasks = spec_of(*GAMES, weights={"plan-path": 0, "sudoku": 3}).tasks("train")
    assert names_of(tasks[:8]) == {"sokoban": 2, "sudoku": 6}
    with pytest.raises(ConfigError, match=r"got 'sudoko', which is no environment.*Did you mean sudoku"):
        spec_of(*GAMES, weights={"sudoko": 3}).tasks("train")


def test_a_resume_compares_the_tasks_that_are_read_from_files(duel: str) -> None:
    """Those of generated splits are not made for it."""
    digests = {}
    for seed in ("b", "b", "c"):
        text = Path(duel.rpartition(":")[0]).read_text().replace('"n": n,', f'"n": n, "{seed}": 1,')
        file = Path(duel).with_name(f"{seed}.py")
        file.write_text(text)
        experiment = resolve(parse(mixed(env=[*GAMES, {"name": f"{file}:Duel", "as": "duel"}])))
        digests.setdefault(seed, []).append(task_digests(experiment)["train"])
    assert digests["b"][0] == digests["b"][1] != digests["c"][0]


# ---- What is refused


@pytest.mark.parametrize(
    ("envs", "message"),
    [
        ([], "expected a list of environments"),
        (["plan-path", "plan-path"], "two environments with the name plan-path; expected a name for each.*`as: NAME`"),
        ([{"name": "plan-path", "weight": 0}], "the weight 0 of plan-path; expected 1 to 1,000"),
        ([{"name": "plan-path", "weight": 0.5}], "the weight 0.5 of plan-path; expected 1 to 1,000"),
        ([{"name": "plan-path", "weights": 2}], "got 'weights' for plan-path.*Did you mean weight"),
        ([{"name": "plan-path", "turns": 2}], r"got 'turns' for plan-path.*stands in it: settings: \{turns: ...\}"),
        ([{"weight": 2}], "expected a name, or a mapping with one"),
        ([{"name": "plan-path", "as": "a/b"}], "got the name 'a/b'; expected a letter"),
        (["plan-paht"], "env: plan-paht: env: got 'plan-paht'.*Did you mean plan-path"),
        ([{"name": "plan-path", "settings": {"sice": 4}}], "env: plan-path: settings.sice.*Did you mean size"),
        (["one-agent"], "env: one-agent: settings.of: missing"),
    ],
)
def test_entries_that_are_refused(envs: list[Any], message: str) -> None:
    with pytest.raises(CadreError, match=message):
        _ = spec_of(*envs).roles


def test_an_error_of_its_tasks_names_the_environment() -> None:
    with pytest.raises(ConfigError, match="env: rows: reward: missing"):
        spec_of("plan-path", "rows").tasks("train")


def test_an_unknown_role_in_the_mapping_is_refused() -> None:
    roles = dict.fromkeys(ROLES[1:], "shared") | {"plan-path-tol": "shared"}
    team = {"policies": {"shared": "seed"}, "roles": roles}
    with pytest.raises(ConfigError, match=r"team.roles.plan-path-tol: .* no such role.*Rename it to plan-path-tool"):
        resolve(parse(mixed(team=team)))


BY_GAME = {
    "policies": {game["name"]: "seed" for game in GAMES},
    "roles": {role: role.rpartition("-")[0] for role in ROLES},
}
GDPO = {"name": "grpo", "k": 2, "parts": {"plan-path/success": 1.0, "sokoban/success": 1.0}}
GROUP = {"name": "custom", "k": 2, "shape": "greedy", "returns": "step", "group": "FILE", "baseline": "mean"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"credit": {"drop_groups": "lowest_mean", "drop_fraction": 0.5}}, "credit.drop_groups ranks the groups"),
        ({"algorithm": GDPO}, "grpo normalises over a batch"),
        ({"algorithm": {**GROUP, "scale": "none"}}, "custom has groups of more than one task"),
    ],
)
def test_what_compares_over_a_batch_needs_a_policy_for_each_environment(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("def everything(sample): return ()\n")
    change = json.loads(json.dumps(change).replace("FILE", f"{tmp_path}/mine.py:everything"))
    with pytest.raises(ConfigError, match=f"{message}.*plays in several of plan-path, sokoban, sudoku"):
        resolve(parse(mixed(**change)))
    resolve(parse(mixed(**change, team=BY_GAME)))


def test_one_role_for_all_environments_is_refused() -> None:
    with pytest.raises(ConfigError, match="magrpo_central has one role for all"):
        resolve(parse(mixed(algorithm={"name": "magrpo_central", "k": 2})))


# ---- A training of three games


def trained(config: Config, folder: Path, console: Console, resume: bool = False) -> Run:
    run = Run(folder, config) if resume else Run.create(folder, config)
    team, _ = run_training(resolve(config), run, console, resume)
    team.close()
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    quiet = Console(quiet=True)
    return trained(parse(mixed(team=BY_GAME)), tmp_path_factory.mktemp("mixture") / "whole", quiet)


def test_a_run_of_three_games_resumes_to_the_bit(whole: Run, tmp_path: Path, quiet: Console) -> None:
    """The weights of each game's policy after two steps at once, and after one, a stop, and another."""
    one = parse(mixed(team=BY_GAME, train={"steps": 1, "tasks_per_step": 4}))
    halved = trained(one, tmp_path / "halved", quiet)
    for game in BY_GAME["policies"]:
        assert weights(halved.folder, game) != weights(whole.folder, game)
    trained(parse(mixed(team=BY_GAME)), halved.folder, quiet, resume=True)
    for game in BY_GAME["policies"]:
        assert weights(halved.folder, game) == weights(whole.folder, game), game
    assert lines(halved.folder, "metrics.jsonl") == lines(whole.folder, "metrics.jsonl")


def test_metrics_evaluations_and_trees_are_by_environment(whole: Run) -> None:
    (*_, last) = lines(whole.folder, "metrics.jsonl")
    for role in ROLES:
        assert last[f"{role}/tokens"] > 0
    (*_, report) = whole.evaluations()
    assert {name.partition("/")[0] for name in report["outcomes"]} == {game["name"] for game in GAMES}
    rates = [report["parts"][f"{game['name']}/success"] for game in GAMES]
    assert math.isclose(sum(rates) / 3, report["success"])
    shown = call("play", str(whole.folder), "--step", "1")
    assert shown.code == 0, shown.err
    assert "plan-path/train-" in shown.out
    assert "plan-path-planner" in shown.out


def test_a_stranger_s_mixture_of_files_is_not_played(whole: Run, duel: str, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "stranger"
    shutil.copytree(whole.folder, folder)
    assert call("eval", str(folder), "--tasks", "3").code == 0
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("- name: sudoku\n", f"- name: {duel}\n    as: sudoku\n"))
    refused = call("eval", str(folder), "--tasks", "3")
    assert refused.code != 0
    assert "duel.py" in refused.err
    assert "--trust" in refused.err


def test_the_embedded_model_is_warned_of_by_environment() -> None:
    assert find_warnings(resolve(parse(mixed()))) == []
    (warning,) = find_warnings(resolve(parse(mixed(env=[*GAMES, "melody"]))))
    assert "in melody its completions mean nothing" in warning
