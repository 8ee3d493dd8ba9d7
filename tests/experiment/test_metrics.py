"""Metrics of groups, by hand."""

import pytest

from cadre.advantages.credit import Credit
from cadre.experiment import metrics
from cadre.types import Task, Tree
from tests.advantages.trees import assign, inner, leaf, node


def test_the_share_of_groups_without_std_by_role() -> None:
    """The tool's siblings are paid alike in both trees; the planner's differ in one of two."""

    def planned(*pays: float) -> Tree:
        planner = node(0, {"planner": 2}, [leaf({"planner": index}, pay) for index, pay in enumerate(pays)])
        return Tree(Task("t", {}), node(0, {"tool": 2}, [leaf({"tool": 0}), inner({"tool": 1}, planner)]))

    groups = assign([planned(0.0, 1.0), planned(1.0, 1.0)], Credit("step", "node", "mean", "std"))
    assert metrics.of_groups(groups) == pytest.approx(
        {
            "tool/groups_without_std": 1.0,
            "planner/groups_without_std": 0.5,
            "rollout/groups_without_std": 0.75,
            "tool/groups_without_std/0": 1.0,
            "planner/groups_without_std/1": 0.5,
        }
    )
    assert metrics.of_groups([]) == {}
