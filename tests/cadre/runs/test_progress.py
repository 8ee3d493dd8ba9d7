"""The time that is left, by hand, and lines that fit a terminal."""

import io
import re
import time

import pytest
from rich.console import Console

from cadre.evaluation.evaluate import Report
from cadre.runs.progress import EvaluationProgress, Progress, format_seconds
from cadre.team import SamplingActivity
from cadre.types import Sample


def test_time_left_by_steps() -> None:
    progress = Progress(Console(quiet=True), steps=10, start=4)
    progress.took(tokens=100.0, seconds=2.0)
    assert progress.left(5) == 10.0  # 5 steps of 2 s
    progress.took(tokens=100.0, seconds=4.0)
    assert progress.left(6) == 12.0  # 4 steps of 3 s


def test_time_left_by_tokens_where_these_end_first() -> None:
    progress = Progress(Console(quiet=True), steps=100_000, max_tokens=1_000, spent=300.0)
    progress.took(tokens=100.0, seconds=2.0)
    assert progress.left(1) == 12.0  # 600 tokens at 50 a second
    progress.took(tokens=300.0, seconds=2.0)
    assert progress.left(2) == 3.0  # 300 tokens, 200 a step, 2 s a step
    progress.took(tokens=800.0, seconds=2.0)
    assert progress.left(3) == 0.0


def lines_of(steps: int, label: str = "success", **rewards: float) -> list[str]:
    """What the last step of a run prints."""
    out = io.StringIO()
    progress = Progress(Console(file=out, soft_wrap=True), steps=steps, start=steps - 1, success_label=label)
    metrics = {f"{role}/reward": value for role, value in rewards.items()} | {"parts/goal": 1.0, "parts/x/reward": 2.0}
    counts = {"rollout/success": 0.69, "rollout/tokens": 40_000.0, "rollout/failures": 0.0}
    progress.step(steps - 1, metrics | counts | {"time/wait_s": 3.0, "time/learn_s": 1.0})
    return out.getvalue().splitlines()


def test_a_step_of_one_role_is_one_line() -> None:
    (line,) = lines_of(100, solver=-0.24)
    assert line == "step 100/100  reward solver -0.24  success 69%  0 s left"


def test_a_step_of_two_roles_is_one_line() -> None:
    (line,) = lines_of(100, tool=-0.24, planner=0.11)
    assert line == "step 100/100  reward tool -0.24, planner +0.11  success 69%  0 s left"


def test_the_success_of_selected_paths_has_its_name() -> None:
    (line,) = lines_of(30, "best-of-8", tool=-0.24, planner=0.11)
    assert line == "step 30/30  reward tool -0.24, planner +0.11  best-of-8 69%  0 s left"


def test_a_mixture_has_the_success_of_each_environment_and_a_curriculum_its_level() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, soft_wrap=True), steps=1, environments=["sudoku", "maths", "absent"])
    counts = {"rollout/success": 0.5, "rollout/tokens": 40.0, "time/wait_s": 3.0, "time/learn_s": 1.0}
    solved = {"parts/maths/success": 0.125, "parts/sudoku/success": 1.0, "parts/other/success": 0.3}
    progress.step(0, counts | solved | {"curriculum/level": 2})
    assert " ".join(out.getvalue().split()) == (
        "step 1/1 success 50% branches solved sudoku 100%, maths 12% level 2 0 s left"
    )


def test_long_lines_are_broken_between_names() -> None:
    roles = {"requirements-planner": -10.25, "first-implementation-worker": 0.5, "second-implementation-worker": 1.0}
    assert lines_of(10_000, **roles) == [
        "step 10000/10000  reward requirements-planner -10.25,",
        "    first-implementation-worker +0.50, second-implementation-worker +1.00",
        "    success 69%  0 s left",
    ]


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("length", [1, 4, 8, 16, 32, 60])
def test_every_line_fits_in_80_columns_and_names_every_role(count: int, length: int) -> None:
    names = ["abcdefghijkl"[index] * length for index in range(count)]
    lines = lines_of(1234, **dict.fromkeys(names, -12.34))
    assert max(map(len, lines)) <= 80
    assert all(f"{name} -12.34" in "\n".join(lines) for name in names)


def test_episodes_that_failed_are_told_as_a_share() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, soft_wrap=True), steps=2)
    counts = {"rollout/success": 0.5, "rollout/tokens": 40.0, "rollout/failed": 0.375}
    progress.step(0, counts | {"one/reward": 1.0, "time/wait_s": 3.0, "time/learn_s": 1.0})
    assert "success 50%  failed 37.5%  4 s left" in out.getvalue()


@pytest.mark.parametrize(("updates", "expected"), [((0, 0), True), ((0, 1), False), ((), False)])
def test_a_step_that_moved_no_policy_says_so(updates: tuple[int, ...], expected: bool) -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, soft_wrap=True), steps=2)
    counts = {"rollout/success": 0.5, "rollout/tokens": 40.0, "time/wait_s": 3.0, "time/learn_s": 1.0}
    progress.step(0, counts | {f"policy{number}/updates": float(value) for number, value in enumerate(updates)})
    assert ("no update" in out.getvalue()) == expected


def test_a_step_whose_completions_are_all_left_out_moved_no_policy() -> None:
    """As where all are cut off, under credit.truncated=mask: no policy has sequences, and none reports updates."""
    out = io.StringIO()
    progress = Progress(Console(file=out, soft_wrap=True), steps=2)
    counts = {"rollout/success": 0.5, "rollout/tokens": 40.0, "rollout/dropped": 8}
    progress.step(0, counts | {"time/wait_s": 3.0, "time/learn_s": 1.0})
    assert "no update" in out.getvalue()


def test_programs_that_diverged_are_told_as_a_share() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, soft_wrap=True), steps=2)
    counts = {"rollout/success": 0.5, "rollout/tokens": 40.0, "rollout/divergence_rate": 0.125}
    progress.step(0, counts | {"one/reward": 1.0, "time/wait_s": 3.0, "time/learn_s": 1.0})
    assert "success 50%  diverged 12.5%  4 s left" in out.getvalue()


def test_an_evaluation_is_a_line_in_words() -> None:
    out = io.StringIO()
    report = Report(200, 1, 1.23456, 12.0, {}, {}, "", 0.0512345, 0.02, 0.1, 3.9)
    Progress(Console(file=out, soft_wrap=True), steps=2).evaluated(30, report)
    assert (
        out.getvalue() == "after 30 steps: success 5.1% [2.0%, 10.0%] on 200 held-out tasks, 0.5% failed to\n    run\n"
    )


@pytest.mark.parametrize(("seconds", "words"), [(0, "0 s"), (99, "99 s"), (720, "12 min"), (12_600, "3.5 h")])
def test_durations(seconds: float, words: str) -> None:
    assert format_seconds(seconds) == words


def test_an_evaluation_without_a_finished_task_prints_what_was_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EvaluationProgress, "LINE_SECONDS", 0.0)
    printed, activity = io.StringIO(), SamplingActivity()
    activity.count([Sample("a", "p", "text", (1,), (2, 3, 4), (0.0,) * 3, "stop", 0)] * 400)
    with EvaluationProgress(Console(file=printed, width=100)) as progress:
        progress.watch(8, activity)
        ended = time.monotonic() + 30.0
        while not printed.getvalue() and time.monotonic() < ended:
            time.sleep(0.05)
    assert re.match(r"evaluated 0/8, 1 decisions, 1,200 tokens, [\d,]+ tok/s\n", printed.getvalue())


def test_a_long_step_without_a_terminal_prints_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "LINE_SECONDS", 0.0)
    printed, counted = io.StringIO(), [Sample("a", "p", "text", (1,), (2, 3, 4), (0.0,) * 3, "stop", 0)] * 400
    with Progress(Console(file=printed, width=100), steps=3) as progress:
        progress.activity.count(counted)
        finish = progress.begin("sampling", 16)
        progress.activity.count(counted)
        finish()
        ended = time.monotonic() + 30.0
        while not printed.getvalue() and time.monotonic() < ended:
            time.sleep(0.05)
        progress.begin("learning", 1)
        assert progress.describe() == "learning 0/1"
    assert re.match(r"sampling 1/16, 1 decisions, 1,200 tokens, [\d,]+ tok/s\n", printed.getvalue())
