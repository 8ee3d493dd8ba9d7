"""Differences between two runs: which count, and which do not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import repeat

WEIGHTS = Path("checkpoints/step-000002/p/model.safetensors")


def run(folder: Path, seconds: float, reward: float = 1.0, weights: bytes = b"w", steps: int = 2) -> Path:
    (folder / WEIGHTS).parent.mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(weights)
    metrics = [
        {"step": step, "reward": reward, "time/sample_s": seconds, "p/tokens_per_s": 9 / seconds} for step in (0, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics[:steps]))
    (folder / "trees.jsonl").write_text(json.dumps({"step": 0, "root": {}}) + "\n")
    return folder


def test_times_alone_may_differ(tmp_path: Path) -> None:
    assert repeat.differences(run(tmp_path / "a", 1.0), run(tmp_path / "b", 2.0)) == []


def test_a_checkpoint_of_before_the_last_evaluation_lacks_its_score_only(tmp_path: Path) -> None:
    folders = [run(tmp_path / name, 1.0) for name in "abc"]
    states = [{"step": 2, "best": 0.5, "best_step": 2}, {"step": 2, "best": 0.1, "best_step": 0}, {"step": 3}]
    for number, (folder, state) in enumerate(zip(folders, states, strict=True)):
        (folder / "checkpoints" / "step-000002" / "state.json").write_text(json.dumps(state))
        (folder / "checkpoints" / "step-000002" / "manifest.json").write_text(f"hashes {number}")
    assert repeat.differences(*folders[:2]) == []
    assert repeat.differences(folders[0], folders[2]) == ["checkpoints/step-000002/state.json"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"reward": 2.0}, ["metrics.jsonl:1", "metrics.jsonl:2"]),
        ({"steps": 1}, ["metrics.jsonl:2"]),
        ({"weights": b"v"}, [str(WEIGHTS)]),
    ],
)
def test_everything_else_is_a_difference(tmp_path: Path, change: dict, named: list[str]) -> None:
    assert repeat.differences(run(tmp_path / "a", 1.0), run(tmp_path / "b", 1.0, **change)) == named


def test_runs_without_weights_are_not_equal(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    assert repeat.differences(tmp_path / "a", tmp_path / "b") == ["checkpoints without weights"]


def test_busy_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments: started.append(popen(*arguments)) or started[-1])
    with repeat.busy(2):
        assert [process.poll() for process in started] == [None, None]
    assert all(process.poll() is not None for process in started)
