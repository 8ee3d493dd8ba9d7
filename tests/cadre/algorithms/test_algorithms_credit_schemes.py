"""Credit of the later presets, every number worked out by hand."""

import math
from dataclasses import replace

import pytest

from bench.parity import critics
from bench.parity.critics import Learner, named, team_of
from bench.parity.trees import assign, chain, inner, leaf, node
from cadre.advantages.batch import build_batch, weight_by_tree
from cadre.advantages.returns import samples_of
from cadre.algorithms.custom import Custom
from cadre.errors import ConfigError
from cadre.settings import LossConfig
from cadre.types import Message, Node, Observation, Sound, Task, Tree


def judged(root: Node, name: str, **options) -> dict[str, float]:
    groups = assign([Tree(Task("t", {}), root)], named(name, **options).credit)
    return {scored.sample.text: scored.advantages[0] for group in groups for scored in group.samples}


def two_roles() -> Node:
    """Two episodes in which a acts before b; the team earns 0 and 2, and b 3 more for itself."""
    late = [node(0, {"b": 1}, [leaf({"b": 0}, pay, b=3.0)], tag=f"{i}-") for i, pay in enumerate((0.0, 2.0))]
    return node(0, {"a": 2}, [inner({"a": i}, child) for i, child in enumerate(late)])


def test_grpo_compares_all_roles_of_a_task_and_grpo_by_role_each_with_itself() -> None:
    # a earns 0 and 2, b 3 and 5: 2.5 is the mean of all, 1 that of a, 4 that of b
    assert judged(two_roles(), "grpo", scale="none") == {"a0": -2.5, "a1": -0.5, "0-b0": 0.5, "1-b0": 2.5}
    assert judged(two_roles(), "grpo_by_role") == {"a0": -1.0, "a1": 1.0, "0-b0": -1.0, "1-b0": 1.0}
    deviation = math.sqrt((6.25 + 0.25 + 0.25 + 6.25) / 4)
    assert judged(two_roles(), "matpo")["1-b0"] == pytest.approx(2.5 / deviation)


def test_c3_is_the_subtree_against_the_other_siblings_subtrees() -> None:
    late = node(1, {"a": 2}, [leaf({"a": 0}, 2.0), leaf({"a": 1}, 4.0)], tag="late-")
    root = node(0, {"a": 3}, [inner({"a": 0}, late), leaf({"a": 1}, 0.0), leaf({"a": 2}, 6.0)])
    # subtrees are worth 3, 0 and 6; the others' means are 3, 4.5 and 1.5
    assert judged(root, "c3") == {"a0": 0.0, "a1": -4.5, "a2": 4.5, "late-a0": -2.0, "late-a1": 2.0}


def test_hierarchical_grpo_compares_attempts_at_one_proposal_and_proposals_of_one_task() -> None:
    """Two proposals with three attempts each, which earn 1, 0, 0 and 1, 1, 0; a proposer earns 1 - the solvers' mean.

    Attempts stand against 1/3 and 2/3. The proposals earn 2/3 and 1/3, against 1/2.
    """

    def attempts(tag: str, *solved: float) -> Node:
        proposer = 1.0 - sum(solved) / len(solved)
        tries = [leaf({"solver": i}, solver=reward, proposer=proposer) for i, reward in enumerate(solved)]
        return node(0, {"solver": 3}, tries, tag)

    children = (attempts("x-", 1.0, 0.0, 0.0), attempts("y-", 1.0, 1.0, 0.0))
    root = node(0, {"proposer": 2}, [inner({"proposer": i}, child) for i, child in enumerate(children)])
    assert judged(root, "hierarchical_grpo") == {
        "proposer0": pytest.approx(1 / 6),
        "proposer1": pytest.approx(-1 / 6),
        "x-solver0": pytest.approx(2 / 3),
        "x-solver1": pytest.approx(-1 / 3),
        "x-solver2": pytest.approx(-1 / 3),
        "y-solver0": pytest.approx(1 / 3),
        "y-solver1": pytest.approx(1 / 3),
        "y-solver2": pytest.approx(-2 / 3),
    }


def test_attempts_of_several_turns_are_compared_on_their_proposal() -> None:
    """Attempts of two turns that earn 3 and 1 on the first proposal, one that earns 8 on the second: 1, -1 and 0."""
    first = [
        inner({"solver": i}, node(1, {"solver": 1}, [leaf({"solver": 0}, solver=r)], f"late{i}-"))
        for i, r in enumerate((3.0, 1.0))
    ]
    second = [leaf({"solver": 0}, solver=8.0)]
    children = (node(0, {"solver": 2}, first, "x-"), node(0, {"solver": 1}, second, "y-"))
    root = node(0, {"proposer": 2}, [inner({"proposer": i}, child) for i, child in enumerate(children)])
    got = judged(root, "hierarchical_grpo")
    assert {text: value for text, value in got.items() if "solver" in text} == {
        "x-solver0": 1.0,
        "x-solver1": -1.0,
        "late0-solver0": 1.0,
        "late1-solver0": -1.0,
        "y-solver0": 0.0,
    }


def branched(*pays: float) -> Node:
    """Two episodes of two turns; the second turn of the first was sampled twice. Paid at the end, three numbers."""
    twice = node(1, {"a": 2}, [leaf({"a": 0}, pays[0]), leaf({"a": 1}, pays[1])], tag="s")
    once = node(1, {"a": 1}, [leaf({"a": 0}, pays[2])], tag="t")
    return node(0, {"a": 2}, [inner({"a": 0}, twice), inner({"a": 1}, once)])


def test_tree_grpo_sums_a_comparison_within_the_tree_and_one_within_the_task() -> None:
    got = judged(branched(0.0, 4.0, 2.0), "tree_grpo")
    # the leaves 0, 4 and 2: task mean 2, variance (4 + 4 + 0) / 3 = 8 / 3; first tree (4 + 4) / 2 = 4
    within_task, within_tree = 2 / math.sqrt(8 / 3), 2 / math.sqrt(4)
    expected = {"a0": 0.0, "a1": 0.0, "sa0": -within_task - within_tree, "sa1": within_task + within_tree, "ta0": 0.0}
    assert got == pytest.approx(expected)


def test_the_deviation_is_that_of_the_leaves_and_not_of_the_means_of_shared_parts() -> None:
    """Mistake: shared parts enter the deviation with the mean of their leaves, which shrinks it."""
    both = [
        node(1, {"a": 2}, [leaf({"a": i}, pay) for i, pay in enumerate(pays)], tag)
        for tag, pays in (("s", (0.0, 1.0)), ("t", (1.0, 0.0)))
    ]
    root = node(0, {"a": 2}, [inner({"a": i}, child) for i, child in enumerate(both)])
    # mean 1/2 and deviation 1/2 of the four leaves, and of the two of each tree
    signs = {"a0": 0.0, "a1": 0.0, "sa0": -1.0, "sa1": 1.0, "ta0": 1.0, "ta1": -1.0}
    assert judged(root, "arpo") == pytest.approx(signs)
    assert judged(root, "tree_grpo") == pytest.approx({text: 2 * sign for text, sign in signs.items()})


def test_every_leaf_counts_once_however_unequally_a_tree_fans_out() -> None:
    """Mistake: a shared part is worth the mean of its branches' means, in which one leaf weighs as much as three."""
    three = node(2, {"a": 3}, [leaf({"a": i}, pay) for i, pay in enumerate((3.0, 3.0, 0.0))], tag="u")
    twice = node(1, {"a": 2}, [inner({"a": 0}, three), leaf({"a": 1}, 6.0)], tag="s")
    root = node(0, {"a": 2}, [inner({"a": 0}, twice), leaf({"a": 1}, 3.0)])
    # leaves 3 3 0 6 below the first answer, 3 below the second: mean 3, variance (0 + 0 + 9 + 9 + 0) / 5
    deviation = math.sqrt(18 / 5)
    expected = {
        "a0": 0.0,
        "sa0": (2 - 3) / deviation,
        "sa1": 3 / deviation,
        "ua0": 0.0,
        "ua1": 0.0,
        "ua2": -3 / deviation,
    }
    assert judged(root, "arpo") == pytest.approx({**expected, "a1": 0.0})
    lone = Custom(
        name="custom", shape="branch", returns="episode", group="task", baseline="leave_one_out", scale="none"
    ).plan()
    groups = assign([Tree(Task("t", {}), root)], lone.credit)
    got = {scored.sample.text: scored.advantages[0] for group in groups for scored in group.samples}
    # against the mean of the leaves that do not go through the sample
    assert got == pytest.approx(
        {"a0": 0.0, "sa0": 2 - 4.5, "sa1": 6 - 9 / 4, "ua0": 0.0, "ua1": 0.0, "ua2": -15 / 4, "a1": 0.0}
    )


def test_leaves_of_roles_that_are_paid_apart_are_leaves_of_each() -> None:
    # a earns 0 and 2, b 3 and 5 for the same two episodes: mean 2.5, deviation sqrt((6.25 + 0.25 + 0.25 + 6.25) / 4)
    got = judged(two_roles(), "arpo")
    assert got["1-b0"] == pytest.approx(2.5 / math.sqrt(13 / 4))
    assert sum(got.values()) == pytest.approx(0.0)


def test_tree_rl_adds_what_a_step_gains_on_the_root_and_on_its_parent() -> None:
    got = judged(branched(0.0, 4.0, 5.0), "tree_rl")
    # V: root 3; first step 2 of two episodes, second 5; the leaves 0, 4 and 5
    expected = {"a0": (2 - 3 + 2 - 3) / math.sqrt(2), "a1": 4.0, "sa0": 0 - 3 + 0 - 2, "sa1": 4 - 3 + 4 - 2}
    assert got == pytest.approx({**expected, "ta0": 5 - 3 + 5 - 5})


def test_arpo_compares_over_the_task_and_bpo_siblings_alone() -> None:
    assert judged(branched(0.0, 4.0, 2.0), "arpo")["sa1"] == pytest.approx(2 / math.sqrt(8 / 3))
    assert judged(branched(0.0, 4.0, 2.0), "bpo") == {"a0": 0.0, "a1": 0.0, "sa0": -2.0, "sa1": 2.0, "ta0": 0.0}


def test_gigpo_adds_a_comparison_among_equal_observations() -> None:
    late = [critics.node(1, {"a": 1}, [leaf({"a": 0}, pay)], "s") for pay in (1.0, 5.0)]
    tries = [inner({"a": i}, child, pay) for i, (child, pay) in enumerate(zip(late, (0.0, 2.0), strict=True))]
    root = critics.node(0, {"a": 2}, tries, "r")
    plan = named("gigpo", gamma=0.5, step_weight=0.5, scale="none")
    (group,) = assign([Tree(Task("t", {}), root)], plan.credit)
    got = {scored.tree_sample.path or scored.tree_sample.index: scored.advantages[0] for scored in group.samples}
    # episodes earn 1 and 7; first steps are worth 0.5 and 4.5 from there on, second ones, of one observation, 1 and 5
    assert got == {0: -3 - 0.5 * 2, 1: 3 + 0.5 * 2, (0,): -3 - 0.5 * 2, (1,): 3 + 0.5 * 2}
    other_root_node = [critics.node(1, {"a": 1}, [leaf({"a": 0}, pay)], tag) for pay, tag in ((1.0, "s"), (5.0, "u"))]
    separate = [
        inner({"a": i}, child, pay) for i, (child, pay) in enumerate(zip(other_root_node, (0.0, 2.0), strict=True))
    ]
    (group,) = assign([Tree(Task("t", {}), critics.node(0, {"a": 2}, separate, "r"))], plan.credit)
    assert {sample.tree_sample.path: sample.advantages[0] for sample in group.samples if sample.tree_sample.path} == {
        (0,): -3.0,
        (1,): 3.0,
    }


def test_equal_texts_with_different_sounds_are_different_observations() -> None:
    def heard(child: Node, digest: str) -> Node:
        message = Message("user", "notes", sounds=(Sound(digest, 16_000, 1, b""),))
        return replace(child, observations={"a": Observation("a", (message,))})

    plan = named("gigpo", gamma=0.5, step_weight=0.5, scale="none")
    for digests, first in ((("1", "1"), -4.0), (("1", "2"), -3.0)):
        late = [critics.node(1, {"a": 1}, [leaf({"a": 0}, pay)], "s") for pay in (1.0, 5.0)]
        late = [heard(child, digest) for child, digest in zip(late, digests, strict=True)]
        tries = [inner({"a": i}, child, pay) for i, (child, pay) in enumerate(zip(late, (0.0, 2.0), strict=True))]
        (group,) = assign([Tree(Task("t", {}), critics.node(0, {"a": 2}, tries, "r"))], plan.credit)
        assert {sample.tree_sample.path: sample.advantages[0] for sample in group.samples}[(0,)] == first


def test_a_group_says_something_where_either_comparison_does() -> None:
    equal = node(0, {"a": 2}, [leaf({"a": i}, 1.0) for i in range(2)])
    (group,) = assign([Tree(Task("t", {}), equal)], named("gigpo").credit)
    assert not group.has_variance
    groups = assign([Tree(Task("t", {}), branched(2.0, 2.0, 4.0))], named("tree_grpo").credit)
    assert [group.has_variance for group in groups] == [True, True]  # alike within each tree, but not within the task


def test_sirius_trains_on_what_passed_and_on_nothing_else() -> None:
    root = node(0, {"a": 3}, [leaf({"a": i}, pay) for i, pay in enumerate((0.0, 1.0, 2.0))])
    batch = build_batch([Tree(Task("t", {}), root)], named("sirius"), team_of(Learner()))
    assert [datum.advantages[-1] for datum in batch.sequences] == [1.0, 1.0]
    assert batch.metrics["rollout/dropped"] == 1
    higher = build_batch([Tree(Task("t", {}), root)], named("sirius", threshold=2.0), team_of(Learner()))
    assert [datum.advantages[-1] for datum in higher.sequences] == [1.0]


@pytest.mark.parametrize("name", ["m_grpo", "flow_grpo"])
def test_an_episode_weighs_the_same_however_often_a_role_acts_in_it(name: str) -> None:
    short, long = chain(0.0, 1.0, tag="s"), chain(0.0, 0.0, 0.0, 0.0, tag="l")
    root = node(0, {"a": 2}, [inner({"a": 0}, short, 3.0), inner({"a": 1}, long, 0.0)])
    plan = named(name)
    samples = weight_by_tree(samples_of([Tree(Task("t", {}), root)]), plan.tree_weight, LossConfig())
    weights = {scored.sample.text: scored.weight for scored in samples}
    # six samples of equal length, three for each episode: 3 / 2 and 3 / 4 a sample
    assert weights == pytest.approx({"a0": 1.5, "s1-a0": 1.5, "a1": 0.75, "l1-a0": 0.75, "l2-a0": 0.75, "l3-a0": 0.75})


def test_a_sum_of_two_comparisons_by_name() -> None:
    axes = {"returns": "episode", "baseline": "mean", "scale": "std"}
    chosen = Custom(name="custom", shape="branch", group="subtree", second={**axes, "group": "task_role"}, **axes)
    assert chosen.plan().credit == named("tree_grpo").credit
    with pytest.raises(ConfigError, match=r"algorithm\.second: got the baseline running"):
        Custom(
            name="custom", shape="branch", group="role", second={**axes, "group": "task", "baseline": "running"}, **axes
        ).plan()
