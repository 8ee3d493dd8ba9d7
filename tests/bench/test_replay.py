"""What bench/replay.py trains again for a figure, and when two runs are equal."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import replay
from replay import Training

OPTIONS = argparse.Namespace(models=Path("/models"), data="hub", work=Path("/runs"), steps=2, tasks=4)


def line(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "seeds": [3, 4], "commit": "abc1234", "command": "make results"} | more


def written(folder: Path, values: list[float], success: float = 0.5, norm: float = 0.1) -> Path:
    policy = folder / "checkpoints" / "step-2" / "shared"
    policy.mkdir(parents=True)
    save_file({"weight": np.array(values, np.float32)}, policy / "model.safetensors")
    (folder / "checkpoints" / "step-1" / "shared").mkdir(parents=True)
    (folder / "evaluations.jsonl").write_text(json.dumps({"step": 0, "success": success, "reward": 1.0}) + "\n")
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "shared/grad_norm": norm, "text": 0}) + "\n")
    return folder


@pytest.mark.parametrize(
    ("name", "recipes"),
    [
        ("sokoban.team.success", ["sokoban"]),
        ("sokoban.base.success", ["sokoban"]),
        ("table.single-grpo.plan-path.success", ["plan-path-solo-grpo"]),
        ("table.alone-as-team.plan-path.success", ["plan-path-tool", "plan-path-no-tool"]),
        ("kuhn.untrained.exploitability", ["kuhn-poker"]),
        ("discovery.sokoban.team.success", []),
        ("worth.relay.gain", []),
    ],
)
def test_a_figure_is_trained_again_by_its_recipe_with_its_first_seed(name: str, recipes: list[str]) -> None:
    found = replay.trainings(line(name), OPTIONS)
    assert [training.recipe for training in found] == recipes
    assert all("train.seed=3" in training.overrides for training in found)


def test_a_known_model_is_trained_again_with_the_changes_of_its_command() -> None:
    command = "python bench/headline.py --tasks sudoku-outcome --tokens 40000 --set settings.turns=1"
    both = line("headline.sudoku-outcome.qwen2.5-coder-0.5b.grpo - L0", command=command)
    grpo, team = replay.trainings(both, OPTIONS)
    assert (grpo.recipe, team.recipe) == (
        "sudoku-single-agent-qwen2.5-coder-0.5b-L0",
        "sudoku-qwen2.5-coder-0.5b-L0",
    )
    assert "settings.turns=1" in team.overrides
    assert "train.max_tokens=40000" in team.overrides
    assert any("/models/qwen2.5-coder-0.5b," in override for override in team.overrides)
    before = line("headline.sudoku-outcome.qwen2.5-coder-0.5b.L0.before.success", command=command)
    assert replay.trainings(before, OPTIONS) == [team]
    drawn = line("headline.sudoku-outcome.qwen2.5-coder-0.5b.best-of-2.success", command=command)
    assert replay.trainings(drawn, OPTIONS) == []


def test_runs_are_equal_if_weights_and_held_out_success_are(tmp_path: Path) -> None:
    first = written(tmp_path / "first", [1.0, 2.0])
    assert replay.difference(first, written(tmp_path / "same", [1.0, 2.0])) == ""
    assert replay.difference(first, written(tmp_path / "weights", [1.0, 2.0000002])) == "1 of 1 tensors"
    assert "0.25" in replay.difference(first, written(tmp_path / "success", [1.0, 2.0], success=0.25))
    assert "no policy had a gradient" in replay.difference(first, written(tmp_path / "still", [1.0, 2.0], norm=0.0))
    empty = written(tmp_path / "empty", [1.0, 2.0])
    (empty / "checkpoints" / "step-2" / "shared" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"step-2 has no weights"):
        replay.difference(first, empty)


def test_a_replay_says_what_it_was_of_and_trains_a_recipe_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Path] = []

    def train(recipe: str, run: Path, changes: Any, threads: int, checkout: Path | None = None) -> float:
        trained.append(written(run, [1.0]))
        assert changes[-2:] == ("train.steps=2", "evaluate.tasks=4")
        return 0.0

    monkeypatch.setattr(replay, "train", train)
    monkeypatch.setattr(replay, "checked_out", lambda commit, folder: nullcontext(folder))
    once = replay.Replay(OPTIONS, tmp_path)
    made = replay.replay_line(once, line("sokoban.team.success"))
    assert made is not None
    assert (made["name"], made["value"], made["of"], made["n"]) == ("replay.sokoban.team.success", 1, "abc1234", 2)
    assert made["command"] == "python bench/replay.py sokoban.team.success --steps 2 --tasks 4 --write"
    replay.replay_line(once, line("sokoban.base.success"))
    assert len(trained) == 2
    assert once.is_equal(Training("sokoban", ("evaluate.first=2000", "train.seed=3")), "abc1234")
    assert replay.replay_line(once, line("worth.relay.gain")) is None
