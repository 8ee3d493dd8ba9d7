"""Cadre from Python, as somebody would use it who has an environment and no YAML."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import cadre
from cadre import Env, GeneratedTasks, Message, Observation, Reward, Task
from cadre.config.experiment import Config
from cadre.errors import CadreError, ConfigError, RunError
from cadre.evaluation.evaluate import Repeats
from cadre.evaluation.loaded_team import LoadedTeam


class Echo(Env):
    """Say the digit that is shown."""

    roles = ("speaker",)

    def __init__(self, task: Task, shown: int = 1) -> None:
        super().__init__(task)
        self.shown, self.said = shown, ""

    def observe(self) -> dict[str, Observation]:
        text = str(self.task.data["digit"]) * self.shown
        return {} if self.said else {"speaker": Observation("speaker", (Message("user", text),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.said = actions["speaker"] or "nothing"
        return Reward(team=float(self.success), parts={"right": float(self.success)})

    @property
    def success(self) -> bool:
        return self.said == str(self.task.data["digit"])

    @classmethod
    def tasks(cls, split: str) -> Sequence[Task]:
        return GeneratedTasks(8, lambda index: {"digit": index % 4}, split)


SMALL = {"sampling": {"max_tokens": 1}, "learner": {"learning_rate": 1e-2}}


@pytest.fixture
def trained(speaker: Path, tmp_path: Path) -> LoadedTeam:
    sections = {"algorithm": {"name": "at_grpo", "k": 4}, "train": {"tasks_per_step": 4}, "evaluate": {"tasks": 4}}
    return cadre.train(env=Echo, team=str(speaker), steps=3, run=tmp_path / "run", quiet=True, **SMALL, **sections)


def test_a_class_is_trained_and_what_it_left_behind_is_at_hand(trained: LoadedTeam, tmp_path: Path) -> None:
    assert trained.folder == tmp_path / "run"
    assert [line["step"] for line in trained.metrics()] == [0, 1, 2]
    assert [line["step"] for line in trained.evaluations()] == [0, 3]
    assert sorted({tree.step for tree in trained.trees()}) == [0, 1, 2]
    report = trained.evaluate(tasks=8)
    assert report.tasks == 8
    assert report.parts == {"right": report.success}
    assert trained.evaluate_sampled(Repeats(2, temperature=1.0), tasks=4).samples == 2
    tree = trained.play(5)
    assert tree.task.data == {"digit": 1}
    (branch,) = tree.root.branches
    assert branch.success == (tree.root.samples["speaker"][0].text == "1")


def test_a_run_is_loaded_with_the_weights_that_it_learned(trained: LoadedTeam) -> None:
    loaded = cadre.load(trained.folder)
    assert not loaded.team.learners
    assert loaded.experiment.env_spec.env_class.__name__ == "Echo"
    assert loaded.evaluate(8) == trained.evaluate(8)
    assert loaded.metrics() == trained.metrics()
    arguments = cadre.load(trained.folder, env=Echo, settings={"shown": 2})
    assert arguments.experiment.env_spec.env_class is Echo
    assert arguments.play(0).root.observations["speaker"].messages[0].content == "00"
    for team in (loaded, arguments):
        team.close()


def test_a_run_goes_on(trained: LoadedTeam) -> None:
    more = cadre.train(run=trained.folder, env=Echo, resume=True, steps=4, evaluate={"every": 4}, quiet=True)
    assert [line["step"] for line in more.metrics()] == [0, 1, 2, 3]
    with pytest.raises(RunError, match=r"1 settings differ .*learner\.epochs: 1 -> 2"):
        cadre.train(run=trained.folder, resume=True, learner={"epochs": 2})
    with pytest.raises(RunError, match="resume: got a recipe; expected the folder of a run"):
        cadre.train("plan-path", run=trained.folder, resume=True)
    with pytest.raises(RunError, match="exists and is not empty"):
        cadre.train(env=Echo, team="seed", algorithm="grpo", run=trained.folder)


def test_a_dictionary_and_a_yaml_say_the_same_as_sections(speaker: Path, tmp_path: Path) -> None:
    raw = {"env": "tests.helpers.games:Digit", "team": str(speaker), "algorithm": "at_grpo", **SMALL}
    (tmp_path / "digit.yaml").write_text(yaml.safe_dump(raw))
    reports = [
        cadre.evaluate(raw, tasks=4),
        cadre.evaluate(tmp_path / "digit.yaml", tasks=4),
        cadre.evaluate(tasks=4, **raw),
        cadre.evaluate(str(speaker), tasks=4, env="tests.helpers.games:Digit", sampling={"max_tokens": 1}),
    ]
    assert len({json.dumps(report.as_dict()) for report in reports}) == 1
    assert raw["sampling"] == {"max_tokens": 1}


def test_sections_change_a_recipe(speaker: Path, tmp_path: Path) -> None:
    changed = cadre.load(
        "plan-path",
        team={"policies": {"*": {"model": str(speaker)}}},
        algorithm={"k": 3},
        settings={"turns": 1},
        sampling={"max_tokens": 2},
    )
    config = changed.experiment.config
    assert (config.algorithm.name, config.algorithm.k) == ("at_grpo", 3)
    assert config.settings == {"prompts": "compact", "turns": 1}
    assert config.train.steps == 30
    other_load = cadre.load("plan-path", algorithm={"name": "grpo"}, team=str(speaker)).experiment.config
    assert (other_load.algorithm.name, other_load.algorithm.k, other_load.team.roles["tool"]) == ("grpo", 4, "shared")


def test_every_section_of_the_settings_is_an_argument(speaker: Path) -> None:
    """The defaults of all sections, given one by one, change nothing; two that no list of the module names do."""
    plain = {"env": "plan-path", "team": str(speaker), "algorithm": "grpo"}
    config = cadre.load(**plain).experiment.config
    written = config.model_dump(mode="json")
    assert written.keys() == Config.model_fields.keys()
    for name in written.keys() - plain.keys():
        if written[name] is not None:
            assert cadre.load(**plain, **{name: written[name]}).experiment.config == config
    changed = cadre.load(**plain, teacher={"weights": "initial", "coefficient": 2.0}, kl={"reference": "start"})
    assert changed.experiment.config.teacher.coefficient == 2.0
    assert changed.experiment.config.kl.reference == "start"
    for target in (str(speaker), "plan-path"):
        with pytest.raises(ConfigError, match=r"lerner: unknown option.*Did you mean learner\?"):
            cadre.evaluate(target, env="plan-path", lerner={})


def test_errors_are_a_paragraph_before_a_model_loads() -> None:
    for wrong, expected in (
        ({"lerner": {}}, "lerner: unknown option.*Did you mean learner?"),
        ({"team": "seed", "algorithm": "grpo"}, "env: missing"),
        ({"env": Echo, "team": "seed"}, "algorithm"),
        ({"env": dict, "team": "seed", "algorithm": "grpo"}, "expected a subclass of cadre.Env"),
        ({"env": Echo, "team": "seed", "algorithm": "grpo", "settings": {"show": 1}}, "Did you mean shown?"),
        ({"env": Echo, "team": "seed", "algorithm": "grpo", "settings": {"shown": object()}}, r"settings\.shown"),
    ):
        with pytest.raises(ConfigError, match=expected):
            cadre.train(**wrong)
    with pytest.raises(ConfigError, match=r"is taken for a model.*expected the environment"):
        cadre.evaluate("Qwen/Qwen3-1.7B")
    with pytest.raises(CadreError, match="neither a bundled recipe nor a file"):
        cadre.load("runs/nothing/here")


def test_a_team_that_was_not_trained_left_nothing_behind(speaker: Path) -> None:
    loaded = cadre.load(str(speaker), env=Echo)
    with pytest.raises(RunError, match="was not trained"):
        loaded.metrics()
    with pytest.raises(ConfigError, match="the test split has 8"):
        loaded.evaluate(1, first=8)


def test_beside_a_running_loop_it_works_in_a_thread(speaker: Path, tmp_path: Path) -> None:
    async def notebook() -> tuple[LoadedTeam, float]:
        trained = cadre.train(
            env=Echo, team=str(speaker), algorithm="grpo", steps=1, run=tmp_path / "run", quiet=True, **SMALL
        )
        return trained, trained.evaluate(4).success

    trained, success = asyncio.run(notebook())
    assert len(trained.metrics()) == 1
    assert trained.evaluate(4).success == success


def test_a_semaphore_of_an_environment_works_through_trainings_and_evaluations(speaker: Path, tmp_path: Path) -> None:
    class JudgedEnv(Echo):
        gate = asyncio.Semaphore(1)

        async def step(self, actions: dict[str, str]) -> Reward:
            async with JudgedEnv.gate:
                await asyncio.sleep(0.001)
            return await super().step(actions)

    for name in ("first", "second"):
        trained = cadre.train(
            env=JudgedEnv, team=str(speaker), algorithm="grpo", steps=1, run=tmp_path / name, quiet=True, **SMALL
        )
        assert trained.metrics()[0]["rollout/failed"] == 0.0
        assert trained.evaluate(4).failures == 0


def test_evaluation_never_asks_for_training_tasks(speaker: Path) -> None:
    class Held(Echo):
        @classmethod
        def tasks(cls, split: str) -> Sequence[Task]:
            assert split == "test"
            return super().tasks(split)

    assert cadre.evaluate(env=Held, team=str(speaker), algorithm={"name": "magrpo", "k": [2, 3]}, tasks=4).tasks == 4


SCRIPT = """
import os, sys
from cadre import Env, GeneratedTasks, Message, Observation, Reward, Task
import cadre
assert not {"torch", "pydantic", "rich"} & set(sys.modules)
assert cadre.__version__ and "train" in dir(cadre)
try:
    cadre.tain
except AttributeError as error:
    print(error)
try:
    cadre.evaluate("plan-path", env="nothing")
except cadre.errors.ConfigError as error:
    print("torch" in sys.modules, os.environ["GOMP_SPINCOUNT"])
"""


def test_importing_is_lazy_and_threads_are_settled_before_torch() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["module 'cadre' has no attribute 'tain'", "False 5000"]


def test_a_training_says_where_it_is(speaker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cadre.train(env=Echo, team=str(speaker), algorithm="grpo", steps=1, run=tmp_path / "run", **SMALL).close()
    assert capsys.readouterr().out.splitlines()[0] == f"run {tmp_path / 'run'}: 8 tasks to train on, 8 held out"


def test_objects_are_recorded_and_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cadre.settings import user_code

    def train(**sections: Any) -> Any:
        return cadre.train(run=tmp_path / "run", quiet=True, **sections)

    rows = [{"prompt": f"ship {n}\nmoves: Left Right"} for n in range(20)]
    ended: list[int] = []

    def short(completion: str) -> float:
        return -float(len(completion))

    def note(step: int, metrics: Any) -> bool:
        ended.append(step)
        return False

    options = {"train": {"on_step": note, "tasks_per_step": 2, "steps": 1}, "evaluate": {"tasks": 2}}
    train(model="games", tasks=rows, reward=short, k=2, **options).close()
    recorded = json.loads((tmp_path / "run" / "objects.json").read_text())
    assert recorded.keys() == {"notebook:short", "notebook:note", "notebook:tasks"}
    assert "return -float(len(completion))" in recorded["notebook:short"]
    assert ended == [1]

    monkeypatch.setattr(user_code, "_objects", {})
    with pytest.raises(ConfigError, match="Pass it: reward=short"):
        train(resume=True, steps=2)
    (tmp_path / "run" / "objects.json").write_text("[1]")
    with pytest.raises(RunError, match=r"objects\.json: cannot be read"):
        train(resume=True, tasks=rows, reward=short, train={"on_step": note, "steps": 2})
    (tmp_path / "run" / "objects.json").write_text(json.dumps(recorded))
    passed = {"tasks": rows, "reward": short, "train": {"on_step": note, "steps": 2}}
    train(resume=True, **passed).close()
    assert ended == [1, 2]
