"""The prefix tree: a node is a policy and a prefix, and what is to be attended to is that once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cadre.learn import prefix_tree
from cadre.learn.prefix_tree import PrefixTree
from tests.cadre.learn.sequences import closing_at, sequences


@settings(max_examples=40, deadline=None)
@given(sequences(("p", "q")), st.sampled_from([(1, 3), (2, 5), (3, 8), (6, 16)]))
def test_every_ancestor_is_attended_to_once(data, lengths):
    with closing_at(*lengths):
        tree = PrefixTree.of(sorted(data, key=prefix_tree.path))
        blocks, prefixes = prefix_tree.cover(tree)
    paths = [tuple(path.tolist()) for path in tree.paths]
    wanted = {(path[i], path[j]) for path in paths for i in range(len(path)) for j in range(i + 1)}
    found = [(b.nodes[i], b.nodes[j]) for b in blocks for i in range(len(b.prefix), b.size) for j in range(i + 1)]
    found += [
        (node, key) for prefix in prefixes for node in range(prefix.start, prefix.end) for key in prefix.block.nodes
    ]
    assert len(found) == len(set(found))
    assert set(found) == wanted


@settings(max_examples=30, deadline=None)
@given(sequences(("p", "q")))
def test_a_node_is_a_policy_and_a_prefix(data):
    data = sorted(data, key=prefix_tree.path)
    tree = PrefixTree.of(data)
    read = [
        (one.policy, one.token_ids[: depth + 1]) for one in data for depth in range(prefix_tree.computed_length(one))
    ]
    assert len(tree.token_ids) == len(set(read))
    named = {}
    for one, path in zip(data, tree.paths, strict=True):
        assert tree.token_ids[path].tolist() == list(one.token_ids[: prefix_tree.computed_length(one)])
        assert tree.depths[path].tolist() == list(range(len(path)))
        for depth, node in enumerate(path.tolist()):
            assert named.setdefault(node, (one.policy, one.token_ids[: depth + 1])) == (
                one.policy,
                one.token_ids[: depth + 1],
            )
    above = {
        (node, key) for path in tree.paths for i, node in enumerate(path.tolist()) for key in path[: i + 1].tolist()
    }
    ends = tree.ends.tolist()
    assert above == {(i, j) for j in range(len(ends)) for i in range(j, ends[j])}
    assert sum(size for _, size in tree.policies) == len(tree.token_ids)
