"""Rewards of several parts that are normalised apart (GDPO), every number worked out by hand."""

import math
from dataclasses import replace

import pytest

from bench.parity.critics import Learner, team_of
from bench.parity.trees import assign, credit_of, inner, node
from cadre.advantages.batch import Plan, build_batch, is_useful, select_samples
from cadre.advantages.groups import compare_samples
from cadre.advantages.returns import Credit, samples_of
from cadre.errors import ConfigError
from cadre.settings import CreditConfig
from cadre.types import Branch, Node, Reward, Task, Tree
from tests.cadre.algorithms.test_algorithms_presets import named

GDPO = credit_of("step", "node", "mean", "std", parts={"correct": 1.0, "format": 0.5})


def scored(role: str, *parts: dict[str, float]) -> Node:
    """Return one decision of a role whose completions have these parts; the reward itself is their sum."""
    branches = [
        Branch({role: index}, Reward(sum(named.values()), parts=named), True, False)
        for index, named in enumerate(parts)
    ]
    return node(0, {role: len(parts)}, branches)


def advantages_of(roots: list[Node], credit: Credit) -> list[list[float]]:
    groups = assign([Tree(Task(str(index), {}), root) for index, root in enumerate(roots)], credit)
    return [[member.advantages[0] for member in group.samples] for group in groups]


def test_each_part_is_normalised_in_its_group_and_the_sum_over_the_batch() -> None:
    """In the first group only `correct` differs: +1 and -1 with weight 1. In the second only `format`: +1 and -1 with
    weight 0.5. The sums 1, -1, 0.5, -0.5 have the mean 0 and the deviation sqrt((1 + 1 + 0.25 + 0.25) / 4)."""
    first = scored("a", {"correct": 1.0, "format": 1.0}, {"correct": 0.0, "format": 1.0})
    second = scored("a", {"correct": 0.0, "format": 0.3}, {"correct": 0.0, "format": 0.0})
    deviation = math.sqrt(0.625)
    assert advantages_of([first, second], GDPO) == [
        pytest.approx([1.0 / deviation, -1.0 / deviation]),
        pytest.approx([0.5 / deviation, -0.5 / deviation]),
    ]
    # The sum of rewards, normalised once, does not tell a right answer from a well-formed one.
    once = credit_of("step", "node", "mean", "std")
    assert advantages_of([first, second], once) == [pytest.approx([1.0, -1.0]), pytest.approx([1.0, -1.0])]


def test_parts_that_cancel_in_the_sum_of_rewards_still_teach() -> None:
    """Both completions earn 1; apart, `correct` (weight 1) says +1 and -1 and `format` (weight 0.5) the opposite: 0.5
    and -0.5, of the deviation 0.5."""
    root = scored("a", {"correct": 1.0, "format": 0.0}, {"correct": 0.0, "format": 1.0})
    assert advantages_of([root], GDPO) == [pytest.approx([1.0, -1.0])]
    assert advantages_of([root], credit_of("step", "node", "mean", "std")) == [[0.0, 0.0]]


def test_groups_without_variance_in_any_part_have_none() -> None:
    silent = scored("a", {"correct": 0.1, "format": 0.7}, {"correct": 0.1, "format": 0.7})
    loud = scored(
        "a", {"correct": 1.0, "format": 0.1}, {"correct": 0.0, "format": 0.1}, {"correct": 0.0, "format": 0.1}
    )
    (stored, zero) = assign([Tree(Task("loud", {}), loud), Tree(Task("silent", {}), silent)], GDPO)
    assert [member.advantages[0] for member in zero.samples] == [0.0, 0.0]
    assert not zero.has_variance
    assert stored.has_variance
    (weightless,) = assign(
        [Tree(Task("loud", {}), loud)], credit_of("step", "node", "mean", "std", parts={"correct": 0.0, "format": 1.0})
    )
    assert not weightless.has_variance
    # correct: mean 1/3, deviation sqrt(2)/3: sqrt(2), -1/sqrt(2) twice; over the batch of five the mean is 0 and the
    # deviation sqrt((2 + 1/2 + 1/2) / 5).
    root2, deviation = math.sqrt(2.0), math.sqrt(0.6)
    expected = [root2 / deviation, -1 / root2 / deviation, -1 / root2 / deviation]
    assert [member.advantages[0] for member in stored.samples] == pytest.approx(expected)


def test_over_the_batch_an_episode_counts_once_however_many_decisions_it_has() -> None:
    """GDPO's mean and deviation are those of the rollouts of a batch, which are whole episodes here. In one task `goal`
    is 1 and 0, so that A is 1 and -1, in the other two episodes of three decisions each have A 0: of the four
    episodes two have 1 and -1, so that the deviation is sqrt(1/2). Over all eight decisions it would be sqrt(1/4)."""
    first = scored("a", {"goal": 1.0}, {"goal": 0.0})
    ends = [Branch({"a": 0}, Reward(parts={"goal": 1.0}), True, False) for _ in range(2)]
    long = [
        node(1, {"a": 1}, [inner({"a": 0}, node(2, {"a": 1}, [end], f"{n}-2-"))], f"{n}-1-")
        for n, end in enumerate(ends)
    ]
    second = node(0, {"a": 2}, [inner({"a": index}, child) for index, child in enumerate(long)])
    got = advantages_of([first, second], named("grpo", parts={"goal": 1.0}).credit)
    assert got == [pytest.approx([math.sqrt(2), -math.sqrt(2)]), [0.0] * 6]


def test_a_part_of_one_role_rewards_no_other() -> None:
    """`tool/ran` differs among the joint actions, of which the planner's two completions hold one each."""
    branches = [
        Branch({"tool": index, "planner": index}, Reward(parts={"tool/ran": value, "goal": 1.0}), True, False)
        for index, value in enumerate((1.0, 0.0))
    ]
    root = node(0, {"tool": 2, "planner": 2}, branches)
    credit = credit_of("step", "node", "mean", "std", parts={"tool/ran": 1.0, "goal": 1.0})
    groups = compare_samples(samples_of([Tree(Task("t", {}), root)]), credit)
    by_role = {member.sample.text: member.advantages[0] for group in groups for member in group.samples}
    assert by_role["planner0"] == by_role["planner1"] == 0.0
    assert by_role["tool0"] == -by_role["tool1"] > 0.0


def test_a_part_of_one_role_that_is_reported_later_rewards_no_other() -> None:
    """The planner acts after the tool, and its step reports how the tool's program went: 1 and 0."""
    late = [
        node(
            0, {"planner": 1}, [Branch({"planner": 0}, Reward(parts={"tool/ran": value}), True, False)], tag=f"{value}"
        )
        for value in (1.0, 0.0)
    ]
    root = node(0, {"tool": 2}, [inner({"tool": index}, child) for index, child in enumerate(late)])
    credit = credit_of("episode", "task_role", "mean", "std", count="episodes", parts={"tool/ran": 1.0})
    groups = assign([Tree(Task("t", {}), root)], credit)
    by_text = {member.sample.text: member.advantages[0] for group in groups for member in group.samples}
    # Of four samples two have 1 and -1 and two 0: their deviation is sqrt(1/2).
    assert by_text == pytest.approx(
        {"tool0": math.sqrt(2), "tool1": -math.sqrt(2), "1.0planner0": 0.0, "0.0planner0": 0.0}
    )


def test_a_role_is_not_compared_by_the_part_of_another() -> None:
    """GRPO has one group of both roles. `tool/ran` is 1 in all episodes, or 1 and 0: the planner has no part in it."""
    for values, expected in (((1.0, 1.0), 0.0), ((1.0, 0.0), math.sqrt(2))):
        ends = [Branch({"planner": 0}, Reward(parts={"tool/ran": value}), True, False) for value in values]
        late = [node(0, {"planner": 1}, [end], tag=f"{index}-") for index, end in enumerate(ends)]
        root = node(0, {"tool": 2}, [inner({"tool": index}, child) for index, child in enumerate(late)])
        groups = assign([Tree(Task("t", {}), root)], named("grpo", parts={"tool/ran": 1.0}).credit)
        by_text = {member.sample.text: member.advantages[0] for group in groups for member in group.samples}
        assert by_text == pytest.approx({"tool0": expected, "tool1": -expected, "0-planner0": 0.0, "1-planner0": 0.0})


def test_groups_are_left_out_by_the_weighted_sum_of_their_parts() -> None:
    """Means of `correct` + 0.5 `format`: 0.5 + 0.25 and 0.25 + 0.5; the second group has no deviation in `correct`, and
    in the third the parts cancel."""
    first = scored("a", {"correct": 1.0, "format": 0.5}, {"correct": 0.0, "format": 0.5})
    second = scored("a", {"correct": 0.25, "format": 1.0}, {"correct": 0.25, "format": 0.0})
    third = scored("a", {"correct": 1.0, "format": 0.0}, {"correct": 0.0, "format": 2.0})
    groups = assign([Tree(Task(str(n), {}), root) for n, root in enumerate((first, second, third))], GDPO)
    assert [member.returns for group in groups for member in group.samples] == [1.25, 0.25, 0.75, 0.25, 1.0, 1.0]

    def kept(rule: str) -> list[int]:
        dropping = CreditConfig(drop_groups=rule, drop_fraction=0.34)
        return sorted({chosen.tree_sample.tree for chosen in select_samples(groups, dropping)})

    assert kept("lowest_mean") == [0, 2]
    assert kept("lowest_deviation") == [0, 1]


def plan_of_parts() -> Plan:
    return replace(named("grpo", parts={"correct": 1.0}), selection=CreditConfig(without_std="drop"))


def test_a_part_that_no_step_reports_is_named() -> None:
    root = scored("a", {"corect": 1.0}, {"corect": 0.0})
    with pytest.raises(ConfigError, match=r"'correct', which no reward of the step reports.*Did you mean corect\?"):
        build_batch([Tree(Task("t", {}), root)], plan_of_parts(), team_of(Learner()))


def test_a_tree_that_reports_no_part_is_no_error_beside_others_that_do() -> None:
    """This happens if every answer of a task was unreadable; dynamic sampling looks at one tree at a time."""
    silent = Tree(Task("silent", {}), scored("a", {"other": 1.0}, {"other": 0.0}))
    loud = Tree(Task("loud", {}), scored("a", {"correct": 1.0}, {"correct": 0.0}))
    team = team_of(Learner())
    assert [is_useful(plan_of_parts(), team)(tree) for tree in (silent, loud)] == [False, True]
    assert len(build_batch([silent, loud], plan_of_parts(), team).sequences) == 2
