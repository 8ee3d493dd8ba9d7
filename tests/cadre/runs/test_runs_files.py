"""Files of a run that have no end, are too large, or hold numbers that JSON does not have."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadre.config.recipes import find_roots
from cadre.errors import RunError
from cadre.rollout.episodes import Failure, SampledTrees
from cadre.runs import jsonl
from cadre.runs.folder import Run
from cadre.runs.trackers import Trackers
from cadre.training.asynchronous import SAMPLED_STEPS, SampledStep, read_sampled_steps, write_sampled_steps
from cadre.types import Task
from tests.cadre.cli.calling import call
from tests.helpers.training import configured

SECONDS = 60
GIB = 1 << 30


@pytest.fixture(autouse=True)
def _ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What does not end fails its test."""
    monkeypatch.chdir(tmp_path)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)


def strict(text: str) -> Any:
    """What a parser returns that takes JSON alone."""

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def run(speaker: Path, tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", configured(speaker, trackers={"names": []}))


@pytest.mark.parametrize("kind", ["pipe", "device", "large", "deep", "list", "numbers"])
def test_where_a_run_was_begun_is_read_up_to_a_size(kind: str, run: Run) -> None:
    path = run.folder / "command.json"
    assert find_roots(run.folder) is not None
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "large":
        path.touch()
        os.truncate(path, 8 * GIB)
    else:
        texts = {"deep": "[" * 200_000, "list": "[]", "numbers": '{"root": 1, "run": 2}'}
        path.write_text(texts[kind])
    assert find_roots(run.folder) is None


def lengthen(path: Path) -> None:
    """Let a file be of 2 GiB; its holes take no space on the disk."""
    os.truncate(path, 2 * GIB)


def test_metrics_that_would_fill_the_memory_are_refused_where_they_are_read_at_once(run: Run) -> None:
    for step in range(3):
        run.log(step, {"rollout/tokens": 1.0})
    run.log_evaluation(0, {"success": 0.5, "reward": 0.5})
    lengthen(run.folder / "metrics.jsonl")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for arguments in (["report", "run"], ["view", "run", "--export", "page.html"]):
        done = call(*arguments)
        assert done.code == 2
        assert "metrics.jsonl: it holds 2 GiB; expected at most 512 MiB" in done.err
        assert len(done.err.splitlines()) == 1
    lengthen(run.folder / "evaluations.jsonl")
    with pytest.raises(RunError, match="expected at most 512 MiB"):
        run.evaluations()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
    assert not Path("page.html").exists()
    assert not Path("report.md").exists()


def test_what_goes_through_them_line_by_line_holds_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run that is resumed does: it may be as long as it likes."""
    monkeypatch.setattr(jsonl, "MAX_BYTES", 100)
    for step in range(9):
        run.log(step, {"rollout/tokens": 2.0})
    with pytest.raises(RunError, match="expected at most 100 bytes"):
        run.metrics()
    assert run.total("rollout/tokens") == 18.0
    assert list(run.steps_logged()) == list(range(9))
    run.rewind(4)
    assert list(run.steps_logged()) == list(range(4))


def test_trackers_are_told_an_evaluation_before_the_step_of_its_number(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(3):
        run.log_evaluation(step, {"success": 0.5, "reward": 0.5})
        run.log(step, {"rollout/tokens": 2.0})
    told: list[tuple[int, str]] = []
    monkeypatch.setattr(Trackers, "draw", lambda self, step, numbers: told.append((step, min(numbers))))
    run.rewind(2)
    pairs = [[(step, "evaluate/reward"), (step, "rollout/tokens")] for step in range(2)]
    assert told == [*pairs[0], *pairs[1], (2, "evaluate/reward")]


def test_steps_in_flight_are_json_and_come_back_number_for_number(tmp_path: Path) -> None:
    data = {"a": math.inf, "b": [-math.inf, 1.5, {"c": math.nan}], "number that is not finite": "nan", "d": 2}
    failed = Failure(Task("t", data), "raised", "ValueError", "Traceback", True)
    write_sampled_steps(tmp_path, (SampledStep(3, SampledTrees([], [failed], 2), 0.25),))
    strict((tmp_path / SAMPLED_STEPS).read_text())
    ((back,),) = [step.sampled.failures for step in read_sampled_steps(tmp_path)]
    assert repr(back.task.data) == repr(data)
