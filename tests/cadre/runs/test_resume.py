"""Going on with a run: what may change, what is refused, and that nothing is lost or made twice."""

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from rich.console import Console

from cadre.config.experiment import Config, dump, load, parse
from cadre.config.resolve import find_target, resolve
from cadre.engines.torch import TorchEngine
from cadre.errors import ConfigError, RunError
from cadre.runs import resume as resume_module
from cadre.runs.folder import Run, RunLock
from cadre.runs.resume import (
    adopt_config,
    describe_missing_logs,
    fork_run,
    is_evaluated_alike,
    list_differences,
    open_to_resume,
)
from cadre.settings.yaml_file import apply_overrides
from cadre.training.checkpoint import checkpoint_steps, latest_checkpoint, read_state
from cadre.training.interrupt import Interrupt
from cadre.training.loop import Training, run_training
from tests.helpers.training import configured, lines, weights


def trained(chosen: Config, folder: Path, console: Console, resume: bool = False) -> Run:
    run = Run(folder, chosen) if resume else Run.create(folder, chosen)
    run_training(resolve(chosen), run, console, resume)
    return run


def test_a_changed_setting_is_named_and_needs_force(speaker: Path, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", configured(speaker))
    with pytest.raises(RunError, match=r"1 settings differ .* algorithm\.k: 8 -> 4\. .* --force"):
        open_to_resume(run.folder, overrides=["algorithm.k=4", "train.steps=9"])
    forced = open_to_resume(run.folder, overrides=["algorithm.k=4"], force=True)
    assert Run.open(run.folder).config.algorithm.k == 8
    adopt_config(forced)
    assert Run.open(run.folder).config.algorithm.k == 4
    assert "k: 8" in (run.folder / "config-1.yaml").read_text()


def test_how_long_and_what_is_kept_may_change(speaker: Path, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", configured(speaker))
    free = ["train.steps=9", "evaluate.every=3", "train.checkpoint_every=2", "train.trees_kept=0"]
    adopt_config(open_to_resume(run.folder, overrides=free))
    assert Run.open(run.folder).config.train.steps == 9
    assert not (run.folder / "config-1.yaml").exists()


@pytest.mark.parametrize(
    ("sections", "falls"),
    [
        ({"learner": {"schedule": "cosine"}}, "learner.schedule=cosine"),
        ({"loss": {"kl": 0.1, "schedule": "linear"}}, "loss.schedule=linear"),
    ],
)
def test_the_number_of_steps_needs_force_where_something_falls_over_them(
    sections: dict, falls: str, speaker: Path, tmp_path: Path
) -> None:
    """Mistake: a rate that had fallen to nearly nothing jumps up as the run goes on."""
    run = Run.create(tmp_path / "run", configured(speaker, **sections))
    with pytest.raises(RunError, match=rf"train\.steps: \d+ -> 90 \({falls} falls over them\)\. .* --force"):
        open_to_resume(run.folder, overrides=["train.steps=90"])
    adopt_config(open_to_resume(run.folder, overrides=["train.steps=90"], force=True))
    assert (run.folder / "config-1.yaml").exists()
    adopt_config(open_to_resume(run.folder, overrides=["train.checkpoint_every=2"]))


def test_a_recipe_goes_on_with_the_changes_that_it_was_begun_with(speaker: Path, tmp_path: Path) -> None:
    pass

    recipe = tmp_path / "digit.yaml"
    recipe.write_text(dump(configured(speaker)))
    changes = ["algorithm.k=4"]
    Run.create(tmp_path / "run", load(str(recipe), changes), str(recipe), changes)
    assert open_to_resume(tmp_path / "run", str(recipe)).config.algorithm.k == 4
    assert open_to_resume(tmp_path / "run", f"{tmp_path}/run/../digit.yaml").config.algorithm.k == 4
    recipe.write_text(recipe.read_text().replace("max_tokens: 2", "max_tokens: 3"))
    with pytest.raises(RunError, match=r"sampling\.max_tokens: 2 -> 3"):
        open_to_resume(tmp_path / "run", str(recipe))
    assert open_to_resume(tmp_path / "run").config.sampling.max_tokens == 2


def test_differences_name_what_is_there_on_one_side_only(speaker: Path) -> None:
    one, two = configured(speaker, policies=("a",)), configured(speaker, policies=("b",))
    assert f"team.policies.a.model: {speaker} -> unset" in list_differences(one, two)


def test_a_second_process_is_refused(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    run = Run.create(tmp_path / "run", configured(speaker))
    with RunLock(run.folder), pytest.raises(RunError, match="another process"):
        run_training(resolve(run.config), run, quiet)


def test_a_resume_that_is_refused_changes_no_file_of_the_run_that_trains(
    speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    run = Run.create(tmp_path / "run", configured(speaker, evaluate={"tasks": 4}))
    run.log_evaluation(0, {"tasks": 4, "success": 0.5, "reward": 0.5})
    run.close()
    names = ("config.yaml", "evaluations.jsonl")
    before = {name: (run.folder / name).read_bytes() for name in names}
    other = open_to_resume(run.folder, overrides=["evaluate.tasks=8", "algorithm.k=4"], force=True)
    with RunLock(run.folder), pytest.raises(RunError, match="another process"):
        run_training(resolve(other.config), other, quiet, resume=True)
    assert {name: (run.folder / name).read_bytes() for name in names} == before
    assert not list(run.folder.glob("*-1.*"))


def test_a_run_whose_checkpoints_are_lost_keeps_its_record(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    chosen = configured(speaker, train={"steps": 2, "tasks_per_step": 4})
    run = trained(chosen, tmp_path / "run", quiet)
    shutil.rmtree(run.folder / "checkpoints")
    before = (run.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match="has made steps and holds no checkpoint"):
        trained(chosen, run.folder, quiet, resume=True)
    assert (run.folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("dies_at", ["sample", "evaluate", "log"])
def test_an_error_loses_no_step_before_it(
    speaker: Path, tmp_path: Path, quiet: Console, dies_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the third step, wherever it strikes, leaves the two before it; resumed, the run is as if unbroken."""
    train = {"steps": 4, "tasks_per_step": 4, "trees_kept": 2}
    chosen = configured(speaker, train=train, evaluate={"tasks": 4, "every": 1})
    whole = trained(chosen, tmp_path / "whole", quiet)
    from cadre.training import loop
    from cadre.training.loop import evaluate_step, sample_step

    real = {"sample": sample_step, "evaluate": evaluate_step, "log": Run.keep}[dies_at]

    def dying(training: Training, step: int, *rest: object) -> object:
        if step == 2:
            raise OSError("struck")
        return real(training, step, *rest)  # type: ignore[operator]

    ended: list[TorchEngine] = []
    close = TorchEngine.close
    monkeypatch.setattr(TorchEngine, "close", lambda engine: (ended.append(engine), close(engine)))
    owner, name = {"sample": (loop, "sample_step"), "evaluate": (loop, "evaluate_step"), "log": (Run, "keep")}[dies_at]
    monkeypatch.setattr(owner, name, dying)
    with pytest.raises(OSError, match="struck"):
        trained(chosen, tmp_path / "broken", quiet)
    assert len(set(ended)) == 1
    kept = read_state(latest_checkpoint(tmp_path / "broken" / "checkpoints")).step
    assert kept == {"sample": 2, "evaluate": 2, "log": 0}[dies_at]
    monkeypatch.undo()
    trained(chosen, tmp_path / "broken", quiet, resume=True)
    for name in ("metrics.jsonl", "trees.jsonl", "evaluations.jsonl"):
        assert lines(tmp_path / "broken", name) == lines(whole.folder, name)
    assert weights(tmp_path / "broken", "shared") == weights(whole.folder, "shared")


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_anew(
    speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    chosen = configured(speaker, train={"steps": 2, "tasks_per_step": 4})
    whole = trained(chosen, tmp_path / "whole", quiet)
    begun = Run.create(tmp_path / "begun", chosen)
    begun.log_evaluation(0, lines(whole.folder, "evaluations.jsonl")[0])
    trained(chosen, begun.folder, quiet, resume=True)
    assert lines(begun.folder, "evaluations.jsonl") == lines(whole.folder, "evaluations.jsonl")
    assert weights(begun.folder, "shared") == weights(whole.folder, "shared")


def test_an_empty_folder_can_become_a_run(speaker: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert Run.create(tmp_path / "run", configured(speaker)).folder == tmp_path / "run"
    with pytest.raises(RunError, match="not empty"):
        Run.create(tmp_path / "run", configured(speaker))


def test_tensorboard_shows_every_step_once_after_a_resume(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    short = configured(speaker, train={"steps": 2, "tasks_per_step": 4}, evaluate={"tasks": 4, "every": 1})
    trained(short, tmp_path / "run", quiet)
    longer = configured(speaker, train={"steps": 4, "tasks_per_step": 4}, evaluate={"tasks": 4, "every": 1})
    trained(longer, tmp_path / "run", quiet, resume=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("speaker/reward")] == [0, 1, 2, 3]
    assert [event.step for event in events.Scalars("evaluate/success")] == [0, 1, 2, 3, 4]


def test_a_run_goes_on_from_any_folder(speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it names by relative paths is found again: the file of its environment, its models, its data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from tests.helpers.games import Digit\n\n\nclass Mine(Digit):\n    pass\n")
    (tmp_path / "models").mkdir()
    shutil.copytree(speaker, tmp_path / "models" / "speaker")
    raw = yaml.safe_load(dump(configured(speaker)))
    raw["team"]["policies"]["shared"]["model"] = "models/speaker"
    raw["env"] = "mine.py:Mine"
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    run = Run.create(tmp_path / "run", load("mine.yaml"), "mine.yaml")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    again = find_target(str(run.folder)).config
    assert resolve(again).config == run.config
    assert again.env == f"{tmp_path}/mine.py:Mine"
    assert again.team.policies["shared"].model == f"{tmp_path}/models/speaker"


def test_a_run_may_be_moved(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    trained(configured(speaker, train={"steps": 2, "tasks_per_step": 4}), tmp_path / "here", quiet)
    (tmp_path / "here").rename(tmp_path / "there")
    chosen = configured(speaker, train={"steps": 3, "tasks_per_step": 4})
    trained(chosen, tmp_path / "there", quiet, resume=True)
    assert [line["step"] for line in lines(tmp_path / "there", "metrics.jsonl")] == [0, 1, 2]
    assert not (tmp_path / "here").exists()


def test_reports_of_other_tasks_are_set_aside(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    chosen = configured(speaker, train={"steps": 2, "tasks_per_step": 4}, evaluate={"tasks": 4, "every": 0})
    run = trained(chosen, tmp_path / "run", quiet)
    adopt_config(open_to_resume(run.folder, overrides=["train.steps=3", "evaluate.every=1"]))
    assert [line["tasks"] for line in run.evaluations()] == [4, 4]  # more often is no other judge
    other = open_to_resume(run.folder, overrides=["train.steps=3", "evaluate.tasks=2"])
    adopt_config(other)
    # The report after the best step, 0, is in the file beside it: it was said to be lost.
    state = read_state(latest_checkpoint(run.folder / "checkpoints"))
    assert state.best_step is not None
    assert list(describe_missing_logs(other, state)) == []
    trained(other.config, run.folder, quiet, resume=True)
    judged = [(line["step"], line["tasks"]) for line in run.evaluations()]
    assert judged == [(2, 2), (3, 2)]
    assert [line["tasks"] for line in lines(run.folder, "evaluations-1.jsonl")] == [4, 4]


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ("team.prompts={speaker: Be brief.}", False),
        ("sampling.max_tokens=9", False),
        ("team.policies.shared.sampling={stop: [x]}", False),
        ("team.policies.shared.dtype=bfloat16", False),
        ("team.policies.shared.enable_thinking=true", False),
        ("settings={more: 1}", False),
        ("team.policies.judge={model: games, frozen: true}", False),
        ("sampling.temperature=0.5", True),
        ("algorithm={name: ippo, k: 2}", True),
        ("evaluate.every=7", True),
    ],
)
def test_reports_are_kept_of_the_same_way_to_play_alone(change: str, alike: bool, speaker: Path) -> None:
    """Mistake: reports of another prompt or another budget of tokens stand as the beginning of a fork."""
    chosen = configured(speaker, sampling={"max_tokens": 4})
    changed = parse(apply_overrides(chosen.model_dump(mode="json"), [change]))
    assert is_evaluated_alike(chosen, changed) == alike


def test_a_fork_goes_on_from_the_middle_and_leaves_the_run_as_it_was(
    speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    chosen = configured(
        speaker, train={"steps": 4, "tasks_per_step": 4, "checkpoint_every": 1}, evaluate={"tasks": 4, "every": 2}
    )
    whole = trained(chosen, tmp_path / "run", quiet)
    before = {path: path.read_bytes() for path in whole.folder.rglob("*") if path.is_file()}
    branch = fork_run(whole.folder, 2, tmp_path / "fork", ["learner.learning_rate=1e-4"])
    assert [line["step"] for line in lines(branch.folder, "metrics.jsonl")] == [0, 1]
    assert [line["step"] for line in lines(branch.folder, "evaluations.jsonl")] == [0, 2]
    trained(branch.config, branch.folder, quiet, resume=True)
    assert lines(branch.folder, "metrics.jsonl")[:2] == lines(whole.folder, "metrics.jsonl")[:2]
    assert weights(branch.folder, "shared") != weights(whole.folder, "shared")
    assert {path: path.read_bytes() for path in whole.folder.rglob("*") if path.is_file()} == before
    other = fork_run(whole.folder, 2, tmp_path / "other-tasks", ["evaluate.tasks=2"])
    state = read_state(latest_checkpoint(other.folder / "checkpoints"))
    assert list(describe_missing_logs(other, state)) == []
    trained(other.config, other.folder, quiet, resume=True)
    judged = [(line["step"], line["tasks"]) for line in lines(other.folder, "evaluations.jsonl")]
    assert judged == [(2, 2), (4, 2)]  # none of other tasks, and its beginning by its own
    critic = fork_run(whole.folder, 2, tmp_path / "critic", ["algorithm={name: ippo, k: 2}"])
    trained(critic.config, critic.folder, quiet, resume=True)
    assert (critic.folder / "checkpoints" / "step-000004" / "shared" / "heads").is_dir()
    same = fork_run(whole.folder, 2, tmp_path / "same")
    trained(same.config, same.folder, quiet, resume=True)
    assert weights(same.folder, "shared") == weights(whole.folder, "shared")
    with pytest.raises(RunError, match=r"no checkpoint of step 7; expected one of 0, 1, 2, 3, 4"):
        fork_run(whole.folder, 7, tmp_path / "other")


def test_being_asked_to_stop_saves_the_step_before(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    chosen = configured(speaker, train={"steps": 4, "tasks_per_step": 4})
    run = Run.create(tmp_path / "run", chosen)
    asked = Interrupt()
    asked()
    from cadre.concurrency import run_coroutine
    from cadre.config.engines import build_team
    from cadre.runs.progress import Progress
    from cadre.training.checkpoint import TrainingState
    from cadre.training.loop import train_loop

    experiment = resolve(chosen)
    team = build_team(experiment)
    with Progress(quiet, 4) as progress:
        done = run_coroutine(train_loop(Training(experiment, run, team, progress), TrainingState(), asked))
    assert done == 0
    assert json.loads((run.folder / "checkpoints" / "step-000000" / "state.json").read_text())["step"] == 0


@pytest.mark.parametrize(
    "change",
    [
        "team.policies.shared.frozen=true",
        "team.policies.shared.lora={rank: 4}",
        "team.policies.shared.model=games",
        "team={policies: {other: seed}, roles: {speaker: other}}",
    ],
)
def test_what_a_run_has_trained_is_gone_on_with(change: str, speaker: Path, tmp_path: Path, quiet: Console) -> None:
    """Mistake: a policy that is frozen from there on falls back to its untrained model, and is in no checkpoint."""
    run = trained(configured(speaker, train={"steps": 1, "tasks_per_step": 2}), tmp_path / "run", quiet)
    with pytest.raises(ConfigError, match=r"team.policies.shared, .* is frozen, left out, or has another model"):
        fork_run(run.folder, 1, tmp_path / "fork", [change])
    with pytest.raises(ConfigError, match=r"team.policies.shared, .* is frozen, left out, or has another model"):
        open_to_resume(run.folder, overrides=[change], force=True)
    assert not (tmp_path / "fork").exists()
    if "frozen" in change:
        with pytest.raises(ConfigError, match="got it frozen or with another adapter"):
            find_target(str(run.folder), [change])


def test_a_fork_is_whole_or_not_there(
    speaker: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(configured(speaker, train={"steps": 1, "tasks_per_step": 2}), tmp_path / "run", quiet)
    with monkeypatch.context() as full:
        full.setattr(resume_module.shutil, "copytree", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(RunError, match="No space left"):
            fork_run(run.folder, 1, tmp_path / "fork")
    assert not (tmp_path / "fork").exists()
    forked = fork_run(run.folder, 1, tmp_path / "fork", ["train.steps=3"])
    assert forked.command()[1] == ["train.steps=3"]  # so that the recipe, named again, is what the fork is


def test_a_copy_beside_the_checkpoints_is_none(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    run = trained(configured(speaker, train={"steps": 1, "tasks_per_step": 2}), tmp_path / "run", quiet)
    saved = latest_checkpoint(run.folder / "checkpoints")
    shutil.copytree(saved, saved.with_name(f"{saved.name}.bak"))
    assert latest_checkpoint(run.folder / "checkpoints") == saved
    assert checkpoint_steps(run.folder / "checkpoints") == [0, 1]
