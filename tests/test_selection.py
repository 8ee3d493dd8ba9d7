"""What an update learns from, worked out by hand: cut and overlong completions, groups without spread, role weights."""

import dataclasses
from collections.abc import Sequence

import pytest

from cadre import selection
from cadre.credit import Credit, Group, assign, data, share_without_spread
from cadre.learn.batch import sequence_weights
from cadre.sections import CreditConfig, LossConfig
from cadre.types import Datum, Node, Sample, Sampling, Task, Tree
from tests.test_credit import leaf, node

SAMPLING = {"a": Sampling(max_tokens=10), "b": Sampling(max_tokens=20)}
GRADED = Credit("step", "node", "mean", "none")


def lengthened(root: Node, role: str, *lengths: int) -> Node:
    """The tree with siblings of so many tokens; at SAMPLING's limit they are cut off."""

    def sized(sample: Sample, length: int) -> Sample:
        cut = length >= SAMPLING[role].max_tokens
        tokens = {"token_ids": (5,) * length, "logprobs": (-1.0,) * length, "finish": "length" if cut else "stop"}
        return dataclasses.replace(sample, **tokens)

    siblings = tuple(sized(one, length) for one, length in zip(root.samples[role], lengths, strict=True))
    return dataclasses.replace(root, samples={**root.samples, role: siblings})


def graded(role: str, *pays: float) -> Node:
    return node(0, {role: len(pays)}, [leaf({role: index}, pay) for index, pay in enumerate(pays)])


def data_of(groups: Sequence[Group], chosen: CreditConfig) -> list[Datum]:
    return selection.weighted(data(selection.select(groups, chosen), SAMPLING), chosen)


def learned(root: Node, **settings: object) -> dict[int, float]:
    """Advantages by position of the sibling, of those that give a training sequence; lengths are distinct."""
    chosen, tree = CreditConfig(**settings), Tree(Task("t", {}), root)
    groups = assign([tree], GRADED, None, selection.penalties([tree], chosen, SAMPLING))
    return {sum(datum.mask): datum.advantages[-1] for datum in data_of(groups, chosen)}


@pytest.mark.parametrize(("length", "penalty"), [(1, 0.0), (6, 0.0), (7, -0.25), (9, -0.75), (10, -1.0)])
def test_the_overlong_penalty_by_hand(length: int, penalty: float) -> None:
    """Equation 13 of DAPO with 10 tokens at most and a buffer of 4: nothing up to 6, then a quarter a token."""
    sample = Sample("a", "p", "", (), (1,) * length, (0.0,) * length, "stop", 0)
    assert selection.overlong(sample, 10, 4) == penalty
    assert selection.overlong(dataclasses.replace(sample, finish="length"), 10, 4) == -1.0


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


def test_a_cut_completion_counts_in_its_group_and_is_not_trained() -> None:
    root = lengthened(graded("a", 3.0, 0.0, 6.0), "a", 2, 3, 10)
    assert learned(root) == pytest.approx({2: 0.0, 3: -3.0, 10: 3.0})
    assert learned(root, truncated="mask") == pytest.approx({2: 0.0, 3: -3.0})  # against the mean of all three


def test_groups_without_spread_leave_the_denominators_when_they_are_dropped() -> None:
    trees = [Tree(Task(str(i), {}), graded("a", *pays)) for i, pays in enumerate([(1.0, 3.0), (2.0, 2.0)])]
    groups = assign(trees, GRADED)
    kept, dropped = (CreditConfig(without_spread=choice) for choice in ("keep", "drop"))
    for chosen, sequences in ((kept, 4), (dropped, 2)):
        drawn = data_of(groups, chosen)
        assert len(drawn) == sequences
        weights = sequence_weights(drawn, LossConfig(aggregate="sequence_sum"))
        assert set(weights.values()) == {1 / sequences}
        assert selection.dropped(groups, chosen) == 4 - sequences
    assert share_without_spread(groups) == 0.5


def test_a_role_weighs_in_the_loss_what_it_is_given() -> None:
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, 2.0 * i) for i in range(2)])
    groups = assign([Tree(Task("t", {}), root)], GRADED)
    drawn = data_of(groups, CreditConfig(role_weights={"a": 0.25}))
    found = {(datum.role, datum.advantages) for datum in drawn}
    quarter, whole = (0.0, 0.0, 0.25, 0.25), (0.0, 0.0, 1.0, 1.0)
    assert found == {
        ("a", quarter),
        ("a", tuple(-value for value in quarter)),
        ("b", whole),
        ("b", tuple(-value for value in whole)),
    }
