"""Reward parts by hand: a step that does not have a part counts as 0, in evaluations and in the metrics of a step."""

from dataclasses import replace

import pytest

from cadre.experiment import metrics
from cadre.experiment.report import mean_parts, summarise
from cadre.types import Branch, Node, Reward, Task, Tree
from tests.advantages.trees import node


def branch(parts: dict[str, float], child: Node | None = None, carried: bool = True) -> Branch:
    return Branch({"coder": 0}, Reward(parts=parts), child is None, False, carried, child)


def tree(root: Node) -> Tree:
    return Tree(Task("t", {}), root)


def draft_then_tests() -> Node:
    """Two steps: a draft, which has no parts, and a program that passes half of the tests."""
    return node(0, {"coder": 1}, [branch({}, node(1, {"coder": 1}, [branch({"tests": 0.5})]))])


def test_a_part_is_the_mean_over_all_steps_of_an_episode() -> None:
    assert summarise([tree(draft_then_tests())], 1, 0).parts == {"tests": 0.25}


def test_episodes_weigh_alike_however_long_they_are() -> None:
    short = node(0, {"coder": 1}, [branch({"tests": 1.0, "builds": 0.1})])
    parts = summarise([tree(draft_then_tests()), tree(short)], 2, 0).parts
    assert parts == pytest.approx({"tests": (0.25 + 1.0) / 2, "builds": 0.05})


def test_the_metrics_of_a_step_count_every_step_of_the_environment() -> None:
    below = node(1, {"coder": 1}, [branch({"tests": 0.5})])
    left_behind = replace(branch({"tests": 1.0}), choice={"coder": 1}, carried=False)
    trees = [tree(node(0, {"coder": 2}, [branch({}, below), left_behind]))]
    assert metrics.of_trees(trees, alpha=1.0)["parts/tests"] == pytest.approx((0.0 + 0.5 + 1.0) / 3)


def test_no_parts_at_all() -> None:
    assert mean_parts([{}, {}]) == {}
