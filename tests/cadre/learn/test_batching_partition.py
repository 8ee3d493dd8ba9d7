"""Dealing to ranks: every sequence once, siblings together, the dearest share as cheap as cuts of the tree allow."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from cadre.learn.batching import partition_by_cost
from cadre.learn.prefix_tree import computed_length, path
from tests.cadre.learn.sequences import sequence, sequences

WIDTH = 4


def work(length):
    return length * (6 * WIDTH + length)


def cost(share, shares):
    """Return the cost token by token: a token at depth d costs 2 * 3 * WIDTH + 2 d + 1."""
    if not shares:
        return sum(work(computed_length(datum)) for datum in share)
    nodes = {(policy, ids[: end + 1]) for policy, ids in map(path, share) for end in range(len(ids))}
    return sum(6 * WIDTH + 2 * len(ids) - 1 for _, ids in nodes)


def cheapest(data, ranks, shares):
    """The cost of the dearest run under the best of all cuts."""
    ordered = sorted(data, key=path)
    cuts = (cut for count in range(ranks) for cut in combinations(range(1, len(data)), count))
    return min(
        max(cost(ordered[a:b], shares) for a, b in zip((0, *cut), (*cut, len(data)), strict=True)) for cut in cuts
    )


@settings(max_examples=60, deadline=None)
@given(sequences(("p", "q"), longest=6), st.integers(1, 4), st.sampled_from(["auto", "prefix_tree", "padded"]))
def test_every_sequence_is_dealt_once_and_no_other_cut_is_cheaper(data, ranks, packing):
    shares = partition_by_cost(data, ranks, packing, WIDTH)
    assert len(shares) == ranks
    assert sorted(index for share in shares for index in share) == list(range(len(data)))
    dearest = max(cost([data[index] for index in share], packing != "padded") for share in shares)
    assert dearest <= cheapest(data, ranks, packing != "padded")


def test_cost_counts_and_not_number():
    long, short = (sequence(range(100 * k, 100 * k + length), (True,) * length) for k, length in ((0, 90), (1, 9)))
    shares = partition_by_cost([long, *[short] * 8], 2, "padded", WIDTH)
    assert sorted(shares) == [[0], list(range(1, 9))]


def test_siblings_stay_together():
    data = [sequence((task, *range(40), k), (False,) * 41 + (True,)) for k in range(4) for task in (7, 8)]
    shares = partition_by_cost(data, 2, "prefix_tree", WIDTH)
    assert [{data[index].token_ids[0] for index in share} for share in shares] == [{7}, {8}]


def test_ranks_without_data():
    assert partition_by_cost([sequence((1, 2), (False, True))], 3, "auto", WIDTH) == [[0], [], []]
    assert partition_by_cost([], 2, "auto", WIDTH) == [[], []]
