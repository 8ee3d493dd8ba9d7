"""The bench of presets: every name has a recipe on both games, and what is kept is the run's own."""

from __future__ import annotations

import json
from pathlib import Path

import presets
import pytest

import common
import readme
from cadre.algorithms import ALGORITHMS
from cadre.config.experiment import load
from tests.helpers.coordination import SETTINGS


@pytest.mark.parametrize("name", presets.NAMES)
def test_every_preset_has_its_settings_on_plan_path(name: str) -> None:
    run = presets.plan_path(name, 1, Path("runs"))
    config = load(run.recipe, run.overrides)
    assert config.env.startswith("plan-path")
    points = {"gdpo": "grpo", **dict.fromkeys(("as_published", "teacher", "hint"), "at_grpo")}
    assert config.algorithm.name == points.get(name, name)
    assert config.train.max_tokens == presets.PLAN_PATH_TOKENS
    assert config.learner.learning_rate == (3e-4 if name == "hint" else 1e-3)  # by the pilot in docs/LOG.md


def test_every_algorithm_has_its_settings_in_the_coordination_game() -> None:
    assert (
        set(SETTINGS)
        == set(presets.NAMES) - {"as_published", "hint"}
        == (ALGORITHMS.keys() - {"custom"}) | {"gdpo", "teacher"}
    )


def test_at_grpo_as_published_has_the_settings_of_its_recipe() -> None:
    run, recipe = presets.plan_path("as_published", 1, Path("runs")), load("plan-path-as-published-qwen3-1.7b-L0")
    config = load(run.recipe, run.overrides)
    assert config.algorithm == recipe.algorithm
    assert config.loss == recipe.loss
    same = ("epochs", "minibatches", "minibatch_size", "weight_decay", "schedule")
    assert {key: getattr(config.learner, key) for key in same} == {key: getattr(recipe.learner, key) for key in same}


def test_the_table_has_the_rows_of_the_bench() -> None:
    assert list(readme.PRESETS) == presets.NAMES
    assert {name for row in readme.WHICH for name in row.names} <= set(presets.NAMES)


def test_curves_are_averaged_in_fifths_of_the_tokens() -> None:
    """Steps of 10 tokens: two in each fifth; the second seed has steps at 0, 50 and 60 of 100, so that the second fifth
    repeats the first, and the last repeats the fourth."""
    even = [(10.0 * (step + 1), float(step)) for step in range(10)]  # 0.5, 2.5, 4.5, 6.5, 8.5
    uneven = [(50.0, 1.0), (60.0, 3.0), (100.0, 5.0)]  # 1, 1, 3, 5, 5
    assert readme.fifths([even]) == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert readme.fifths([uneven]) == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert readme.fifths([even, uneven]) == [0.75, 1.75, 3.75, 5.75, 6.75]


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
    run = presets.with_teacher("teacher", presets.plan_path("teacher", 2, tmp_path), "plan-path", tmp_path)
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
    presets.keep("plan-path", "gdpo", runs, [0, 1, 2])
    found = common.latest()
    assert [found[f"preset.gdpo.plan-path.{name}"]["value"] for name in ("success", "mean")] == [0.6, 0.6]
    assert found["preset.gdpo.plan-path.mean"]["low"] == 0.4
    assert "| `gdpo` | 60.0% (20.0% to 100.0%) | 60.0% (40.0% to 80.0%) |" in readme.presets()


def test_the_evidence_of_a_situation_is_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "validate_commit", lambda commit: None)
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    common.record("presets", "preset.teamtr.plan-path.success", [0.5, 0.7, 0.9], "share", "x", 3, [0, 1, 2], "abc")
    rows = readme.which().splitlines()
    assert next(row for row in rows if "[`teamtr`]" in row).endswith("| Plan-Path: `teamtr` 70.0% (50.0% to 90.0%) |")
    assert next(row for row in rows if "[`sirius`]" in row).endswith("| not measured yet |")
