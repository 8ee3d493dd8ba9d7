"""How an update is cut into forwards: as prefix trees of neighbouring sequences, or padded where that is cheaper."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from cadre.learn.prefix_tree import PrefixTree, computed_length, cover, path, shared_length
from cadre.settings import Packing
from cadre.types import TrainingSequence

# Costs in query-key pairs of attention, found by measuring: of a token apart from attention, for each unit of the
# model's width (the weights of a layer take about 24 width^2 operations, a pair 4 width, at about half the speed), and
# of calling the attention kernel at all. A node of a tree costs a twentieth more than a padded token, for copying.
TOKEN = 3
CALL = 2_000
COPIES = 1.05
# What a forward costs beside its tokens, in tokens. A part that is cut before it is full costs this share of another.
FORWARD = 256


@dataclass(frozen=True)
class MicroBatch:
    """The sequences of one forward, in order, with the places `indices` that they have in the data that was cut.

    `tree` is their prefix tree, or None where plain padding is cheaper.
    """

    data: tuple[TrainingSequence, ...]
    indices: tuple[int, ...]
    tree: PrefixTree | None = None


def microbatches(data: Sequence[TrainingSequence], tokens: int, packing: Packing, width: int) -> list[MicroBatch]:
    """The data in micro-batches of at most `tokens` nodes or padded tokens each, or of one sequence.

    Neighbours in the tree stay together. `auto` takes for each the cheaper of the tree and plain padding, by counted
    tokens and pairs of attention in a model of hidden size `width`. A rank may have no data, and no micro-batch.
    """
    if not data:
        return []
    if packing == "padded":
        return padded(data, range(len(data)), tokens)
    batches: list[MicroBatch] = []
    for part in _neighbours(data, tokens):
        sequences = tuple(data[index] for index in part)
        tree, plain = PrefixTree.of(sequences), padded(data, part, tokens)
        cheaper = packing == "prefix_tree" or tree_cost(tree, width) < sum(
            padded_cost(one.data, width) for one in plain
        )
        batches.extend([MicroBatch(sequences, tuple(part), tree)] if cheaper and len(tree.token_ids) else plain)
    return batches


def idle(policy: str) -> MicroBatch:
    """What is run in step with the forwards of other ranks where there is nothing to do: no token of it counts."""
    nothing = (0.0, 0.0)
    return MicroBatch((TrainingSequence(policy, "", (0, 0), (False, False), nothing, nothing, 0),), ())


def tree_cost(tree: PrefixTree, width: int) -> float:
    """What running a prefix tree costs, in pairs of attention."""
    blocks, prefixes = cover(tree)
    pairs = sum(block.size**2 for block in blocks)
    pairs += sum(prefix.block.size * (prefix.end - prefix.start) for prefix in prefixes)
    return COPIES * len(tree.token_ids) * TOKEN * width + pairs + CALL * (1 + len(prefixes))


def padded_cost(data: Sequence[TrainingSequence], width: int) -> int:
    """What running padded sequences costs, in pairs of attention."""
    longest = max(len(datum.token_ids) for datum in data)
    return len(data) * longest * (TOKEN * width + longest) + CALL


def padded(data: Sequence[TrainingSequence], indices: Sequence[int], tokens: int) -> list[MicroBatch]:
    """The data at `indices` by similar length, at most `tokens` padded tokens each; a longer sequence stands alone.

    Within one, the sequences of a policy stand side by side.
    """
    parts: list[list[int]] = []
    for index in sorted(indices, key=lambda index: -len(data[index].token_ids)):
        longest = len(data[parts[-1][0]].token_ids) if parts else 0
        if parts and longest * (len(parts[-1]) + 1) <= tokens:
            parts[-1].append(index)
        else:
            parts.append([index])
    ordered = [sorted(part, key=lambda index: data[index].policy) for part in parts]
    return [MicroBatch(tuple(data[index] for index in part), tuple(part)) for part in ordered]


def _neighbours(data: Sequence[TrainingSequence], tokens: int) -> Iterator[list[int]]:
    """The indices in the order of the tree, in parts of at most `tokens` nodes, cut where little has to run again."""
    order = sorted(range(len(data)), key=lambda index: path(data[index]))
    lengths = [computed_length(data[index]) for index in order]
    shared = [shared_length(data[one], data[next_one]) for one, next_one in pairwise(order)]
    # Nodes up to each sequence, were all of them in one tree.
    nodes = list(accumulate(length - again for length, again in zip(lengths, [0, *shared], strict=True)))
    start = 0
    while start < len(order):
        before = nodes[start] - lengths[start]
        end = bisect_right(nodes, before + tokens, start + 1)
        if end < len(order):
            filled = max(1, nodes[end - 1] - before)
            half = bisect_left(nodes, before + filled / 2, start, end) + 1

            def lost(cut: int, end: int = end, filled: int = filled) -> float:
                return shared[cut - 1] + FORWARD * (nodes[end - 1] - nodes[cut - 1]) / filled

            end = min(range(end, half - 1, -1), key=lost)
        yield order[start:end]
        start = end
