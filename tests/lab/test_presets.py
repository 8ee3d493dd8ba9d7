"""The bench of presets: every name has a recipe, and what is kept is the run's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import common
from cadre.config.experiment import load
from lab import presets


@pytest.mark.parametrize("name", presets.NAMES)
def test_every_preset_has_its_settings_on_plan_path(name: str) -> None:
    run = presets.plan_path(name, 1, Path("runs"))
    config = load(run.recipe, run.overrides)
    assert config.env.startswith("plan-path")
    points = {"gdpo": "grpo", **dict.fromkeys(("as_published", "teacher", "hint"), "at_grpo")}
    assert config.algorithm.name == points.get(name, name)
    assert config.train.max_tokens == presets.PLAN_PATH_TOKENS
    assert config.learner.learning_rate == (3e-4 if name == "hint" else 1e-3)  # by the pilot in docs/LOG.md


def test_at_grpo_as_published_has_the_settings_of_its_recipe() -> None:
    run, recipe = presets.plan_path("as_published", 1, Path("runs")), load("plan-path-as-published-qwen3-1.7b-L0")
    config = load(run.recipe, run.overrides)
    assert config.algorithm == recipe.algorithm
    assert config.loss == recipe.loss
    same = ("epochs", "minibatches", "minibatch_size", "weight_decay", "schedule")
    assert {key: getattr(config.learner, key) for key in same} == {key: getattr(recipe.learner, key) for key in same}


def test_the_curves_are_those_of_complete_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    run = presets.plan_path("gdpo", 0, tmp_path)
    run.folder.mkdir(parents=True)
    steps = [{"rollout/tokens": 7, "rollout/success": 0.5}, {"rollout/tokens": 5, "rollout/success": 1.0}]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    presets.keep_curves("gdpo", [run])
    assert not (tmp_path / presets.CURVES).exists()
    (run.folder / "measured.json").write_text("{}")
    presets.keep_curves("gdpo", [run])
    assert json.loads((tmp_path / presets.CURVES).read_text()) == {"gdpo": [[[7, 0.5], [12, 1.0]]]}


def test_a_teacher_is_the_policy_that_was_trained_with_the_same_seed(tmp_path: Path) -> None:
    trained = presets.plan_path("at_grpo", 2, tmp_path)
    (trained.folder / "checkpoints" / "00000030" / "shared").mkdir(parents=True)
    run = presets.with_teacher("teacher", presets.plan_path("teacher", 2, tmp_path), tmp_path)
    teacher = load(run.recipe, run.overrides).teacher
    assert teacher is not None
    assert teacher.model is not None
    assert Path(teacher.model.model) == trained.model("shared")
    assert teacher.alone


def test_what_is_kept_is_the_median_and_the_mean_over_seeds_and_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "validate_commit", lambda commit: None)
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(presets, "mean_over_tasks", lambda runs: (0.6, 0.4, 0.8))
    runs = [presets.plan_path("gdpo", seed, tmp_path) for seed in (0, 1, 2)]
    for run, success in zip(runs, (0.2, 1.0, 0.6), strict=True):
        run.folder.mkdir(parents=True)
        (run.folder / "evaluations.jsonl").write_text(json.dumps({"success": success}) + "\n")
        (run.folder / "metrics.jsonl").write_text(json.dumps({"rollout/tokens": 7}) + "\n")
        (run.folder / "measured.json").write_text(json.dumps({"commit": "abc"}))
    presets.keep("gdpo", runs, [0, 1, 2])
    latest = common.latest()
    assert [latest[f"preset.gdpo.plan-path.{name}"]["value"] for name in ("success", "mean")] == [0.6, 0.6]
    assert latest["preset.gdpo.plan-path.mean"]["low"] == 0.4
