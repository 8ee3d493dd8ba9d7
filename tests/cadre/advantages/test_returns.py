"""Returns of samples, every number worked out by hand; the trees are small enough to draw."""

import sys
from dataclasses import replace

import pytest

from bench.parity.trees import advantages, chain, inner, leaf, node, sequential, two_turns
from cadre.rollout.walk import allow_depth


def test_reward_to_go_discounts_the_mean_of_the_children_at_unequal_depths() -> None:
    got = advantages(two_turns(), "reward_to_go", "node", "mean", "none", gamma=0.5)
    # first: 1 + 0.5 * (2 + 4) / 2 = 2.5; second: 2; mean 2.25
    assert got == pytest.approx({"a0": 0.25, "a1": -0.25, "late-a0": -1.0, "late-a1": 1.0})


def test_best_to_go_takes_the_best_of_the_children() -> None:
    got = advantages(two_turns(), "best_to_go", "node", "mean", "none", gamma=0.5)
    # first: 1 + 0.5 * max(2, 4) = 3; second: 2; mean 2.5
    assert got == pytest.approx({"a0": 0.5, "a1": -0.5, "late-a0": -1.0, "late-a1": 1.0})


def test_gamma_counts_turns_not_the_steps_within_one() -> None:
    got = advantages(sequential(), "reward_to_go", "node", "none", "none", gamma=0.5)
    assert got["tool1"] == pytest.approx(4.0 + (0 + 3 + 3) / 3)


def test_an_episode_sums_what_was_earned_before_a_sample_too() -> None:
    got = advantages(two_turns(), "episode", "role_turn_task", "none", "none")
    assert got == pytest.approx({"a0": 1.0 + 3.0, "a1": 2.0, "late-a0": 3.0, "late-a1": 5.0})


def test_alpha_weighs_the_team_against_the_role() -> None:
    got = advantages(sequential(), "step", "node", "mean", "none", alpha=0.5)
    assert [got[f"planner{i}"] for i in range(3)] == pytest.approx([-1.0, 0.5, 0.5])
    assert [got[f"tool{i}"] for i in range(3)] == pytest.approx([-1.0, 2.0, -1.0])  # no team reward to weigh


def test_the_local_reward_of_another_role_is_not_mine() -> None:
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": 0, "b": 0}, 1.0, a=1.0), leaf({"a": 1, "b": 1}, 1.0, b=5.0)])
    got = advantages(root, "step", "node", "mean", "none")
    assert got == pytest.approx({"a0": 0.5, "a1": -0.5, "b0": -2.5, "b1": 2.5})


def test_what_the_team_earned_before_a_role_first_acts_is_of_its_episode() -> None:
    """a acts and the team earns 10, then b, then c: all three are worth 10 and what follows."""
    last = node(0, {"c": 1}, [leaf({"c": 0}, 1.0)])
    middle = node(0, {"b": 1}, [inner({"b": 0}, last, 0.0, b=0.5)])
    root = node(0, {"a": 1}, [inner({"a": 0}, middle, 10.0, a=2.0)])
    got = advantages(root, "episode", "node", "none", "none")
    assert got == pytest.approx({"a0": 13.0, "b0": 11.5, "c0": 11.0})


def test_what_an_episode_paid_does_not_hang_on_where_it_is_summed_from() -> None:
    """0.7 + 0.2 + 0.1 is 1 from one end and a little less from the other."""
    last = node(2, {"a": 1}, [leaf({"a": 0}, 0.1)], tag="late-")
    middle = node(1, {"a": 1}, [inner({"a": 0}, last, 0.2)], tag="then-")
    root = node(0, {"a": 1}, [inner({"a": 0}, middle, 0.7)])
    assert (0.7 + 0.2) + 0.1 != 0.7 + (0.2 + 0.1)
    assert set(advantages(root, "passed", "node", "none", "none", threshold=1.0).values()) == {1.0}


def test_the_first_that_pays_where_the_shape_ended_the_tree() -> None:
    """Nothing was carried on from the second decision, which paid nobody: all that was tried there is 0 so far."""
    remaining = [replace(leaf({"a": index}), over=False, selected=False) for index in range(2)]
    root = node(0, {"a": 1}, [inner({"a": 0}, node(1, {"a": 2}, remaining, tag="late-"))])
    assert advantages(root, "first_reward", "node", "none", "none")["a0"] == 0.0


@pytest.mark.parametrize("returns", ["reward_to_go", "first_reward"])
def test_trees_may_be_deep(returns):
    limit = sys.getrecursionlimit()
    root = chain(*[0.0] * 249, 1.0, tag="")
    sys.setrecursionlimit(1_000)  # Python's own, which other tests may have raised
    try:
        with pytest.raises(RecursionError):
            advantages(root, returns, "node", "none", "none", count="episodes")
        allow_depth(250)
        got = advantages(root, returns, "node", "none", "none", count="episodes")
    finally:
        sys.setrecursionlimit(limit)
    assert set(got.values()) == {1.0}
