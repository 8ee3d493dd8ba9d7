"""The prefix tree: a node is a policy and a prefix, and what is to be attended to is that once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadre.learn import prefix_tree
from cadre.learn.prefix_tree import PrefixTree, share
from tests.cadre.learn.sequences import closing_at, sequence, sequences


@settings(max_examples=40, deadline=None)
@given(sequences(("p", "q")), st.sampled_from([(1, 3), (2, 5), (3, 8), (6, 16)]))
def test_every_ancestor_is_attended_to_once(data, lengths):
    with closing_at(*lengths):
        tree = PrefixTree.of(sorted(data, key=prefix_tree.path))
        blocks, prefixes = prefix_tree.cover(tree)
    paths = [tuple(path.tolist()) for path in tree.paths]
    expected = {(path[i], path[j]) for path in paths for i in range(len(path)) for j in range(i + 1)}
    result = [(b.nodes[i], b.nodes[j]) for b in blocks for i in range(len(b.prefix), b.size) for j in range(i + 1)]
    result += [
        (node, key) for prefix in prefixes for node in range(prefix.start, prefix.end) for key in prefix.block.nodes
    ]
    assert len(result) == len(set(result))
    assert set(result) == expected


@settings(max_examples=30, deadline=None)
@given(sequences(("p", "q")))
def test_a_node_is_a_policy_and_a_prefix(data):
    data = sorted(data, key=prefix_tree.path)
    tree = PrefixTree.of(data)
    read = [
        (sample.policy, sample.token_ids[: depth + 1])
        for sample in data
        for depth in range(prefix_tree.computed_length(sample))
    ]
    assert len(tree.token_ids) == len(set(read))
    named = {}
    for datum, path in zip(data, tree.paths, strict=True):
        assert tree.token_ids[path].tolist() == list(datum.token_ids[: prefix_tree.computed_length(datum)])
        assert tree.depths[path].tolist() == list(range(len(path)))
        for depth, node in enumerate(path.tolist()):
            assert named.setdefault(node, (datum.policy, datum.token_ids[: depth + 1])) == (
                datum.policy,
                datum.token_ids[: depth + 1],
            )
    above = {
        (node, key) for path in tree.paths for i, node in enumerate(path.tolist()) for key in path[: i + 1].tolist()
    }
    ends = tree.ends.tolist()
    assert above == {(i, j) for j in range(len(ends)) for i in range(j, ends[j])}
    assert sum(size for _, size in tree.policies) == len(tree.token_ids)


def test_a_start_is_shared_until_many_nodes_follow_it(monkeypatch):
    """Three prompts of 10 tokens begin with the same 2, and have two answers of 6, of which 5 are run.

    Each prompt is 20 nodes, or 18 below the shared start. That is run again from 2 * 15 nodes on: for the third.
    """
    monkeypatch.setattr(prefix_tree, "REPEATED", 15)
    monkeypatch.setattr(prefix_tree, "LEAST_REPEATED", 0)
    mask = (False,) * 10 + (True,) * 6
    data = [sequence((1, 2, *[10 + k] * 8, *[20 + n] * 6), mask) for k in range(3) for n in range(2)]
    assert share(data) == [0, 10, 2, 10, 2, 10]
    assert share(data, repeat=True) == [0, 10, 2, 10, 0, 10]
    tree = PrefixTree.of(data, share(data, repeat=True))
    assert [chain.start for chain in tree.chains if chain.parent < 0] == [0, 38]
    assert (len(tree.token_ids), tree.policies) == (58, (("p", 58),))
    assert tree.ends[[0, 1, 38]].tolist() == [38, 38, 58]
    monkeypatch.setattr(prefix_tree, "LEAST_REPEATED", 39)
    assert share(data, repeat=True) == share(data)


@settings(max_examples=40, deadline=None)
@given(sequences(("p", "q")), st.integers(0, 4))
def test_a_tree_of_repeated_starts_has_the_same_paths(data, repeated):
    data = sorted(data, key=prefix_tree.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_tree, "REPEATED", repeated)
        patch.setattr(prefix_tree, "LEAST_REPEATED", 0)
        tree = PrefixTree.of(data, share(data, repeat=True))
    above = set()
    for datum, path in zip(data, tree.paths, strict=True):
        assert tree.token_ids[path].tolist() == list(datum.token_ids[: prefix_tree.computed_length(datum)])
        assert tree.depths[path].tolist() == list(range(len(path)))
        above |= {(node, key) for i, node in enumerate(path.tolist()) for key in path[: i + 1].tolist()}
    ends = tree.ends.tolist()
    assert above == {(i, j) for j in range(len(ends)) for i in range(j, ends[j])}
    assert sum(size for _, size in tree.policies) == len(tree.token_ids)
    # A start of s nodes is run again after REPEATED * s others, themselves run again or not: of n nodes at most
    # n / REPEATED are.
    if repeated:
        assert (repeated - 1) * len(tree.token_ids) <= repeated * len(PrefixTree.of(data).token_ids)
