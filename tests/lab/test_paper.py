"""The paper's table: every row is a recipe, runs are read right, and a figure is kept once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import common
from cadre.config.experiment import load
from lab import paper, trainings


@pytest.mark.parametrize("game", paper.GAMES)
@pytest.mark.parametrize("ending", sorted({row.ending for row in paper.ROWS.values()} - {"-roles-of-alone"}))
def test_every_row_is_a_recipe_of_the_same_size(game: str, ending: str) -> None:
    run = paper.Paper(Path("runs"), [0], 1).run(game, ending, 0)
    team, row = load(game, []), load(run.recipe, list(run.overrides))
    assert row.settings == team.settings
    assert row.sampling == team.sampling
    assert row.learner == team.learner
    assert row.train.tasks_per_step == team.train.tasks_per_step
    assert row.algorithm.k == team.algorithm.k
    assert row.env.startswith(game)


@pytest.mark.parametrize("name", paper.ABLATIONS)
def test_an_ablation_changes_one_setting(name: str) -> None:
    plain, changed = load("plan-path", []), load("plan-path", list(paper.ABLATIONS[name]))
    initial_model_dump, final_model_dump = plain.model_dump(), changed.model_dump()
    assert sum(initial_model_dump[section] != final_model_dump[section] for section in initial_model_dump) == 1


def finished(folder: Path, success: tuple[float, float]) -> trainings.Run:
    """A complete run of two steps, written by hand."""
    folder.mkdir(parents=True)
    (folder / "evaluations.jsonl").write_text("\n".join(json.dumps({"success": item}) for item in success))
    steps = [{"rollout/tokens": 100, "rollout/env_steps": 8, "rollout/episodes": 2} for _ in range(2)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)))
    (folder / trainings.DONE).write_text(json.dumps({"minutes": 1.5, "processor_minutes": 2.5, "commit": "abc"}))
    return trainings.Run(folder, "plan-path", 0)


def test_figures_of_a_row_and_that_they_are_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "validate_commit", lambda commit: None)
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    complete = [finished(tmp_path / f"run{number}", (0.1, final)) for number, final in enumerate((0.9, 1.0, 0.8))]
    bench = paper.Paper(tmp_path, [0, 1, 2], 1)
    bench.keep_row("team-shared", "plan-path", complete)
    bench.keep_row("team-prompted", "plan-path", complete)
    latest = common.latest()
    assert latest["table.team-shared.plan-path.success"]["value"] == 0.9
    assert latest["table.team-shared.plan-path.success"]["low"] == 0.8
    assert latest["table.team-prompted.plan-path.success"]["value"] == 0.1
    assert latest["table.team-shared.plan-path.tokens"]["value"] == 200
    assert latest["table.team-shared.plan-path.processor_minutes"]["commit"] == "abc"
    assert "table.team-prompted.plan-path.tokens" not in latest
    assert latest["plan-path.L0.success"]["value"] == latest["plan-path.team.success"]["value"] == 0.9
    assert latest["plan-path.base.success"]["value"] == 0.1
    initial_content = (tmp_path / "results" / "paper.jsonl").read_text()
    bench.keep_row("team-shared", "plan-path", complete)
    assert (tmp_path / "results" / "paper.jsonl").read_text() == initial_content


def test_complete_runs_are_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    monkeypatch.setattr(trainings.Run, "train", lambda run, threads: trained.append(run.folder.name))
    bench = paper.Paper(tmp_path, [0], 2)
    result = [finished(tmp_path / "done", (0.0, 1.0)), trainings.Run(tmp_path / "todo", "plan-path", 1)]
    calls = []
    bench.train(result, lambda: calls.append(len(trained)))
    assert trained == ["todo"]
    assert calls == [0, 1]
