"""The sequences of an update as a prefix tree: every distinct token is computed once, forward and backward.

A node is a token after a certain prefix, read by a certain policy. Nodes are numbered by a depth-first walk over the
sequences in sorted order, so a subtree is a run of numbers and "j is i or an ancestor of i" is `j <= i < ends[j]`. What
a sequence says of its token t is gathered from nodes; a loss on the gathered values sends a node the sum of the
gradients of all sequences through it. What this leaves out: models, and how attention is computed (`cover` says what
has to be). Letters: N nodes, B sequences, R nodes that are read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from cadre.types import TrainingSequence

# Lengths in tokens, found by measuring on CPUs. A run of keys shorter than SHORT is repeated by each branch that
# leaves it; a longer one is read by all that follows it in one product. Blocks are about LONG: what they attend to
# before them is then computed without the half that a causal mask hides.
SHORT = 48
LONG = 256


@dataclass(frozen=True)
class Chain:
    """The nodes `start` to `end` that one sequence adds to those before it, hung on node `parent` (-1: on none)."""

    start: int
    end: int
    parent: int


@dataclass(frozen=True)
class PrefixTree:
    """What is run for some sequences. `token_ids`, `depths` and `ends` are int64 [N].

    `ends[j]` is one past the last node of j's subtree. `paths` has for every sequence the nodes of its tokens, as far
    as they are computed, int64. `policies` are (policy, how many nodes), in order. `read` int64 [R], ascending, are the
    nodes whose last states a loss or a value head reads.
    """

    token_ids: Tensor
    depths: Tensor
    ends: Tensor
    paths: tuple[Tensor, ...]
    policies: tuple[tuple[str, int], ...]
    chains: tuple[Chain, ...]
    read: Tensor

    @staticmethod
    def of(data: Sequence[TrainingSequence]) -> PrefixTree:
        """The tree of some sequences, whose order it keeps. A policy's should be sorted, or nodes may occur twice."""
        ids: list[int] = []
        depths: list[Tensor] = []
        chains: list[Chain] = []
        sizes: dict[str, int] = {}
        paths: list[Tensor] = []
        read: list[Tensor] = []
        for before, datum in zip([None, *data], data, strict=False):
            length, start = computed_length(datum), len(ids)
            shared = shared_length(before, datum) if before else 0
            nodes = torch.arange(start - shared, start - shared + length)
            if shared:
                nodes[:shared] = paths[-1][:shared]
            ids.extend(datum.token_ids[shared:length])
            depths.append(torch.arange(shared, length))
            _append(chains, Chain(start, len(ids), int(nodes[shared - 1]) if shared else -1))
            sizes[datum.policy] = sizes.get(datum.policy, 0) + length - shared
            paths.append(nodes)
            read.append(nodes[_read_positions(datum)])
        return PrefixTree(
            token_ids=torch.tensor(ids, dtype=torch.int64),
            depths=torch.cat(depths),
            ends=_ends(chains, len(ids)),
            paths=tuple(paths),
            policies=tuple((name, size) for name, size in sizes.items() if size),
            chains=tuple(chains),
            read=torch.unique(torch.cat(read)),
        )

    @property
    def readers(self) -> tuple[tuple[str, int], ...]:
        """The policies of the nodes that are read, with how many of these each has, in order."""
        parts = self.read.new_tensor([size for _, size in self.policies]).cumsum(0)
        counts = torch.searchsorted(self.read, parts).diff(prepend=parts.new_zeros(1)).tolist()
        return tuple((name, count) for (name, _), count in zip(self.policies, counts, strict=True) if count)


@dataclass(frozen=True)
class Block:
    """The nodes `start` to `end`, a path: each attends to those before it and to all of the path `prefix`."""

    prefix: tuple[int, ...]
    start: int
    end: int

    @property
    def nodes(self) -> tuple[int, ...]:
        return (*self.prefix, *range(self.start, self.end))

    @property
    def size(self) -> int:
        return len(self.prefix) + self.end - self.start


@dataclass(frozen=True)
class PrefixAttention:
    """The nodes `start` to `end` attend to all nodes of `block`."""

    block: Block
    start: int
    end: int


def computed_length(datum: TrainingSequence) -> int:
    """How many of its tokens the model runs: up to the last one whose state is read, by a loss or a value head."""
    # From the end, where it is soon found.
    last = next((index for index in range(len(datum.mask) - 1, 0, -1) if datum.mask[index]), 0)
    return max(last, *(at + 1 for at in datum.targets.at)) if datum.targets and datum.targets.at else last


def path(datum: TrainingSequence) -> tuple[str, tuple[int, ...]]:
    """What names the last node of a sequence."""
    return datum.policy, datum.token_ids[: computed_length(datum)]


def shared_length(first: TrainingSequence, second: TrainingSequence) -> int:
    """How many nodes two sequences share."""
    if first.policy != second.policy:
        return 0
    low, high = 0, min(computed_length(first), computed_length(second))
    while low < high:  # They agree in the first `low`, and not in the first `high + 1`.
        middle = (low + high + 1) // 2
        agree = first.token_ids[low:middle] == second.token_ids[low:middle]
        low, high = (middle, high) if agree else (low, middle - 1)
    return low


def _read_positions(datum: TrainingSequence) -> list[int]:
    """The places of a sequence whose states are read: before each trained token, and where values are."""
    before = [index - 1 for index, kept in enumerate(datum.mask) if kept and index]
    return before + list(datum.targets.at if datum.targets else ())


def _append(chains: list[Chain], chain: Chain) -> None:
    """Add a chain; one that goes on where the last one stopped makes that one longer."""
    if chain.start == chain.end:
        return
    if chains and chain.parent == chain.start - 1:
        chains[-1] = Chain(chains[-1].start, chain.end, chains[-1].parent)
    else:
        chains.append(chain)


def _ends(chains: Sequence[Chain], size: int) -> Tensor:
    """One past the last node of every node's subtree."""
    ends = torch.full((size,), size, dtype=torch.int64)
    growing: list[tuple[int, int]] = []  # Runs of nodes, each below the one before, whose subtrees have not ended.
    for chain in chains:
        while growing and growing[-1][1] > chain.parent + 1:
            start, end = growing.pop()
            kept = max(start, chain.parent + 1)
            ends[kept:end] = chain.start
            if start < kept:
                growing.append((start, kept))
        growing.append((chain.start, chain.end))
    return ends


def attention_mask(query: Tensor, key: Tensor, depths: Tensor, ends: Tensor, window: int | None) -> Tensor:
    """Which nodes `query` attends to, by number: itself and its ancestors, at most `window` tokens in all."""
    under = (key <= query) & (query < ends[key])
    return under if window is None else under & (depths[query] - depths[key] < window)


def cover(tree: PrefixTree) -> tuple[list[Block], list[PrefixAttention]]:
    """All that attends: every node with every ancestor once, in the block that has the node or in one prefix attention.

    A block closes at a branch once it has `SHORT` nodes, and where it would be much longer than `LONG`; then all that
    hangs on its last node attends to it whole. What branches off earlier begins with its nodes up to there as `prefix`.
    """
    branches = sorted({chain.parent + 1 for chain in tree.chains if chain.parent >= 0})
    blocks: list[Block] = []
    prefixes: list[PrefixAttention] = []
    for chain in tree.chains:
        prefix = _open_prefix(blocks, chain.parent)
        inner = branches[bisect_right(branches, chain.start) : bisect_left(branches, chain.end)]
        start = chain.start
        for stop in (*inner, chain.end):
            if stop < chain.end and len(prefix) + stop - start < SHORT:
                continue
            for first, last in _cuts(start, stop, len(prefix)):
                blocks.append(Block(prefix, first, last))
                end = int(tree.ends[last - 1])
                if last < end:
                    prefixes.append(PrefixAttention(blocks[-1], last, end))
                prefix, start = (), last
    return blocks, prefixes


def _open_prefix(blocks: Sequence[Block], parent: int) -> tuple[int, ...]:
    """The nodes before a chain on `parent` that it does not attend to as a whole block."""
    if parent < 0:
        return ()
    block = blocks[bisect_right(blocks, parent, key=lambda block: block.start) - 1]
    return () if parent == block.end - 1 else (*block.prefix, *range(block.start, parent + 1))


def _cuts(start: int, stop: int, prefix: int) -> Iterator[tuple[int, int]]:
    """The run in parts of about `LONG` nodes, where the first has `prefix` more."""
    count = max(1, round((prefix + stop - start) / LONG))
    places = [start - prefix + (prefix + stop - start) * part // count for part in range(count + 1)]
    return pairwise([start, *places[1:]])
