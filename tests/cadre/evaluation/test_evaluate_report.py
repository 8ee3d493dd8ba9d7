"""Reward parts by hand, in evaluations and in the metrics of a step: which steps say a part, and which say nothing."""

from dataclasses import replace

import pytest

from bench.parity.trees import node
from cadre.evaluation.evaluate import hash_tasks, mean_parts, mean_reward, summarize
from cadre.rollout import walk
from cadre.training import metrics
from cadre.types import Branch, Node, Reward, Task, Tree


def branch(parts: dict[str, float], child: Node | None = None, carried: bool = True, role: str = "coder") -> Branch:
    return Branch({role: 0}, Reward(parts=parts), child is None, False, carried, child)


def tree(root: Node) -> Tree:
    return Tree(Task("t", {}), root)


def draft_then_tests() -> Node:
    """Two steps: a draft, which has no parts, and a program that passes half of the tests."""
    return node(0, {"coder": 1}, [branch({}, node(1, {"coder": 1}, [branch({"tests": 0.5})]))])


def test_a_draft_that_is_not_judged_says_nothing() -> None:
    assert summarize([tree(draft_then_tests())], [Task("t", {})])["parts"] == {"tests": 0.5}


def test_episodes_weigh_alike_however_long_they_are() -> None:
    short = node(0, {"coder": 1}, [branch({"tests": 1.0, "builds": 0.1})])
    long = node(0, {"coder": 1}, [branch({"tests": 0.0}, node(1, {"coder": 1}, [branch({"tests": 0.5})]))])
    parts = summarize([tree(long), tree(short)], [Task("t", {})] * 2)["parts"]
    assert parts == pytest.approx({"tests": (0.25 + 1.0) / 2, "builds": 0.1})


def test_a_part_is_averaged_over_the_steps_that_name_it() -> None:
    """A clerk that calls tools in two turns and tells in the last: turns of calls do not dilute what is told."""
    calls = [branch({"tools/calls": 3.0}), branch({"tools/calls": 1.0})]
    told = branch({"told": 1.0})
    assert mean_parts([[*calls, told]]) == {"told": 1.0, "tools/calls": 2.0}
    assert mean_parts([[*calls, told], [branch({"told": 0.5})]]) == {"told": 0.75, "tools/calls": 2.0}


def test_parts_are_the_same_in_a_step_as_in_an_evaluation() -> None:
    told = node(1, {"coder": 1}, [branch({"told": 1.0})])
    one = tree(node(0, {"coder": 1}, [branch({"tools/calls": 2.0}, told)]))
    evaluated = summarize([one], [Task("t", {})])["parts"]
    assert evaluated == {"told": 1.0, "tools/calls": 2.0}
    assert {name: metrics.tree_metrics([one], 1.0)[f"parts/{name}"] for name in evaluated} == evaluated


def test_steps_of_other_roles_say_nothing_of_a_part() -> None:
    """A tool whose program ran in one of two turns, between a planner's steps; in an episode that ends before the
    planner acts nothing is said of it."""
    tool, planner = {"ran": 1.0}, {"moves": 0.4}
    whole = [
        branch(tool, role="tool"),
        branch(planner, role="planner"),
        branch({"ran": 0.0}, role="tool"),
        branch({"moves": 0.2}, role="planner"),
    ]
    assert mean_parts([whole, [branch(tool, role="tool")]]) == pytest.approx({"ran": 0.75, "moves": 0.3})


def test_the_metrics_of_a_step_count_siblings_that_were_left_behind() -> None:
    below = node(1, {"coder": 1}, [branch({"tests": 0.5})])
    left_behind = replace(branch({"tests": 1.0}), choice={"coder": 1}, selected=False)
    trees = [tree(node(0, {"coder": 2}, [branch({}, below), left_behind]))]
    assert metrics.tree_metrics(trees, alpha=1.0)["parts/tests"] == pytest.approx((0.5 + 1.0) / 2)


def test_no_parts_at_all() -> None:
    assert mean_parts([[branch({}), branch({})]]) == {}


def test_outcomes_are_those_of_each_task_and_a_failed_one_has_no_reward() -> None:
    """Two tasks of one name are told apart; the tree of the second task is missing, as its episode failed."""
    tasks = [Task("t", {}), Task("failed", {}), Task("t", {})]
    trees = [tree(draft_then_tests()), tree(draft_then_tests())]
    report = summarize(trees, tasks)
    paths = [next(walk.episodes(each.root)) for each in trees]
    solved, reward = float(paths[0][-1][1].success), mean_reward(paths[:1])
    assert report["outcomes"] == {"t": (solved, reward), "failed": (0.0, None), "t#2": (solved, reward)}
    assert hash_tasks(tasks) == report["tasks_sha256"] != hash_tasks(tasks[:2])
    assert hash_tasks([Task("t", {"grid": (1, 2)})]) == hash_tasks([Task("t", {"grid": [1, 2]})])
