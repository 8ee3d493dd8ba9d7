"""`cadre.compare`, `cadre.sweep`, `cadre.plot` and `cadre plot`: what is drawn, trained, skipped and resumed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import cadre
from cadre.errors import ConfigError, RunError
from cadre.notebook_html import MAX_REPR
from cadre.runs.folder import Run
from cadre_analysis import trainings
from cadre_analysis.compare import compare_runs
from cadre_analysis.plots import plot, plot_comparison
from tests.cadre.cli.calling import call
from tests.cadre_analysis.test_compare import ALL, HALF, NONE, write_run


def evaluated(folder: Path) -> Path:
    """Write a run of two steps with two evaluations, and rewards of two roles."""
    write_run(folder, ["train.steps=2"], {0: NONE, 2: HALF})
    run = Run.open(folder)
    (folder / "metrics.jsonl").unlink()
    (folder / "evaluations.jsonl").unlink()
    for step in range(2):
        run.log(step, {"tool/reward": step / 2, "planner/reward": 0.5, "parts/goal/reward": 9.0})
    for step, success in ((0, 0.25), (2, 0.75)):
        run.log_evaluation(step, {"success": success, "low": success - 0.2, "high": success + 0.2, "reward": 0.0})
    run.close()
    return folder


def test_curves_are_over_updates_done(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rewards, success = plot(evaluated(tmp_path / "one"), tmp_path / "curves.svg").axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in rewards.get_lines()}
    assert lines == {"tool": [[1, 0.0], [2, 0.5]], "planner": [[1, 0.5], [2, 0.5]]}
    assert success.get_lines()[0].get_xydata().tolist() == [[0, 0.25], [2, 0.75]]
    assert success.get_xlabel() == rewards.get_xlabel() == "updates done"
    assert (tmp_path / "curves.svg").stat().st_size > 1000
    with pytest.raises(ConfigError, match=r"plot: got .*curves\.nothing.*expected a file"):
        plot(tmp_path / "one", tmp_path / "curves.nothing")


def test_cadre_plot_overwrites_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [str(evaluated(tmp_path / name)) for name in ("one", "two")]
    picture = tmp_path / "curves.png"
    assert call("plot", *runs, "-o", str(picture)).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = call("plot", *runs, "-o", str(picture))
    assert (again.code, "exists" in again.err) == (2, True)


def test_a_comparison_shows_itself(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [
        write_run(tmp_path / "a", ["algorithm.k=2"], {0: NONE, 4: HALF}),
        write_run(tmp_path / "b", ["algorithm.k=4"], {0: NONE, 4: ALL}),
    ]
    compared = cadre.compare(runs, plot=True)
    assert compared.methods == compare_runs(runs).methods
    assert len(repr(compared)) <= MAX_REPR
    assert "k=4 100.0%" in repr(compared)
    html = compared._repr_html_()
    assert "<td>k=4</td>" in html
    assert '<img src="data:image/png;base64,' in html
    assert "<img" not in cadre.compare(runs)._repr_html_()
    labels = [line.get_label() for line in plot_comparison(compared).axes[0].get_lines()]
    assert labels == ["k=2", "k=4"]
    assert call("compare", *map(str, runs), "--plot", str(tmp_path / "m.png")).code == 0
    assert (tmp_path / "m.png").is_file()


def reward(completion: str) -> float:
    return float(completion == "Left")


def test_a_sweep_skips_what_is_trained_and_resumes_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    ends = ["", "all steps", "all steps"]

    def train_on(console, recipe, sections, folder, resume):
        calls.append((sections["train.seed"], sections["k"], resume))
        write_run(folder, [f"train.seed={sections['train.seed']}"], {0: NONE, 2: HALF}) if not resume else None
        run = SimpleNamespace(ended=ends.pop(0))
        evaluate = SimpleNamespace(config=SimpleNamespace(evaluate=SimpleNamespace(tasks=4)))
        return SimpleNamespace(
            run=run,
            experiment=evaluate,
            evaluations=lambda: [{"step": 2}],
            metrics=lambda: [{}, {}],
            close=lambda: None,
        )

    monkeypatch.setattr(trainings, "train_on", train_on)
    rows = [{"prompt": f"ship {n}"} for n in range(40)]

    def run():
        return cadre.sweep(
            over={"train.seed": [0, 1]},
            folder=tmp_path / "s",
            quiet=True,
            model="games",
            tasks=rows,
            reward=reward,
            k=4,
        )

    with pytest.raises(KeyboardInterrupt, match="the same call goes on"):
        run()
    swept = run()
    assert calls == [(0, 4, False), (0, 4, True), (1, 4, False)]
    assert list(swept.runs) == ["seed-0", "seed-1"]
    assert swept.comparison.methods[0].seeds == (0, 1)
    assert len(repr(swept)) <= MAX_REPR
    assert "<table>" in swept._repr_html_()
    assert len(run().runs) == 2
    assert len(calls) == 3
    with pytest.raises(RunError, match="Name another folder"):
        cadre.sweep(over={"train.seed": [0]}, folder=tmp_path / "s", model="games", tasks=rows, reward=reward, k=2)


def test_a_wrong_sweep_is_an_error_before_a_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"over: got .*expected for each setting a list"):
        cadre.sweep("plan-path", over={"algorithm.returns": [reward]}, folder=tmp_path / "s")
    with pytest.raises(ConfigError, match=r"algorithm\.k"):
        cadre.sweep("plan-path", over={"algorithm.k": [2, "x"]}, folder=tmp_path / "s")
    assert not (tmp_path / "s").exists()
    with pytest.raises(ConfigError, match="runs: got none"):
        cadre.compare([])
