"""The comparison of runs: intervals over seeds and tasks, grouping into methods, and what is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cadre.cli.app import app
from cadre.config.experiment import load
from cadre.errors import ConfigError, RunError
from cadre.runs.folder import Run
from cadre.statistics import rate_interval
from cadre_analysis.compare import (
    compare_runs,
    difference_interval,
    format_comparison,
    student_quantile,
    table_interval,
    widen_seed_effects,
)

TASKS = [f"task-{number}" for number in range(8)]


def write_run(
    folder: Path, overrides: list[str], outcomes: dict[int, list[float]], digest: str = "d", step_tokens: int = 100
) -> Path:
    """Write a run folder with an evaluation by step: the success of each task, which is its reward too."""
    folder.mkdir(parents=True)
    run = Run(folder, load("plan-path", overrides))
    run.write_config(run.config)
    for step in range(max(outcomes)):
        with (folder / "metrics.jsonl").open("a") as lines:
            lines.write(json.dumps({"step": step, "rollout/tokens": step_tokens}) + "\n")
    for step, values in outcomes.items():
        by_task = {task: [value, value] for task, value in zip(TASKS, values, strict=False)}
        report = {"step": step, "success": 0.5, "reward": 0.5, "outcomes": by_task, "tasks_sha256": digest}
        with (folder / "evaluations.jsonl").open("a") as lines:
            lines.write(json.dumps(report) + "\n")
    return folder


HALF, ALL, NONE = [1.0, 0.0] * 4, [1.0] * 8, [0.0] * 8


def test_few_seeds_widen_the_deviations_of_their_means() -> None:
    # Means of the seeds 0, 0.5 and 1, of all 0.5; sqrt(3 / 2) * 4.303 / 1.96 = 2.6889.
    widened = widen_seed_effects(np.array([NONE, HALF, ALL]))
    factor = math.sqrt(1.5) * 4.302653 / 1.959964
    assert widened.mean(axis=1) == pytest.approx([0.5 - 0.5 * factor, 0.5, 0.5 + 0.5 * factor])
    assert widened.mean() == pytest.approx(0.5)
    assert widened[1] == pytest.approx(HALF)  # what a seed does on a task, beside its mean, stays


@pytest.mark.parametrize(
    ("confidence", "degrees", "quantile"),
    # Of printed tables of Student's t; with one degree of freedom tan(pi / 2 * confidence).
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 7, 2.365), (0.95, 10, 2.228), (0.95, 60, 2.000), (0.975, 4, 3.495)],
)
def test_students_quantiles_are_those_of_the_tables(confidence: float, degrees: int, quantile: float) -> None:
    assert student_quantile(confidence, degrees) == pytest.approx(quantile, abs=6e-4)


def test_an_interval_over_seeds_and_tasks_holds_the_truth_as_often_as_it_says() -> None:
    """Three seeds of 40 tasks, with effects of both and noise of each pair, 600 times; an interval over tasks alone
    would hold the mean in half of them."""
    generator = np.random.default_rng(1)
    covered = held_by_tasks_alone = 0
    for _ in range(600):
        difference = (
            generator.normal(0, 0.1, (3, 1)) + generator.normal(0, 0.3, (1, 40)) + generator.normal(0, 0.3, (3, 40))
        )
        _, low, high = table_interval(difference, generator, 400, tables=(difference,))
        covered += low <= 0.0 <= high
        _, low, high = table_interval(difference.mean(axis=0, keepdims=True), generator, 400)
        held_by_tasks_alone += low <= 0.0 <= high
    assert 0.92 <= covered / 600 <= 0.995
    assert held_by_tasks_alone / 600 < 0.85


def test_pairing_takes_out_what_two_methods_share() -> None:
    generator = np.random.default_rng(2)
    shared = generator.normal(0, 1, (4, 60))
    first, second = shared + generator.normal(0, 0.05, (4, 60)), shared + 0.2 + generator.normal(0, 0.05, (4, 60))
    intervals = {
        pairs: difference_interval(second, first, np.random.default_rng(3), *pairs)
        for pairs in ((True, True), (False, True), (False, False))
    }
    widths = [high - low for _, low, high in intervals.values()]
    assert widths == sorted(widths)
    assert widths[0] < 0.5 * widths[1]
    for value, low, high in intervals.values():
        assert value == pytest.approx((second - first).mean())
        assert low < value < high


def test_equal_outcomes_have_the_interval_over_tasks_alone() -> None:
    """Three seeds that solve the same tasks say no more of other tasks than one does: Wilson's interval."""
    generator = np.random.default_rng(0)
    solved, failed = np.ones((3, 8)), np.zeros((3, 8))
    result = table_interval(solved, generator)
    assert result == pytest.approx((1.0, 8 / (8 + 3.841459), 1.0))
    assert result == pytest.approx(table_interval(solved[:1], generator))

    # A difference d in [-1, 1] is the rate (d + 1) / 2. Of eight rates of 0.5: 0.5 -+ (3.841459 / 2) / (8 + 3.841459).
    result = difference_interval(solved, solved, generator, paired_seeds=True, paired_tasks=True)
    assert result == pytest.approx((0.0, -3.841459 / 11.841459, 3.841459 / 11.841459))
    result = difference_interval(solved, failed, generator, paired_seeds=True, paired_tasks=True)
    assert result == pytest.approx((1.0, 2 * 8 / 11.841459 - 1, 1.0))

    # Unpaired: 1 - sqrt(a^2 + b^2) with a = b = 3.841459 / 11.841459, what either bound is away from its rate.
    result = difference_interval(solved, failed, generator, paired_seeds=False, paired_tasks=False)
    assert result == pytest.approx((1.0, 1 - 2**0.5 * 3.841459 / 11.841459, 1.0))


def test_equal_rewards_have_the_interval_of_one_more_task() -> None:
    result = table_interval(np.full((3, 8), 2.0), np.random.default_rng(0))
    assert result == pytest.approx((2.0, 2 - 2 / 9, 2 + 2 / 9))


def test_seeds_that_differ_widen_the_interval_over_tasks() -> None:
    rates = np.array([[1.0] * 8, [1.0] * 4 + [0.0] * 4, [0.0] * 8])
    _, low, high = table_interval(rates, np.random.default_rng(0))
    single = rate_interval(rates.mean(axis=0).tolist())
    assert low < single[1]
    assert high > single[2]


def test_runs_that_differ_in_their_seed_are_one_method(tmp_path: Path) -> None:
    team = [write_run(tmp_path / f"team-{seed}", [f"train.seed={seed}"], {0: NONE, 5: ALL}) for seed in (1, 0)]
    lone = [
        write_run(
            tmp_path / f"lone-{seed}",
            [f"train.seed={seed}", "algorithm=grpo", "train.trees_kept=1"],
            {0: NONE, 5: HALF},
        )
        for seed in (0, 1)
    ]
    comparison = compare_runs([*team, *lone])
    first, second = comparison.methods
    assert (first.name, second.name) == ("algorithm=at_grpo", "algorithm=grpo")
    assert first.seeds == second.seeds == (0, 1)
    assert first.folders == (str(team[1]), str(team[0]))
    assert (first.value[0], second.value[0], second.before[0], second.gain[0]) == (1.0, 0.5, 0.0, 0.5)  # type: ignore[index]
    assert first.tokens == (500.0, 500.0)
    assert second.by_seed == (0.5, 0.5)
    assert "algorithm=grpo by seed: 50.0% (seed 0), 50.0% (seed 1)" in format_comparison(comparison)
    assert [(step, tokens) for step, tokens, _ in first.curve] == [(0, 0.0), (5, 500.0)]
    (difference,) = comparison.differences
    assert difference.value[0] == pytest.approx(-0.5)
    assert difference.paired_seeds
    assert difference.paired_tasks
    assert comparison.tasks == 8


def test_the_evaluation_is_chosen_by_step_by_success_or_by_tokens(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], {0: NONE, 2: ALL, 4: HALF})
    assert compare_runs([run]).methods[0].value[0] == 0.5
    assert compare_runs([run], at="best").methods[0].value[0] == 1.0
    assert compare_runs([run], at="2").methods[0].steps == (2,)
    assert compare_runs([run], max_tokens=399).methods[0].tokens == (200.0,)
    with pytest.raises(RunError, match=r"no evaluation at 3; expected one of step 0 \(0 tokens\), step 2"):
        compare_runs([run], at="3")


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], {0: NONE, 2: ALL})
    twin = write_run(tmp_path / "twin", [], {0: NONE, 2: ALL})
    with pytest.raises(RunError, match="the same settings and the same seed, 0"):
        compare_runs([run, twin])
    fewer = write_run(tmp_path / "fewer", ["algorithm=grpo"], {0: NONE[:5], 2: ALL[:5]})
    with pytest.raises(RunError, match="8 and 5 tasks, 5 of them the same"):
        compare_runs([run, fewer])
    assert compare_runs([run, fewer], unpaired=True).differences[0].value[0] == 0.0
    second = write_run(tmp_path / "other", ["algorithm=grpo"], {0: NONE, 2: ALL}, digest="e")
    with pytest.raises(RunError, match="the same names and other contents"):
        compare_runs([run, second])
    old = write_run(tmp_path / "old", [], {0: []})
    with pytest.raises(RunError, match="no outcomes by task"):
        compare_runs([old])
    (empty := tmp_path / "empty").mkdir()
    Run(empty, load("plan-path")).write_config(load("plan-path"))
    with pytest.raises(RunError, match="holds no evaluation"):
        compare_runs([empty])


def test_a_failed_episode_counts_as_the_least_reward(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], {0: HALF})
    lines = (run / "evaluations.jsonl").read_text().replace('"task-0": [1.0, 1.0]', '"task-0": [0.0, null]')
    (run / "evaluations.jsonl").write_text(lines)
    assert compare_runs([run], measure="reward").methods[0].value[0] == pytest.approx(3 / 8)


def test_the_command_prints_methods_and_their_differences(tmp_path: Path) -> None:
    team = write_run(tmp_path / "team", [], {0: NONE, 5: ALL})
    lone = write_run(tmp_path / "lone", ["algorithm=grpo"], {0: NONE, 5: HALF}, step_tokens=200)
    result = CliRunner().invoke(app, ["compare", str(team), str(lone)])
    assert result.exit_code == 0, result.output
    assert "algorithm=at_grpo\n  seeds           1\n  before          0.0% [0.0, " in result.output
    assert "algorithm=grpo - algorithm=at_grpo: -50.0% [" in result.output
    assert "one seed" in result.output
    assert "--max-tokens" in result.output
    report = json.loads(CliRunner().invoke(app, ["compare", str(team), str(lone), "--json"]).output)
    assert report["methods"][0]["value"][0] == 1.0
    inner = CliRunner().invoke(app, ["compare", str(team), str(lone), "--max-tokens", "600"]).output
    assert "algorithm=grpo: compared before training, as no later evaluation is within" in " ".join(inner.split())
    assert "compares at equal ones" not in " ".join(inner.split())
    for wrong in (["--at", "later"], ["--measure", "loss"]):
        assert CliRunner().invoke(app, ["compare", str(team), *wrong]).exit_code != 0
    with pytest.raises(ConfigError, match="measure: got succes; expected success or reward"):
        compare_runs([team], measure="succes")
    with pytest.raises(ConfigError, match="at: got final; expected last, best"):
        compare_runs([team], at="final")


def test_runs_of_different_code_are_told_of(tmp_path: Path) -> None:
    """Mistake: the environment was mended between two runs, and the mend is taken for the effect of a setting."""
    first = write_run(tmp_path / "a", ["train.seed=1"], {0: HALF, 2: ALL})
    second = write_run(tmp_path / "b", ["train.seed=2"], {0: HALF, 2: ALL})
    for folder, commit in ((first, "aaa"), (second, "aaa")):
        (folder / "environment.json").write_text(json.dumps({"commits": {"cadre": commit}}))
    assert compare_runs([first, second]).code == ("cadre aaa",)
    assert not any("different code" in line for line in format_comparison(compare_runs([first, second])))
    (second / "environment.json").write_text(json.dumps({"commits": {"cadre": "aaa", "here": "bbb+"}}))
    printed = " ".join(format_comparison(compare_runs([first, second])))
    assert "trained by different code (cadre aaa; cadre aaa, here bbb+)" in printed


def test_of_equal_evaluations_the_best_has_the_higher_reward(tmp_path: Path) -> None:
    """This equals the run's own best checkpoint: where nobody solves a task the untrained weights were the best."""
    run = write_run(tmp_path / "run", [], {0: NONE, 2: NONE, 4: NONE})
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    for line, reward in zip(lines, (0.1, 0.7, 0.4), strict=True):
        line["reward"] = reward
    (run / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert compare_runs([run], at="best").methods[0].steps == (2,)


def test_forks_and_seeds_that_are_not_equally_far_are_told_of(tmp_path: Path) -> None:
    """A fork with another seed was a seed of its own, also one that had not trained a step yet."""
    full = write_run(tmp_path / "a", ["train.seed=1"], {0: NONE, 4: ALL})
    fork = write_run(tmp_path / "b", ["train.seed=2"], {0: NONE, 2: HALF})
    single = " ".join(format_comparison(compare_runs([full])))
    assert "fork" not in single
    assert "different numbers of steps" not in single
    (fork / "command.json").write_text(json.dumps({"recipe": "plan-path", "overrides": [], "forked_at": 2}))
    comparison = compare_runs([full, fork])
    assert comparison.forks == ((str(fork), 2),)
    printed = " ".join(format_comparison(comparison))
    assert "evaluated after different numbers of steps: 4 (seed 1), 2 (seed 2)" in printed
    assert "is a fork that shares the training of another run up to step 2" in printed
