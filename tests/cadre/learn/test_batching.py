"""The division of an update into forwards: grouping, size limits, and where padding is cheaper."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadre.learn import prefix_tree
from cadre.learn.batching import make_microbatches
from tests.cadre.learn.sequences import sequence, sequences


def test_auto_pads_where_nothing_is_shared():
    alike = [sequence(range(100 * k, 100 * k + 100), (False,) * 50 + (True,) * 50) for k in range(8)]
    siblings = [sequence((*range(80), *range(100 * k, 100 * k + 20)), (False,) * 80 + (True,) * 20) for k in range(8)]
    assert all(batch.tree is None for batch in make_microbatches(alike, 4096, "auto", 256))
    assert [batch.tree is not None for batch in make_microbatches(siblings, 4096, "auto", 256)] == [True]
    assert all(batch.tree is None for batch in make_microbatches(siblings, 4096, "padded", 256))
    assert all(batch.tree is not None for batch in make_microbatches(alike, 4096, "prefix_tree", 256))


def conversations(count, first, siblings=4):
    """Each a prompt of 30 tokens, answered by siblings of 10; conversation k begins with token `first + k`."""
    prompts = [(first + k, *range(29)) for k in range(count)]
    mask = (False,) * 30 + (True,) * 10
    return [sequence((*prompt, *[s] * 10), mask) for prompt in prompts for s in range(siblings)]


def test_a_conversation_is_not_cut_where_another_micro_batch_would_hold_it_whole():
    data = conversations(4, 100)  # of 30 + 4 * 9 nodes each
    sizes = [len(batch.tree.token_ids) for batch in make_microbatches(data, 150, "prefix_tree", 256)]
    assert sizes == [132, 132]
    # One that no micro-batch could hold is cut, and as seldom as can be.
    (long,) = [make_microbatches(conversations(1, 100, siblings=20), 100, "prefix_tree", 256)]
    assert [len(batch.data) for batch in long] == [7, 7, 6]


@settings(max_examples=60, deadline=None)
@given(sequences(("p", "q")), st.integers(1, 80), st.sampled_from(["auto", "prefix_tree", "padded"]), st.booleans())
def test_batchs_hold_every_sequence_once_and_keep_to_their_size(data, tokens, packing, repeat):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_tree, "REPEATED", 2)
        patch.setattr(prefix_tree, "LEAST_REPEATED", 0)
        microbatches = list(make_microbatches(data, tokens, packing, 32, repeat))
    assert sorted(index for batch in microbatches for index in batch.indices) == list(range(len(data)))
    for batch in microbatches:
        assert batch.data == tuple(data[index] for index in batch.indices)
        longest = max(len(datum.token_ids) for datum in batch.data)
        size = len(batch.tree.token_ids) if batch.tree else longest * len(batch.data)
        assert size <= tokens or len(batch.data) == 1
        assert [datum.policy for datum in batch.data] == sorted(datum.policy for datum in batch.data)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 100))
def test_padding_keeps_every_sequence_within_the_budget(lengths, budget):
    data = [sequence(range(length), (True,) * length) for length in lengths]
    batches = make_microbatches(data, budget, "padded", 32)
    assert sorted(index for batch in batches for index in batch.indices) == list(range(len(data)))
    for batch in batches:
        longest = max(len(datum.token_ids) for datum in batch.data)
        assert len(batch.data) == 1 or longest * len(batch.data) <= budget


@pytest.mark.parametrize("packing", ["auto", "prefix_tree", "padded"])
def test_no_data_make_no_micro_batch(packing):
    """A rank of a group may have nothing to do."""
    assert list(make_microbatches([], 100, packing, 8)) == []
