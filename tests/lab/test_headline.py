"""The headline's benchmark: every method's recipe is sound, and finished runs become lines, without a real model."""

import json
from pathlib import Path

import pytest

from cadre.config.experiment import load
from lab import headline as bench
from lab.headline import METHODS, TASKS, Headline
from tests.cadre_analysis.test_compare import ALL, NONE, write_run
from tests.cadre_analysis.test_compare import TASKS as NAMES

TRAINED = [method for method in METHODS if method != "best-of-n"]


def headline_of(runs: Path) -> Headline:
    """Return a headline over eight held-out tasks, whose model need not be there."""
    return Headline(runs / "coder", runs, tokens=1000, held_out=8, every=0, changes=(), data=str(runs))


@pytest.mark.parametrize("task", TASKS)
def test_all_methods_share_tasks_prompts_and_sampling(task: str, tmp_path: Path) -> None:
    line, benchmark = headline_of(tmp_path), TASKS[task]
    forms = {method: benchmark.single if method in ("grpo", "single") else benchmark.team for method in TRAINED}
    configs = {name: load(f"{form}-{bench.RATES}", line.settings(task, name, 0)) for name, form in forms.items()}
    first = configs["L0"]
    for config in configs.values():
        assert (config.settings, config.sampling, config.learner) == (first.settings, first.sampling, first.learner)
        assert (config.train, config.evaluate) == (first.train, first.evaluate)
        assert all(policy.model == str(tmp_path / "coder") for policy in config.team.policies.values())
    assert [len(configs[name].team.policies) for name in TRAINED] == [1, 2, 2, 1, 1]
    assert configs["single"].algorithm == first.algorithm != configs["grpo"].algorithm
    assert first.settings.get("source") == (str(tmp_path) if benchmark.reads_data else None)


TASK = "sudoku-outcome"


def test_finished_runs_become_lines_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds of a team that learns and of an agent that does not; two untrained episodes solve three tasks of 8."""
    line = headline_of(tmp_path)
    for seed in (0, 1):
        for method, final in (("L0", ALL), ("grpo", NONE)):
            folder = line.folder(TASK, method, seed)
            changes = [f"train.seed={seed}"] + (["algorithm={name: grpo, k: 8}"] if method == "grpo" else [])
            write_run(folder, changes, {0: NONE, 1: final})
            folder.with_suffix(".done").write_text(json.dumps({"commit": "abc1234"}))
        samples = line.folder(TASK, "best-of-n", seed)
        samples.mkdir(parents=True)
        for part, solved in enumerate(({0, 1}, {1, 2})):
            outcomes = {name: [float(number in solved), 0.0] for number, name in enumerate(NAMES)}
            (samples / f"{part}.json").write_text(json.dumps({"outcomes": outcomes}))
        (samples / "n.json").write_text(json.dumps({"n": 2, "parts": [1, 1]}))
    lines: dict[str, dict[str, object]] = {}
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "append_line", lambda file, item: lines.update({item["name"]: item | {"file": file}}))
    bench.record_task(line, TASK, METHODS, (0, 1), "the command")
    start = "headline.sudoku-outcome.coder."
    values = {name.removeprefix(start): item["value"] for name, item in lines.items()}
    assert values == {
        "L0.before.success": 0.0,
        "L0.success": 1.0,
        "grpo.before.success": 0.0,
        "grpo.success": 0.0,
        "grpo - L0": -1.0,
        "best-of-2.success": 0.375,
    }
    step = {"step": 0, "rollout/tokens": 1500, "parts/tests": 0.25, "main/reward": 1.5, "aux/reward": 0, "lr": 7.0}
    step |= {"aux/gradient_fraction": 0.7}
    for seed in (0, 1):
        (line.folder(TASK, "L0", seed) / "metrics.jsonl").write_text((json.dumps(step) + "\n") * 2)
    bench.write_curves(line, TASK, ("L0", "best-of-n"), (0, 1), "the command")
    written = (tmp_path / "headline-sudoku-outcome-coder.md").read_text()
    table = (
        "## L0, seed 1\n\nBy `the command`.\n\n| step | tokens | parts/tests | main/reward | aux/gradient_fraction |\n"
    )
    assert table in written
    assert "| 2 | 3,000 | 0.25 | 1.5 | 0.7 |" in written
    # A later call with another method leaves these tables as they are.
    (line.folder(TASK, "grpo", 1) / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    bench.write_curves(line, TASK, ("grpo",), (1,), "another command")
    both = (tmp_path / "headline-sudoku-outcome-coder.md").read_text()
    assert both.startswith(written)
    assert "\n\n## grpo, seed 1\n\nBy `another command`.\n" in both
    assert all(line["file"] == "headline" and line["commit"] == "abc1234" for line in lines.values())
