"""A training ends by itself: at its steps and tokens, at a success, without progress, or by the user's function."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from cadre.cli.terminal import STOPPED
from cadre.cli.train import _print_result
from cadre.errors import ContractError
from cadre.settings import TrainConfig
from cadre.training.loop import call_on_step, find_end
from tests.cadre.cli.calling import call


def run_with(successes: list[float], rewards: list[float] = [], **settings: object) -> SimpleNamespace:  # noqa: B006
    pairs = zip_longest(successes, rewards, fillvalue=0.0)
    reports = [{"step": 5 * n, "success": success, "reward": reward} for n, (success, reward) in enumerate(pairs)]
    return SimpleNamespace(train=TrainConfig(steps=100, **settings), evaluations=lambda: reports)


@pytest.mark.parametrize(
    ("successes", "settings", "ends"),
    [
        ([0.1, 0.5], {}, ""),
        ([0.1, 0.9], {"stop_at_success": 0.9}, "train.stop_at_success=0.9: the last evaluation has 90.0%"),
        ([0.1, 0.95, 0.8], {"stop_at_success": 0.9}, ""),  # the last one counts
        ([0.1, 0.4, 0.4, 0.3], {"patience": 2}, "train.patience=2: no evaluation since step 5 was better"),
        ([0.1, 0.4, 0.3, 0.5], {"patience": 2}, ""),
        ([0.4, 0.4], {"patience": 2}, ""),  # the one before training has only one behind it
        ([0.4, 0.4, 0.4], {"patience": 2}, "train.patience=2: no evaluation since step 0 was better"),
        ([0.0, 0.0, 0.0], {}, ""),
        ([0.0], {"stop_at_success": 0.0}, "train.stop_at_success=0: the last evaluation has 0.0%"),
        ([], {"stop_at_success": 0.0, "patience": 1}, ""),
    ],
)
def test_evaluations_end_a_training(successes, settings, ends):
    assert find_end(run_with(successes, **settings), 20, 0.0) == ends


@pytest.mark.parametrize(
    ("rewards", "ends"),
    [([1.0, 2.0, 3.0, 4.0], ""), ([1.0, 3.0, 2.0, 3.0], "train.patience=2: no evaluation since step 5 was better")],
)
def test_where_no_task_is_ever_solved_the_reward_counts(rewards, ends):
    assert find_end(run_with([0.0] * 4, rewards, patience=2), 20, 0.0) == ends


def test_steps_and_tokens_end_a_training():
    assert find_end(run_with([]), 100, 0.0) == "train.steps=100"
    assert find_end(run_with([], max_tokens=50), 3, 50.0) == "train.max_tokens=50"
    assert find_end(run_with([], max_tokens=50), 3, 49.0) == ""


def test_a_function_of_the_user_ends_a_training(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def stop(step, metrics):\n    metrics['rollout/success'] = 2\n    return step == 3\n"
        "def wrong(step, metrics):\n    return 'yes'\n"
        "def broken(step, metrics):\n    return metrics['absent']\n"
    )
    metrics = {"rollout/success": 0.5}
    assert [call_on_step(f"{tmp_path}/mine.py:stop", step, metrics) for step in (2, 3)] == [False, True]
    assert metrics == {"rollout/success": 0.5}  # a copy is given
    for wrong in ("numpy.array([True, False])", "(True,)", "2"):
        (tmp_path / f"{len(wrong)}.py").write_text(f"import numpy\ndef stop(step, metrics):\n    return {wrong}\n")
        with pytest.raises(ContractError, match=r"returned .*; expected True"):
            call_on_step(f"{tmp_path}/{len(wrong)}.py:stop", 1, metrics)
    with pytest.raises(ContractError, match="returned 'yes'; expected True"):
        call_on_step(f"{tmp_path}/mine.py:wrong", 1, metrics)
    with pytest.raises(ContractError, match=r"line 7 of mine\.py"):
        call_on_step(f"{tmp_path}/mine.py:broken", 1, metrics)


def test_a_run_that_ended_by_itself_is_complete(capsys):
    """Mistake: a run that ended early called stopped, with exit code 130 and an invitation to go on."""
    reports = [{"step": step, "success": step / 10, "tasks": 4} for step in (0, 2)]
    run = SimpleNamespace(train=TrainConfig(steps=9), evaluations=lambda: reports, folder=Path("runs/a"), ended="")
    with pytest.raises(typer.Exit) as stopped:
        _print_result(run, 2, 4)
    assert stopped.value.exit_code == STOPPED
    run.ended = "train.patience=2"
    capsys.readouterr()
    _print_result(run, 2, 4)
    output = capsys.readouterr().out
    assert "Ended after 2 of 9 steps by train.patience=2." in output
    assert "success on 4 held-out tasks: 0.0% before, 20.0% after" in output
    assert "cadre eval" not in output  # there are no more
    _print_result(run, 2, 5)
    assert "cadre eval runs/a --tasks 5    more held-out tasks" in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_is_ended_by_the_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def stop(step, metrics):\n    return step == 1\n")
    small = ["train.steps=9", "train.tasks_per_step=1", "evaluate.tasks=1", "algorithm.k=2"]
    result = call("train", "plan-path", "train.on_step=mine.py:stop", *small, "--run", "a")
    assert (result.code, result.err) == (0, "")
    assert "Ended after 1 of 9 steps by train.on_step (" in result.out
    assert call("train", "plan-path", "train.on_step=mine.py:absent", *small, "--run", "b").code == 2


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("async def watch(step, metrics): return True", "is an async function"),
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused_before_training(definition, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"{definition}\n")
    result = call("train", "plan-path", "train.on_step=mine.py:watch", "--run", "a")
    assert (result.code, words in result.err) == (2, True)


def test_an_end_without_evaluations_is_refused():
    result = call("train", "plan-path", "train.patience=2")
    assert result.code == 2
    assert (
        "train.patience has no effect here (it is read if evaluate.every and evaluate.tasks are above 0)" in result.err
    )
