"""The checkpoint of the best evaluation, or that of a step, by name: eval, export, play and fork."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from cadre.errors import ConfigError
from cadre.runs import jsonl
from cadre.runs.resume import fork_run, open_to_resume
from cadre.training.checkpoint import (
    CheckpointChoice,
    best_evaluated_step,
    best_report,
    checkpoint_name,
    checkpoint_steps,
)
from tests.cadre.cli.calling import call
from tests.helpers.training import configured, play


@pytest.fixture(scope="module")
def run(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps with a checkpoint of each, whose evaluation after step 1 is made the best."""
    folder = tmp_path_factory.mktemp("best") / "run"
    goal = {"steps": 3, "tasks_per_step": 8, "checkpoint_every": 1}
    play(configured(speaker, train=goal, evaluate={"tasks": 4, "every": 1}), folder, Console(quiet=True))
    reports = list(jsonl.records(folder / "evaluations.jsonl"))
    (folder / "evaluations.jsonl").unlink()
    for report in reports:
        changed = {"success": 0.5 if report["step"] in (1, 2) else 0.25, "reward": 0.0}
        jsonl.append(folder / "evaluations.jsonl", report | changed)
    return folder


def evaluated(run: Path, *options: str) -> int:
    result = call("eval", str(run), "--tasks", "2", "--json", *options)
    assert result.code == 0, result.err
    return json.loads(result.out)["checkpoint"]


def test_the_best_is_the_first_of_equals_and_the_latest_is_usual(run: Path) -> None:
    assert best_evaluated_step(run) == 1
    assert evaluated(run) == 3
    assert evaluated(run, "--best") == 1
    assert evaluated(run, "--at", "2") == 2
    assert "after step 1" in " ".join(call("eval", str(run), "--tasks", "2", "--best").out.split())


def test_of_equal_success_the_higher_reward_is_better() -> None:
    """An environment that nobody solves, with rewards that rise: the untrained weights were the best."""
    reports = [{"step": step, "success": 0.0, "reward": reward} for step, reward in enumerate([1.0, 3.0, 3.0, 2.0])]
    assert best_report(reports) is reports[1]
    assert best_report([*reports, {"step": 4, "success": 0.1, "reward": -5.0}])["step"] == 4
    assert best_report([]) is None


def test_export_writes_the_weights_of_the_checkpoint_that_is_named(run: Path, tmp_path: Path) -> None:
    """The last one is damaged, so that whoever takes it is told."""
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    (copied / "checkpoints" / checkpoint_name(3) / "shared" / "model.safetensors").unlink()
    assert call("export", str(copied), "shared", str(tmp_path / "best"), "--best").code == 0
    assert call("export", str(copied), "shared", str(tmp_path / "at"), "--at", "2").code == 0
    damaged = call("export", str(copied), "shared", str(tmp_path / "damaged"), "--at", "3")
    assert (damaged.code, "cannot be used" in damaged.err) == (2, True)
    assert not (tmp_path / "damaged").exists()
    assert CheckpointChoice(best=True).find(copied).name == checkpoint_name(1)
    assert CheckpointChoice(at=0).find(copied).name == checkpoint_name(0)
    assert CheckpointChoice().find(copied).name == checkpoint_name(2)


def test_a_run_from_another_machine_goes_on_with_the_base_where_it_is_here(
    run: Path, speaker: Path, tmp_path: Path
) -> None:
    copied, present = tmp_path / "run", f"team.policies.shared.model={speaker}"
    shutil.copytree(run, copied)
    config = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(config.replace(str(speaker), "/there/model"))
    assert "/there/model" in (copied / "config.yaml").read_text()
    command = ["export", str(copied), "shared", str(tmp_path / "out"), "--at", "2"]
    assert "/there/model holds no config.json" in " ".join(call(*command).err.split())
    result = call(*command[:4], present, "--at", "2")
    assert (result.code, (tmp_path / "out" / "model.safetensors").is_file()) == (0, True), result.err
    assert open_to_resume(copied, overrides=[present], force=True).policies["shared"].model == str(speaker)
    assert fork_run(copied, 2, tmp_path / "fork", [present]).policies["shared"].model == str(speaker)
    # The model that is here is the run's, so that another one is refused as before.
    with pytest.raises(ConfigError, match="has another model or adapter"):
        open_to_resume(run, overrides=["team.policies.shared.model=/there/model"], force=True)


@pytest.mark.parametrize("ignored", ["loss.kl=1", "team.policies.shared.learner.epochs=2", "train.steps=9"])
def test_an_export_refuses_changes_that_it_would_ignore(ignored: str, run: Path, tmp_path: Path) -> None:
    result = call("export", str(run), "shared", str(tmp_path / "out"), ignored)
    assert (result.code, f"export: got {ignored.partition('=')[0]}, which it would ignore" in result.err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_an_export_takes_changes_of_how_its_weights_are_loaded(run: Path, tmp_path: Path) -> None:
    result = call("export", str(run), "shared", str(tmp_path / "out"), "team.policies.shared.quantization=null")
    assert (result.code, (tmp_path / "out" / "model.safetensors").is_file()) == (0, True), result.err


def test_a_fork_and_an_export_warn_of_another_base(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    record = json.loads((copied / "environment.json").read_text())
    assert record["bases"].keys() == {"shared"}
    for bases, warned in ((record["bases"], False), ({"shared": "0" * 64}, True)):
        (copied / "environment.json").write_text(json.dumps(record | {"bases": bases}))
        out = tmp_path / f"out-{warned}"
        commands = (
            ("export", str(copied), "shared", str(out)),
            ("fork", str(copied), "--at", "2", "--run", f"{out}-fork"),
        )
        for command in commands:
            caplog.clear()
            result = call(*command)
            assert (result.code, "has other weights than that" in caplog.text) == (0, warned), result.err


def test_a_device_may_be_changed_for_an_export(run: Path, tmp_path: Path) -> None:
    assert call("export", str(run), "shared", str(tmp_path / "out"), "team.policies.shared.device=cpu").code == 0


def test_play_and_fork_take_it_too(run: Path, tmp_path: Path) -> None:
    assert call("play", str(run), "--best").code == 0
    result = call("fork", str(run), "--best", "--run", str(tmp_path / "fork"))
    assert result.code == 0, result.err
    assert checkpoint_steps(tmp_path / "fork" / "checkpoints") == [1]


@pytest.mark.parametrize("command", [["eval", "RUN", "--tasks", "2"], ["play", "RUN"], ["fork", "RUN"]])
def test_without_an_evaluation_there_is_no_best(command: list[str], speaker: Path, tmp_path: Path) -> None:
    goal = {"steps": 1, "tasks_per_step": 2}
    play(configured(speaker, train=goal, evaluate={"tasks": 0}), tmp_path / "run", Console(quiet=True))
    result = call(*(str(tmp_path / "run") if word == "RUN" else word for word in command), "--best")
    assert result.code == 2
    assert "has made no evaluation" in result.err


def test_what_cannot_be_found_is_said(run: Path, tmp_path: Path) -> None:
    missing = call("eval", str(run), "--at", "7")
    assert (missing.code, "step 7" in missing.err, "0, 1, 2, 3" in missing.err) == (2, True, True)
    assert call("eval", str(run), "--best", "--at", "2").code == 2
    assert call("eval", str(run), "--base", "--best").code == 2
    assert "name a checkpoint of a run" in call("eval", "plan-path", "--best").err
    assert "neither --at nor --best" in call("fork", str(run), "--run", str(tmp_path / "x")).err


def test_an_evaluation_says_how_far_it_is_beside_its_report(run: Path) -> None:
    done = call("eval", str(run), "--tasks", "4", "--json")
    json.loads(done.out)
    assert [line.partition(",")[0] for line in done.err.splitlines() if line.startswith("evaluated")] == [
        f"evaluated {number}/4" for number in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize("change", ["lora.alpha=8", "lora.rank=4", "lora.targets=[q_proj]", "lora=null"])
def test_a_trained_adapter_is_not_played_as_another_one(change: str, speaker: Path, tmp_path: Path) -> None:
    """Another alpha scaled what was learned, without a message; the others ended in errors about files."""
    shared = {"model": str(speaker), "lora": {"rank": 2, "alpha": 4.0}}
    team = {"policies": {"shared": shared}, "roles": {"speaker": "shared"}}
    goal = {"steps": 1, "tasks_per_step": 2}
    play(configured(speaker, team=team, train=goal, evaluate={"tasks": 0}), tmp_path / "run", Console(quiet=True))
    assert call("eval", str(tmp_path / "run"), "--tasks", "1", "team.policies.shared.lora.alpha=4").code == 0
    done = call("eval", str(tmp_path / "run"), "--tasks", "1", f"team.policies.shared.{change}")
    assert (done.code, "team.policies.shared: got it frozen or with another adapter than" in done.err) == (2, True)


def test_a_whole_model_is_not_played_as_an_adapter(run: Path) -> None:
    done = call("play", str(run), "team.policies.shared.lora={}")
    assert (done.code, "team.policies.shared: got it frozen or with another adapter than" in done.err) == (2, True)
