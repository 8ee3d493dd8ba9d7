"""A role whose samples are all worth the same, or that never acts, is told of once, after some steps."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from bench.parity.trees import leaf, node
from cadre.advantages.groups import AdvantageGroup
from cadre.advantages.returns import samples_of
from cadre.config.resolve import resolve
from cadre.runs.folder import Run
from cadre.training.loop import RoleMonitor, run_training
from cadre.types import Task, Tree
from tests.helpers.training import configured


def test_only_a_row_of_such_steps_counts_and_every_role_is_told_of_once() -> None:
    watch = RoleMonitor([], patience=3)
    shares = [1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0]
    said = [watch.warnings({"tool/zero_variance_groups": share, "tool/reward": 1.0}, []) for share in shares]
    assert [len(paragraphs) for paragraphs in said] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert "tool learned nothing in the last 3 steps" in said[5][0]


def test_roles_are_counted_apart() -> None:
    watch = RoleMonitor([], patience=2)
    names = ("tool/zero_variance_groups", "planner/zero_variance_groups")
    assert watch.warnings(dict.fromkeys(names, 1.0), []) == []
    (only,) = watch.warnings(dict(zip(names, (0.0, 1.0), strict=True)), [])
    assert only.startswith("warning: planner learned nothing")


def compared(**advantages: tuple[float, ...]) -> AdvantageGroup:
    """A group of samples of these roles with these advantages."""
    siblings = {role: len(values) for role, values in advantages.items()}
    tree = Tree(Task("t", {}), node(0, siblings, [leaf(dict.fromkeys(siblings, 0))]))
    values = (value for values in advantages.values() for value in values)
    samples = [replace(scored, advantages=(value,)) for scored, value in zip(samples_of([tree]), values, strict=True)]
    return AdvantageGroup((), tuple(samples), 1.0, 1.0)


def test_a_role_whose_advantages_have_one_sign_is_told_of_once() -> None:
    """The pilot is rewarded less than the lookout: right or wrong, all its completions become less likely."""
    watch = RoleMonitor(["pilot"], patience=2)
    one_sign = [compared(lookout=(0.9, 0.3), pilot=(-0.4, -0.8, 0.0))]
    both = [*one_sign, compared(lookout=(0.1,), pilot=(0.2,))]
    zeros = [compared(lookout=(0.0,), pilot=(0.0,))]
    steps = (one_sign, both, one_sign, zeros, one_sign, one_sign, one_sign)
    told = [watch.warnings({"pilot/tokens": 1.0}, step) for step in steps]
    assert [len(paragraphs) for paragraphs in told] == [0, 0, 0, 0, 0, 1, 0]
    assert told[5][0].startswith("warning: all advantages of pilot were negative in the last 2 steps")
    assert "algorithm=grpo_by_role" in told[5][0]


def test_a_role_that_is_compared_with_itself_is_not_told_of() -> None:
    """Samples of one role have one sign where completions that are cut off are left out, or without a baseline."""
    acted = {"pilot/tokens": 1.0, "lookout/tokens": 1.0}
    watch = RoleMonitor(["pilot", "lookout"], patience=1)
    assert watch.warnings(acted, [compared(pilot=(0.5, 0.25)), compared(lookout=(0.5,))]) == []
    watch = RoleMonitor(["lookout"], patience=1)
    assert watch.warnings(acted, [compared(lookout=(0.9,), pilot=(-0.9,))])[0].count("positive") == 1


def test_a_role_that_never_acts_is_told_of_once() -> None:
    watch = RoleMonitor(("anna", "coach", "late"), has_teacher=True, patience=3)
    steps = [{"anna/tokens": 1.0}, {}, {"late/tokens": 2.0}, {}, {}, {}, {}]
    said = [watch.warnings(step, []) for step in steps]
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
