"""The sequences of an update as a prefix tree: every distinct token is computed once, forward and backward.

A node is a token after a certain prefix, under a certain policy. Nodes are numbered by a depth-first walk over the
sequences in sorted order, so a subtree is a run of numbers and "j is i or an ancestor of i" is `j <= i < ends[j]`. The
log-probabilities of a sequence are gathered from its nodes; a loss on the gathered values sends a node the sum of the
gradients of all sequences through it. `cadre.learn.tree_attention` computes the attention that `cover` lists. Letters:
N nodes, B sequences, R nodes that are read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy
import torch
from torch import Tensor

from cadre.types import TrainingSequence

# Lengths in tokens, found by measuring on CPUs. A run of keys shorter than SHORT is repeated by each branch that
# leaves it; a longer one is read by all that follows it in one product. Blocks are about LONG: what they attend to
# before them is then computed without the half that a causal mask hides.
SHORT = 48
LONG = 256
# A start that sequences share is run again once so many times its nodes follow it, and so many nodes at least, where
# trees are asked for that way.
REPEATED = 32
LEAST_REPEATED = 4_096


@dataclass(frozen=True)
class Chain:
    """The nodes `start` to `end` that one sequence adds to those before it, below node `parent` (-1: a root)."""

    start: int
    end: int
    parent: int


@dataclass(frozen=True)
class PrefixTree:
    """The nodes that are run for some sequences.

    token_ids, depths  int64 [N]
    ends               int64 [N], one past the last node of each node's subtree
    paths              for every sequence the nodes of its tokens, as far as they are computed, int64
    policies           (policy, number of nodes), in order
    read               int64 [R], ascending, the nodes whose last states a loss or a value head reads
    """

    token_ids: Tensor
    depths: Tensor
    ends: Tensor
    paths: tuple[Tensor, ...]
    policies: tuple[tuple[str, int], ...]
    chains: tuple[Chain, ...]
    read: Tensor

    @staticmethod
    def of(sequences: Sequence[TrainingSequence], shared_lengths: Sequence[int] | None = None) -> PrefixTree:
        """Return the tree of the sequences, in their order. A policy's should be sorted, or nodes may occur twice.

        `shared_lengths` are the nodes that each has in common with the one before it, by default all that are the same.
        """
        shared_lengths = share(sequences) if shared_lengths is None else shared_lengths
        ids: list[int] = []
        depths: list[Tensor] = []
        chains: list[Chain] = []
        sizes: dict[str, int] = {}
        paths: list[Tensor] = []
        read: list[Tensor] = []
        for shared, sequence in zip(shared_lengths, sequences, strict=True):
            length, start = computed_length(sequence), len(ids)
            nodes = torch.arange(start - shared, start - shared + length)
            if shared:
                nodes[:shared] = paths[-1][:shared]
            ids.extend(sequence.token_ids[shared:length])
            depths.append(torch.arange(shared, length))
            _append(chains, Chain(start, len(ids), int(nodes[shared - 1]) if shared else -1))
            sizes[sequence.policy] = sizes.get(sequence.policy, 0) + length - shared
            paths.append(nodes)
            # Read are the states before each trained token, and those that values are predicted from.
            positions = numpy.flatnonzero(numpy.array(sequence.mask[1:], dtype=bool))
            read += [nodes[torch.from_numpy(positions)], nodes[list(sequence.targets.at if sequence.targets else ())]]
        return PrefixTree(
            token_ids=torch.tensor(ids, dtype=torch.int64),
            depths=torch.cat(depths),
            ends=_ends(chains, len(ids)),
            paths=tuple(paths),
            policies=tuple((name, size) for name, size in sizes.items() if size),
            chains=tuple(chains),
            read=torch.unique(torch.cat(read)),
        )

    def padded(self, multiple: int) -> PrefixTree:
        """Return the tree with nodes that no other sees and nothing reads, up to twice `multiple` or more of it.

        They fill the last block of `multiple` nodes, and that of each chain which they make little longer: a block of
        two chains takes part in the attention of both. With completions of 256 tokens a block then attends to 4.9
        blocks on average in place of 6.5, and one of them needs a mask in place of 3.8.
        """
        size = len(self.token_ids)
        lengths = torch.tensor([chain.end - chain.start for chain in self.chains], dtype=torch.int64)
        limits = (lengths // 8).clamp(max=multiple // 4).tolist()
        added: list[int] = []  # nodes after each chain
        end = 0
        for length, limit in zip(lengths.tolist(), limits, strict=True):
            end += length
            fill = -end % multiple
            added.append(fill if fill <= limit else 0)
            end += added[-1]
        rest = max(2 * multiple - end, -end % multiple)
        if end + rest == size:
            return self
        # A node moves by what was added after the chains before its own.
        fills = torch.tensor(added, dtype=torch.int64)
        moved = torch.arange(size) + (fills.cumsum(0) - fills).repeat_interleave(lengths)
        # The nodes after a chain count as below it, so that a block of them sees whole blocks.
        following = moved + 1
        last_of_chains = [chain.end - 1 for chain in self.chains]
        following[last_of_chains] += fills
        total = end + rest
        token_ids, depths, ends = (*torch.zeros(2, total, dtype=torch.int64), torch.arange(total) + 1)
        token_ids[moved], depths[moved], ends[moved] = self.token_ids, self.depths, following[self.ends - 1]
        # Positions beside those of the chain, so that windows hide as many blocks as before.
        is_added = torch.ones(total, dtype=torch.bool).index_fill_(0, moved, False)
        is_added[end:] = False
        depths[is_added] = self.depths[last_of_chains].repeat_interleave(fills)
        starts = [0, *accumulate(count for _, count in self.policies)][:-1]
        counts = [following - start for start, following in pairwise([*moved[starts].tolist(), total])]
        new = [*moved.tolist(), -1]  # the number of each node; a root is below node -1
        chains = (Chain(new[chain.start], new[chain.end - 1] + 1, new[chain.parent]) for chain in self.chains)
        return PrefixTree(
            token_ids=token_ids,
            depths=depths,
            ends=ends,
            paths=tuple(moved[path] for path in self.paths),
            policies=tuple((name, count) for (name, _), count in zip(self.policies, counts, strict=True)),
            chains=tuple(chains),
            read=moved[self.read],
        )

    @property
    def readers(self) -> tuple[tuple[str, int], ...]:
        """Return (policy, number of its nodes that are read), in order."""
        parts = self.read.new_tensor([size for _, size in self.policies]).cumsum(0)
        counts = torch.searchsorted(self.read, parts).diff(prepend=parts.new_zeros(1)).tolist()
        return tuple((name, count) for (name, _), count in zip(self.policies, counts, strict=True) if count)


@dataclass(frozen=True)
class Block:
    """The nodes `start` to `end` of one path: each attends to those before it and to all of the path `prefix`."""

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
    """The nodes `start` to `end`, which attend to all nodes of `block`."""

    block: Block
    start: int
    end: int


def computed_length(sequence: TrainingSequence) -> int:
    """Return how many tokens the model runs: up to the last one whose state is read, by a loss or a value head."""
    # From the end, where it is soon found.
    last = next((index for index in range(len(sequence.mask) - 1, 0, -1) if sequence.mask[index]), 0)
    targets = sequence.targets
    return max(last, *(at + 1 for at in targets.at)) if targets and targets.at else last


def path(sequence: TrainingSequence) -> tuple[str, tuple[int, ...]]:
    """Return the identity of a sequence's last node: its policy and the tokens up to it."""
    return sequence.policy, sequence.token_ids[: computed_length(sequence)]


def shared_length(first: TrainingSequence, second: TrainingSequence) -> int:
    """Return the number of nodes that two sequences share."""
    if first.policy != second.policy:
        return 0
    return common_length(first.token_ids, second.token_ids, min(computed_length(first), computed_length(second)))


def common_length(first: tuple[int, ...], second: tuple[int, ...], limit: int) -> int:
    """Return the length of the common start of two tuples, `limit` at most; by bisection, as slices compare fast."""
    low, high = 0, limit
    while low < high:  # They agree in the first `low`, and not in the first `high + 1`.
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low


def share(sequences: Sequence[TrainingSequence], repeat: bool = False) -> list[int]:
    """Return the number of nodes that each sequence shares with the one before it; 0 for the first.

    With `repeat` a shared start is run again, as the root of another tree, once REPEATED times its nodes follow it. A
    kernel of FlexAttention's backward pass goes through all nodes that see a block of keys, one after another. Of the
    words that begin every prompt these would be all nodes of a forward, while other keys are seen by one prompt's
    completions, and the GPU would wait for that one kernel.
    """
    lengths: list[int] = []
    size = 0  # nodes since the last root
    for previous, sequence in zip([None, *sequences], sequences, strict=False):
        shared = shared_length(previous, sequence) if previous else 0
        if repeat and size >= max(REPEATED * shared, LEAST_REPEATED):
            shared = 0
        size = (size if shared else 0) + computed_length(sequence) - shared
        lengths.append(shared)
    return lengths


def _append(chains: list[Chain], chain: Chain) -> None:
    """Add a chain; one that continues the last one makes that longer."""
    if chain.start == chain.end:
        return
    if chains and chain.parent == chain.start - 1:
        chains[-1] = Chain(chains[-1].start, chain.end, chains[-1].parent)
    else:
        chains.append(chain)


def _ends(chains: Sequence[Chain], size: int) -> Tensor:
    """Return one past the last node of every node's subtree."""
    ends = torch.full((size,), size, dtype=torch.int64)
    growing: list[tuple[int, int]] = []  # Runs of nodes, each below the one before, whose subtrees have not ended.
    for chain in chains:
        # Nodes after the chain's parent on the open path have no further descendants: their subtrees end here.
        while growing and growing[-1][1] > chain.parent + 1:
            start, end = growing.pop()
            first = max(start, chain.parent + 1)
            ends[first:end] = chain.start
            if start < first:
                growing.append((start, first))
        growing.append((chain.start, chain.end))
    return ends


def attention_mask(query: Tensor, key: Tensor, depths: Tensor, ends: Tensor, window: int | None) -> Tensor:
    """Return True where `query` attends to `key`: to itself and its ancestors, at most `window` tokens in all."""
    under = (key <= query) & (query < ends[key])
    return under if window is None else under & (depths[query] - depths[key] < window)


def cover(tree: PrefixTree) -> tuple[list[Block], list[PrefixAttention]]:
    """Return all pairs of a node and an ancestor once: in the node's own block, or in one prefix attention.

    A block closes at a branch once it has `SHORT` nodes, and where it would be much longer than `LONG`; all nodes below
    its last one then attend to it whole. A chain that branches off earlier starts with the nodes up to there as
    `prefix`.
    """
    branches = sorted({chain.parent + 1 for chain in tree.chains if chain.parent >= 0})
    blocks: list[Block] = []
    prefixes: list[PrefixAttention] = []
    for chain in tree.chains:
        prefix = _open_prefix(blocks, chain.parent)
        inner = branches[bisect_right(branches, chain.start) : bisect_left(branches, chain.end)]
        start = chain.start
        for stop in (*inner, chain.end):
            # A short run before a branch stays open: repeating its keys costs less than another call of the kernel.
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
    """Return the nodes before a chain on `parent` that it does not attend to as a whole block."""
    if parent < 0:
        return ()
    block = blocks[bisect_right(blocks, parent, key=lambda block: block.start) - 1]
    return () if parent == block.end - 1 else (*block.prefix, *range(block.start, parent + 1))


def _cuts(start: int, stop: int, prefix: int) -> Iterator[tuple[int, int]]:
    """Yield the run in parts of about `LONG` nodes, where the first has `prefix` more."""
    count = max(1, round((prefix + stop - start) / LONG))
    bounds = [start - prefix + (prefix + stop - start) * part // count for part in range(count + 1)]
    return pairwise([start, *bounds[1:]])
