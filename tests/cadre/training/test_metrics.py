"""Metrics of groups and of how prompts go on, by hand."""

from dataclasses import replace

import pytest

from bench.parity.trees import assign, credit_of, inner, leaf, node
from cadre.advantages.groups import compare_samples
from cadre.advantages.returns import samples_of
from cadre.rollout.episodes import Failure, SampledTrees
from cadre.training import metrics
from cadre.types import History, Node, Task, Tree


def test_the_share_of_zero_variance_groups_by_role() -> None:
    """The tool's siblings are paid alike in both trees; the planner's differ in one of two."""

    def planned(*pays: float) -> Tree:
        planner = node(0, {"planner": 2}, [leaf({"planner": index}, pay) for index, pay in enumerate(pays)])
        return Tree(Task("t", {}), node(0, {"tool": 2}, [leaf({"tool": 0}), inner({"tool": 1}, planner)]))

    groups = assign([planned(0.0, 1.0), planned(1.0, 1.0)], credit_of("step", "node", "mean", "std"))
    assert metrics.group_metrics(groups) == pytest.approx(
        {
            "tool/zero_variance_groups": 1.0,
            "planner/zero_variance_groups": 0.5,
            "rollout/zero_variance_groups": 0.75,
            "tool/zero_variance_groups/0": 1.0,
            "planner/zero_variance_groups/1": 0.5,
        }
    )
    assert metrics.group_metrics([]) == {}


def test_groups_that_are_dropped_for_equal_rewards_count_although_their_lengths_differ() -> None:
    """Returns of wrong answers differ under a length penalty, and `without_std: drop` learns nothing of them."""
    roots = [node(0, {"r": 2}, [leaf({"r": 0}, first), leaf({"r": 1}, 0.0)]) for first in (0.0, 1.0)]
    samples = samples_of([Tree(Task("t", {}), root) for root in roots])
    charged = [replace(scored, overlong=-0.5 * scored.tree_sample.index) for scored in samples]
    groups = compare_samples(charged, credit_of("step", "node", "mean", "std"), {})
    assert metrics.group_metrics(groups)["r/zero_variance_groups"] == 0.0
    dropping = metrics.group_metrics(groups, "drop")
    assert dropping == {name: 0.5 for name in metrics.group_metrics(groups)}


def test_how_prompts_go_on_is_counted_a_decision() -> None:
    def told(history: History, *below: Node) -> Node:
        branch = inner({"r": 0}, below[0]) if below else leaf({"r": 0}, 0.0)
        root_node = node(0, {"r": 2}, [branch])
        return replace(
            root_node, samples={"r": tuple(replace(sample, history=history) for sample in root_node.samples["r"])}
        )

    root = told("first", told("clean", told("clean", told("new", told("realigned")))))
    counted = metrics.tree_metrics([Tree(Task("t", {}), root)], 1.0)
    assert counted["rollout/history_clean"] == 2
    assert counted["rollout/history_realigned"] == 1
    assert counted["rollout/history_new"] == 1
    assert "rollout/history_new" not in metrics.tree_metrics([Tree(Task("t", {}), told("first"))], 1.0)


def test_what_learners_say_is_by_policy_and_their_mismatch_by_role() -> None:
    text = {"shared": {"loss": 0.5, "logprob_diff/tool": 0.02, "logprob_diff/planner": 0.03}}
    assert metrics.update_metrics(text) == {"shared/loss": 0.5, "tool/logprob_diff": 0.02, "planner/logprob_diff": 0.03}


def test_divergence_is_a_share_of_the_trees_begun() -> None:
    """Two tasks; one of them diverged, was tried again, diverged again and was dropped: two of three trees."""
    tree = Tree(Task("a", {}), node(0, {"r": 1}, [leaf({"r": 0}, 0.0)]))
    dropped = Failure(Task("b", {}), "diverged", "asks for something else", "", dropped=True)
    counted = metrics.failure_metrics(SampledTrees([tree], [dropped], retried=1, diverged=2))
    assert counted["rollout/divergence_rate"] == pytest.approx(2 / 3)
    assert counted["rollout/failed/diverged"] == 0.5


def test_a_role_is_paid_while_others_act_too() -> None:
    """A game for two, one move each: the second move pays both, 1 and -1; each made one sample."""
    last = node(0, {"b": 1}, [leaf({"b": 0}, a=1.0, b=-1.0)])
    root = node(0, {"a": 1}, [inner({"a": 0}, last)])
    counted = metrics.tree_metrics([Tree(Task("t", {}), root)], 1.0)
    assert (counted["a/reward"], counted["b/reward"]) == (1.0, -1.0)
