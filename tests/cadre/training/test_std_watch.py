"""A role whose samples are all worth the same, or that never acts, is told of once, after some steps."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from cadre.config.resolve import resolve
from cadre.runs.folder import Run
from cadre.training.loop import AbsentRoleMonitor, ZeroVarianceMonitor, run_training
from tests.helpers.training import configured


def test_only_a_row_of_such_steps_counts_and_every_role_is_told_of_once() -> None:
    watch = ZeroVarianceMonitor(patience=3)
    shares = [1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0]
    said = [watch.warnings({"tool/zero_variance_groups": share, "tool/reward": 1.0}) for share in shares]
    assert [len(paragraphs) for paragraphs in said] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert "tool learned nothing in the last 3 steps" in said[5][0]


def test_roles_are_counted_apart() -> None:
    watch = ZeroVarianceMonitor(patience=2)
    names = ("tool/zero_variance_groups", "planner/zero_variance_groups")
    assert watch.warnings(dict.fromkeys(names, 1.0)) == []
    (only,) = watch.warnings(dict(zip(names, (0.0, 1.0), strict=True)))
    assert only.startswith("warning: planner learned nothing")


def test_a_role_that_never_acts_is_told_of_once() -> None:
    watch = AbsentRoleMonitor(("anna", "coach", "late"), patience=3)
    steps = [{"anna/tokens": 1.0}, {}, {"late/tokens": 2.0}, {}, {}, {}, {}]
    said = [watch.warnings(step) for step in steps]
    assert [len(paragraphs) for paragraphs in said] == [0, 0, 1, 0, 0, 0, 0]
    assert said[2][0].startswith("warning: coach has not acted in 3 steps, and a role that never acts is not trained.")


def test_a_training_prints_it_once(speaker: Path, tmp_path: Path) -> None:
    """A group of one sample has no std, whatever it is paid."""
    console = Console(width=80, record=True, quiet=False, file=StringIO())
    axes = {
        "shape": "independent",
        "returns": "reward_to_go",
        "group": "task_role",
        "baseline": "mean",
        "scale": "none",
    }
    chosen = configured(speaker, algorithm={"name": "custom", "k": 1, **axes}, train={"steps": 7, "tasks_per_step": 1})
    run = Run.create(tmp_path / "run", chosen)
    run_training(resolve(chosen), run, console)
    printed = " ".join(console.export_text().split())
    assert printed.count("speaker learned nothing in the last 5 steps") == 1
    assert "has not acted" not in printed
