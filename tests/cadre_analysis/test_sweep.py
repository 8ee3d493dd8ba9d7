"""`cadre sweep`: which runs it makes, that it goes on, and what it refuses before the first one is trained."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cadre.errors import ConfigError
from cadre.runs.folder import SWEEP_RECORD as RECORD
from cadre.runs.folder import SweepRecord, expand_sweeps
from cadre_analysis import sweep
from cadre_analysis.sweep import make_runs
from tests.cadre.cli.calling import call

RATES = "learner.learning_rate=[1.0e-5, 3.0e-5]"


def test_all_combinations_the_last_one_fastest():
    runs = make_runs([RATES, "algorithm.k=[2, 4]"])
    assert [run.overrides for run in runs] == [
        ("learner.learning_rate=1e-05", "algorithm.k=2"),
        ("learner.learning_rate=1e-05", "algorithm.k=4"),
        ("learner.learning_rate=3e-05", "algorithm.k=2"),
        ("learner.learning_rate=3e-05", "algorithm.k=4"),
    ]
    assert runs[0].name == "learning_rate-1e-05-k-2"
    assert [run.overrides for run in make_runs(["algorithm=[at_grpo, {name: grpo, k: 4}]"])] == [
        ('algorithm="at_grpo"',),
        ('algorithm={"name": "grpo", "k": 4}',),
    ]


def test_names_that_would_be_one_folder_are_numbered():
    assert [run.name for run in make_runs(["env=[a/b, a_b]"])] == ["000-env-_a_b", "001-env-_a_b"]


@pytest.mark.parametrize("over", [["algorithm.k"], ["algorithm.k=2"], ["algorithm.k=[]"], ["=[1]"], ["a=[1, }"]])
def test_what_is_no_list_of_values_is_refused(over):
    with pytest.raises(ConfigError, match="expected a setting and a list of its values"):
        make_runs(over)


def test_a_setting_twice_is_refused():
    with pytest.raises(ConfigError, match=r"got algorithm\.k twice"):
        make_runs(["algorithm.k=[2]", "algorithm.k=[4]"])


def test_a_sweep_goes_on_where_it_stopped(tmp_path, monkeypatch):
    trained, codes = [], [0, 130, 0]

    def train(recipe, changes, folder):
        trained.append((recipe, tuple(changes), folder.name))
        folder.mkdir(exist_ok=True)
        return codes.pop(0)

    monkeypatch.setattr(sweep, "_train", train)
    arguments = ["sweep", "plan-path", "train.steps=1", "--over", RATES, "--run", str(tmp_path / "s")]
    stopped = call(*arguments)
    assert (stopped.code, "the same command goes on" in stopped.out) == (130, True)
    ended = call(*arguments)
    assert (ended.code, ended.out.splitlines()[0]) == (0, "2 of 2: learner.learning_rate=3e-05")
    assert [changes for _, changes, _ in trained] == [
        ("train.steps=1", "learner.learning_rate=1e-05"),
        ("train.steps=1", "learner.learning_rate=3e-05"),
        ("train.steps=1", "learner.learning_rate=3e-05"),
    ]
    other_result = call("sweep", "plan-path", "train.steps=2", *arguments[3:])
    assert other_result.code == 2
    assert "Name another folder" in other_result.err
    assert len(trained) == 3


def test_a_wrong_value_is_refused_before_the_first_training(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_train", lambda *arguments: pytest.fail("a training began"))
    result = call("sweep", "plan-path", "--over", "algorithm.k=[2, x]", "--run", str(tmp_path / "s"))
    assert result.code == 2
    assert "algorithm.k" in result.err
    assert not (tmp_path / "s").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_train", lambda *arguments: pytest.fail("a training began"))
    (tmp_path / "notes").write_text("mine")
    result = call("sweep", "plan-path", "--over", RATES, "--run", str(tmp_path))
    assert result.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (["algorithm.k=[2, 2]"], "are the same settings"),
        (["learner.learning_rate=[1e-5, 0.00001]"], "are the same settings"),
        (["train.steps=[1, 2]"], "got train.steps, which is set beside it too"),
    ],
)
def test_one_training_twice_is_refused(tmp_path, over, words):
    """Mistake: the comparison fails for equal seeds once all of them are trained, or a setting is silently ignored."""
    pairs = [part for option in over for part in ("--over", option)]
    result = call("sweep", "plan-path", "train.steps=1", *pairs, "--run", str(tmp_path / "s"))
    assert result.code == 2
    assert words in " ".join(result.err.split())
    assert not (tmp_path / "s").exists()


def test_a_finished_training_is_not_taken_for_another_of_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_train", lambda recipe, changes, folder: folder.mkdir() or 0)
    common = ["sweep", "plan-path", "--run", str(tmp_path / "s"), "--over"]
    assert call(*common, "learner.learning_rate=[1.0e-5]").code == 0
    assert call(*common, RATES).code == 0
    other_result = call(*common, "critic.learner.learning_rate=[1.0e-5]", "algorithm=mappo")
    assert other_result.code == 2
    again = call(*common, RATES)
    assert (again.code, "of 2:" in again.out) == (0, False)
    same_name = call("sweep", "plan-path", "--run", str(tmp_path / "s"), "--over", "loss.learning_rate=[1.0e-5]")
    assert same_name.code == 2


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "sweep.json").write_text("{")
    result = call("sweep", "plan-path", "--over", RATES, "--run", str(tmp_path))
    assert (result.code, "sweep.json" in result.err) == (2, True)


def test_the_folder_of_a_sweep_stands_for_its_runs_that_have_begun(tmp_path):
    """A record's names that lead out of the folder, and trainings that have not begun, are left out."""
    names = ["b", "a", "later", "../outside"]
    (tmp_path / "s").mkdir()
    record = SweepRecord(recipe="plan-path", overrides=[], runs={name: [] for name in names})
    (tmp_path / "s" / RECORD).write_text(record.model_dump_json())
    for folder in (tmp_path / "s" / "a", tmp_path / "s" / "b", tmp_path / "outside", tmp_path / "plain"):
        folder.mkdir()
        (folder / "config.yaml").write_text("")
    begun = [tmp_path / "s" / "b", tmp_path / "s" / "a"]
    assert expand_sweeps([tmp_path / "s", tmp_path / "plain"]) == [*begun, tmp_path / "plain"]


@pytest.mark.parametrize("command", ["compare", "view", "audit"])
def test_commands_take_the_folder_of_a_sweep(tmp_path, command):
    """Its only run is opened, which is damaged: its configuration is empty."""
    (tmp_path / RECORD).write_text(SweepRecord(recipe="plan-path", overrides=[], runs={"one": []}).model_dump_json())
    assert "a sweep without any run" in call(command, str(tmp_path)).err
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.yaml").write_text("")
    failed = call(command, str(tmp_path))
    assert (failed.code, str(tmp_path / "one") in failed.err) == (2, True)


def test_a_signal_to_the_sweep_ends_its_training(tmp_path, monkeypatch):
    """Mistake: SIGTERM to the sweep alone is ignored, and it goes on to the next training."""
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(130)); print(flush=True); time.sleep(60)"

    class Interrupted(subprocess.Popen):
        def __init__(self, command):
            super().__init__([sys.executable, "-c", script], stdout=subprocess.PIPE)
            self.stdout.readline()
            self.signals = [KeyboardInterrupt]

        def wait(self, timeout=None):
            if self.signals:
                raise self.signals.pop()
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    assert sweep._train("plan-path", [], tmp_path / "run") == 130
