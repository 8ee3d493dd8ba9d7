"""The data of an update, worked out by hand: cut and overlong completions, zero-variance groups, role weights."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import pytest

from bench.parity.trees import assign, credit_of, inner, leaf, node, two_turns
from cadre.advantages import batch
from cadre.advantages.batch import make_sequences, select_samples
from cadre.advantages.groups import AdvantageGroup, compare_samples
from cadre.advantages.returns import samples_of
from cadre.learn.loss_functions import Denominators, sequence_sum
from cadre.settings import CreditConfig, LossConfig, TreeWeight
from cadre.types import Branch, Node, Sample, Sampling, Task, TrainingSequence, Tree
from tests.cadre.algorithms.test_algorithms_presets import named

SAMPLING = {"a": Sampling(max_tokens=10), "b": Sampling(max_tokens=20)}
GRADED = credit_of("step", "node", "mean", "none")


def lengthened(root: Node, role: str, *lengths: int) -> Node:
    """The tree with siblings of so many tokens; at SAMPLING's limit they are cut off."""

    def sized(sample: Sample, length: int) -> Sample:
        cut = length >= SAMPLING[role].max_tokens
        tokens = {"token_ids": (5,) * length, "logprobs": (-1.0,) * length, "finish": "length" if cut else "stop"}
        return dataclasses.replace(sample, **tokens)

    siblings = tuple(sized(sample, length) for sample, length in zip(root.samples[role], lengths, strict=True))
    return dataclasses.replace(root, samples={**root.samples, role: siblings})


def graded(role: str, *pays: float) -> Node:
    return node(0, {role: len(pays)}, [leaf({role: index}, pay) for index, pay in enumerate(pays)])


def data_of(groups: Sequence[AdvantageGroup], chosen: CreditConfig) -> list[TrainingSequence]:
    return make_sequences(batch.weight_by_role(batch.select_samples(groups, chosen), chosen), SAMPLING)


def learned(root: Node, **settings: object) -> dict[int, float]:
    """Advantages by position of the sibling, of those that give a training sequence; lengths are distinct."""
    chosen, tree = CreditConfig(**settings), Tree(Task("t", {}), root)
    groups = compare_samples(batch.charge_length(samples_of([tree]), chosen, SAMPLING), GRADED)
    return {sum(datum.mask): datum.advantages[-1] for datum in data_of(groups, chosen)}


@pytest.mark.parametrize(("length", "penalty"), [(1, 0.0), (6, 0.0), (7, -0.25), (9, -0.75), (10, -1.0)])
def test_the_overlong_penalty_by_hand(length: int, penalty: float) -> None:
    """Equation 13 of DAPO with 10 tokens at most and a buffer of 4: nothing up to 6, then a quarter a token."""
    sample = Sample("a", "p", "", (), (1,) * length, (0.0,) * length, "stop", 0)
    assert batch.overlong_penalty(sample, 10, 4) == penalty
    assert batch.overlong_penalty(dataclasses.replace(sample, finish="length"), 10, 4) == -1.0


def test_a_penalty_is_part_of_the_return_that_is_compared() -> None:
    root = lengthened(graded("a", 1.0, 1.0, 1.0), "a", 6, 8, 10)
    assert learned(root) == {6: 0.0, 8: 0.0, 10: 0.0}
    # returns 1, 1 - 2 * 0.5 and 1 - 2: mean 0
    assert learned(root, overlong_buffer=4, overlong_factor=2.0) == pytest.approx({6: 1.0, 8: 0.0, 10: -1.0})
    # with the factor 1: 1, 0.5, 0
    assert learned(root, overlong_buffer=4) == pytest.approx({6: 0.5, 8: 0.0, 10: -0.5})


def test_the_buffer_ends_where_the_role_may_say_no_more() -> None:
    root = lengthened(graded("b", 0.0, 0.0), "b", 10, 18)
    assert learned(root, overlong_buffer=4) == pytest.approx({10: 0.25, 18: -0.25})


def test_wrong_answers_of_unequal_length_are_no_group_to_learn_from_under_the_filter() -> None:
    """The filter went by the penalised returns, so that of wrong answers the shortest got the advantage of a right one
    (NVIDIA-NeMo/RL#2431)."""
    root = lengthened(graded("a", 0.0, 0.0, 0.0), "a", 6, 8, 10)
    assert learned(root, overlong_buffer=4, without_std="drop") == {}
    assert learned(root, overlong_buffer=4) == pytest.approx({6: 0.5, 8: 0.0, 10: -0.5})
    root = lengthened(graded("a", 1.0, 0.0, 0.0), "a", 6, 8, 10)  # returns 1, -0.5, -1: mean -1/6
    expected = {6: 7 / 6, 8: -1 / 3, 10: -5 / 6}
    assert learned(root, overlong_buffer=4, without_std="drop") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, {5: 0.125, 7: -0.125}),  # 10 tokens, the role's: 0 and a quarter
        (7, {5: 0.25, 7: -0.25}),  # a half and all
        (20, {5: 0.125, 7: -0.125}),  # an observation allows no more than the role may say
    ],
)
def test_the_ramp_ends_where_the_observation_allows_no_more(limit: int | None, expected: dict[int, float]) -> None:
    """Mistake: an answer of all 7 tokens that its prompt allowed pays a quarter, as the role's own bound is 10."""
    root = lengthened(graded("a", 0.0, 0.0), "a", 5, 7)
    root = dataclasses.replace(root, observations={"a": dataclasses.replace(root.observations["a"], max_tokens=limit)})
    assert learned(root, overlong_buffer=4) == pytest.approx(expected)


def test_a_buffer_longer_than_the_observation_allows_begins_at_the_first_token() -> None:
    root = lengthened(graded("a", 0.0, 0.0), "a", 1, 2)
    recorded = {"a": dataclasses.replace(root.observations["a"], max_tokens=2)}
    root = dataclasses.replace(root, observations=recorded)
    assert learned(root, overlong_buffer=8) == pytest.approx({1: 0.25, 2: -0.25})  # a half and all of it


def test_a_cut_completion_counts_in_its_group_and_is_not_trained() -> None:
    root = lengthened(graded("a", 3.0, 0.0, 6.0), "a", 2, 3, 10)
    assert learned(root) == pytest.approx({2: 0.0, 3: -3.0, 10: 3.0})
    assert learned(root, truncated="mask") == pytest.approx({2: 0.0, 3: -3.0})  # against the mean of all three


def test_zero_variance_groups_leave_the_denominators_when_they_are_dropped() -> None:
    trees = [Tree(Task(str(i), {}), graded("a", *pays)) for i, pays in enumerate([(1.0, 3.0), (2.0, 2.0)])]
    groups = assign(trees, GRADED)
    stored, dropped = (CreditConfig(without_std=choice) for choice in ("keep", "drop"))
    for chosen, count in ((stored, 4), (dropped, 2)):
        samples = data_of(groups, chosen)
        assert len(samples) == count
        assert sequence_sum(1, Denominators.of(samples)) == 1 / count
    assert sum(not group.has_variance for group in groups) / len(groups) == 0.5


def test_groups_of_the_lowest_mean_or_deviation_are_left_out() -> None:
    """Means 2, 1, 5 and 1.5; variances over squared ranges 1/4, 0, 1/4 and, of (0, 0, 0, 6), 6.75 / 36 = 0.1875."""
    rewards = [(1.0, 3.0), (1.0, 1.0), (4.0, 6.0), (0.0, 0.0, 0.0, 6.0)]
    trees = [Tree(Task(str(i), {}), graded("a", *pays)) for i, pays in enumerate(rewards)]
    groups = assign(trees, GRADED)

    def kept(rule: str, fraction: float) -> list[str]:
        dropping = CreditConfig(drop_groups=rule, drop_fraction=fraction)
        return list(dict.fromkeys(str(scored.tree_sample.tree) for scored in select_samples(groups, dropping)))

    assert kept("lowest_mean", 0.5) == ["0", "2"]
    assert kept("lowest_mean", 0.3) == ["0", "2", "3"]  # floor(4 * 0.3) is 1
    assert kept("lowest_deviation", 0.5) == ["0", "2"]
    assert kept("lowest_deviation", 0.75) == ["2"]  # of equals the first is left out
    assert kept("lowest_mean", 0.2) == ["0", "1", "2", "3"]
    with pytest.raises(ValueError, match="expected the fraction of groups"):
        CreditConfig(drop_groups="lowest_mean")


def test_a_group_with_a_deviation_of_another_comparison_alone_is_the_lowest() -> None:
    """Mistake: a division by the squared range 0 of the first comparison's returns. GiGPO's episodes are equal in the
    first task, its steps (1 then 0, and 0 then 1) are not."""

    def two_steps(number: int, first: float, second: float) -> Branch:
        child = node(1, {"a": 1}, [leaf({"a": 0}, second)], tag=f"{number}-")
        return inner({"a": number}, child, first)

    rewards = [((1.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (0.0, 0.0))]
    roots = [node(0, {"a": 2}, [two_steps(n, *pays) for n, pays in enumerate(episodes)]) for episodes in rewards]
    groups = assign([Tree(Task(str(n), {}), root) for n, root in enumerate(roots)], named("gigpo", gamma=1.0).credit)
    assert [group.has_variance for group in groups] == [True, True]
    dropping = CreditConfig(drop_groups="lowest_deviation", drop_fraction=0.5)
    assert {scored.tree_sample.tree for scored in select_samples(groups, dropping)} == {1}


def test_a_fraction_of_groups_is_that_of_each_policy_without_rounding() -> None:
    """Mistake: 0.29 * 100 is 28.999... in floating point; or the policy of lower rewards loses all of its groups."""

    def owned(root: Node, policy: str) -> Node:
        siblings = tuple(dataclasses.replace(sample, policy=policy) for sample in root.samples["a"])
        return dataclasses.replace(root, samples={"a": siblings})

    trees = [
        Tree(Task(f"{policy}-{number}", {}), owned(graded("a", low + number, low + number + 1), policy))
        for policy, low in (("p", 0.0), ("q", 500.0))
        for number in range(100)
    ]
    remaining = batch.drop_lowest_groups(assign(trees, GRADED), "lowest_mean", 0.29)
    assert Counter(group.samples[0].sample.policy for group in remaining) == {"p": 71, "q": 71}


def test_a_role_weighs_in_the_loss_what_it_is_given() -> None:
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, 2.0 * i) for i in range(2)])
    groups = assign([Tree(Task("t", {}), root)], GRADED)
    samples = data_of(groups, CreditConfig(role_weights={"a": 0.25}))
    result = {(datum.role, datum.advantages) for datum in samples}
    quarter, full = (0.0, 0.0, 0.25, 0.25), (0.0, 0.0, 1.0, 1.0)
    assert result == {
        ("a", quarter),
        ("a", tuple(-value for value in quarter)),
        ("b", full),
        ("b", tuple(-value for value in full)),
    }


def played_out() -> Node:
    """a samples 3, each of which goes on to a decision of b, who samples 3."""
    late = [
        dataclasses.replace(
            node(0, {"b": 3}, [leaf({"b": i}, float(i)) for i in range(3)], tag=f"late{branch}-"), weight=1 / 3
        )
        for branch in range(3)
    ]
    return node(0, {"a": 3}, [inner({"a": i}, child) for i, child in enumerate(late)])


def weights(trees: Sequence[Node], rule: TreeWeight, aggregate: str = "sequence_sum") -> dict[str, list[float]]:
    """Return the weights of the samples by role."""
    samples = samples_of([Tree(Task(str(number), {}), root) for number, root in enumerate(trees)])
    results: dict[str, list[float]] = {}
    for scored in batch.weight_by_tree(samples, rule, LossConfig(aggregate=aggregate)):
        results.setdefault(scored.sample.role, []).append(scored.weight)
    return results


def test_what_weighs_alike_in_an_update_of_one_policy() -> None:
    trees = [played_out(), graded("a", 0.0, 1.0, 2.0)]
    assert weights(trees, "by_sample") == {"a": [1.0] * 6, "b": [1.0] * 9}
    # 15 sequences over three decisions of weight 1: 5 each, that of b in three parts
    got = weights(trees, "by_decision")
    assert got["a"] == pytest.approx([5 / 3] * 6)
    assert got["b"] == pytest.approx([5 / 9] * 9)
    # 7.5 for each of two trees: the first has two decisions
    got = weights(trees, "alike")
    assert got["a"] == pytest.approx([3.75 / 3] * 3 + [7.5 / 3] * 3)
    assert got["b"] == pytest.approx([3.75 / 9] * 9)


def test_an_episode_weighs_the_same_wherever_it_parted_from_others() -> None:
    """Mistake: a sample that several episodes share counts as one of one."""
    # episodes a0 late-a0, a0 late-a1 and a1: a0 has half of two of them, a1 a whole one; 3 for 4 sequences
    assert weights([two_turns()], "by_episode") == {"a": pytest.approx([4 / 3, 4 / 3, 2 / 3, 2 / 3])}


def test_a_policy_that_acts_late_weighs_as_much_in_its_own_update_as_one_that_acts_early() -> None:
    """Mistake: weights over all policies together, so that early roles train with 2.0 and late ones with 0.67."""

    def played_by_its_role(root: Node) -> Node:
        samples = {
            role: tuple(dataclasses.replace(sample, policy=role) for sample in siblings)
            for role, siblings in root.samples.items()
        }
        branches = [
            dataclasses.replace(branch, child=branch.child and played_by_its_role(branch.child))
            for branch in root.branches
        ]
        return dataclasses.replace(root, samples=samples, branches=tuple(branches))

    for rule in ("by_decision", "alike"):
        got = weights([played_by_its_role(played_out())], rule)
        assert got["a"] == pytest.approx([1.0] * 3)
        assert got["b"] == pytest.approx([1.0] * 9)


def test_where_the_loss_averages_over_tokens_trees_have_equal_shares_of_them() -> None:
    short, long = (lengthened(graded("a", 1.0), "a", length) for length in (2, 6))
    # 8 tokens, 4 a tree: 2 tokens of weight 2, 6 of weight 2/3
    assert weights([short, long], "alike", "token_mean")["a"] == pytest.approx([2.0, 2 / 3])
    assert weights([short, long], "alike", "sequence_mean")["a"] == pytest.approx([1.0, 1.0])
    # Mistake: tokens counted where the loss adds them up, which would bring length normalisation into MAGRPO.
    assert weights([short, long], "alike", "sequence_sum")["a"] == pytest.approx([1.0, 1.0])


def test_a_tree_of_which_nothing_is_learned_takes_no_weight_of_the_others() -> None:
    """Under a critic what was cut off stays for the critic: one of two trees, and the other weighs 1 as alone."""
    trees = [Tree(Task(str(number), {}), graded("a", 1.0, 0.0)) for number in range(2)]
    samples = [
        dataclasses.replace(scored, trains=scored.tree_sample.tree == 1, advantages=(1.0,))
        for scored in samples_of(trees)
    ]
    weighed = batch.weight_by_tree(samples, "alike", LossConfig())
    assert [scored.weight for scored in weighed if scored.trains] == [1.0, 1.0]
