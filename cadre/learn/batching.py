"""How the sequences of an update are cut and packed: optimizer steps, ranks, micro-batches, padded tensors.

    minibatches         the sequences that each optimiser step averages over
    partition_by_cost   the sequences that each rank of a group runs
    make_microbatches   the sequences of each forward, as prefix trees of neighbours or padded where that is cheaper
    collate             the tensors of one forward

Padding is on the right: under a causal model what follows a token cannot change it, so no attention mask is needed.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy
import torch
from torch import Tensor

from cadre.learn.prefix_tree import PrefixTree, computed_length, cover, path, share, shared_length
from cadre.learn.tensors import to_device
from cadre.settings import LossConfig, Packing
from cadre.types import TrainingSequence

# Costs in query-key pairs of attention, found by measuring: of a token apart from attention, for each unit of the
# model's width (the weights of a layer take about 24 width^2 operations, a pair 4 width, at about half the speed), and
# of calling the attention kernel at all. A node of a tree costs a twentieth more than a padded token, for copying.
TOKEN = 3
CALL = 2_000
COPIES = 1.05
# The cost of a forward beside its tokens, in tokens. A part that is cut before it is full costs this share of another.
FORWARD = 256


# Optimiser steps.


def has_gradient(sequence: TrainingSequence, config: LossConfig) -> bool:
    """Return True if a sequence moves the weights at all. With advantages of zero it does so only through a critic's
    targets, an entropy bonus, a KL term, or a loss of the user's."""
    has_other_terms = config.entropy > 0.0 or config.kl > 0.0 or config.function is not None
    if sequence.targets is not None or (any(sequence.mask) and has_other_terms):
        return True
    # From the end, where completions are.
    pairs = zip(reversed(sequence.mask), reversed(sequence.advantages), strict=True)
    return any(inside and advantage != 0.0 for inside, advantage in pairs)


def minibatches(
    sequences: Sequence[TrainingSequence], count: int, generator: random.Random
) -> list[list[TrainingSequence]]:
    """Return the sequences in a drawn order and in `count` parts of near equal size, none of them empty."""
    shuffled = list(sequences)
    generator.shuffle(shuffled)
    count = min(count, len(shuffled))
    return [shuffled[index::count] for index in range(count)]


# Ranks of a group. Every rank computes the partition anew, so that nothing has to be sent.


def partition_by_cost(
    sequences: Sequence[TrainingSequence], ranks: int, packing: Packing, width: int
) -> list[list[int]]:
    """Return the indices of each rank's sequences; a rank may have none.

    Neighbours in the prefix tree go to one rank, which runs what they share once. Where the tree is cut both sides run
    what they shared, and that counts: of all ways to cut the tree's order into so many runs, the dearest run is the
    cheapest. `width` is the model's hidden size.
    """

    def work(length: int) -> int:
        # Each token costs so much by itself, and a pair with every token up to it; in half pairs of attention.
        return length * (2 * TOKEN * width + length)

    order = sorted(range(len(sequences)), key=lambda index: path(sequences[index]))
    ordered = [sequences[index] for index in order]
    costs = []  # of each sequence alone, and after the one before it
    for previous, sequence in zip([None, *ordered], ordered, strict=False):
        full = work(computed_length(sequence))
        shared = shared_length(previous, sequence) if previous and packing != "padded" else 0
        costs.append((full, full - work(shared)))
    total = sum(full for full, _ in costs)
    bound = bisect_left(range(total), True, key=lambda bound: _run_starts(costs, bound, ranks) is not None)
    starts = _run_starts(costs, bound, ranks) or []
    parts = [order[start:end] for start, end in pairwise([*starts, len(order)])]
    return parts + [[] for _ in range(ranks - len(parts))]


def _run_starts(costs: Sequence[tuple[int, int]], bound: int, ranks: int) -> list[int] | None:
    """Return the starts of runs none of which costs more than `bound`, or None if that takes more than `ranks` runs."""
    starts: list[int] = []
    filled = bound + 1
    for index, (full, added) in enumerate(costs):
        if filled + added > bound:
            if full > bound or len(starts) == ranks:
                return None
            starts.append(index)
            filled = full
        else:
            filled += added
    return starts


# Micro-batches.


@dataclass(frozen=True)
class MicroBatch:
    """The sequences of one forward, in order, with their `indices` in the data that was cut. `tree` is their prefix
    tree, or None if plain padding is cheaper."""

    data: tuple[TrainingSequence, ...]
    indices: tuple[int, ...]
    tree: PrefixTree | None = None


def make_microbatches(
    sequences: Sequence[TrainingSequence], tokens: int, packing: Packing, width: int, repeat: bool = False
) -> Iterator[MicroBatch]:
    """Yield the sequences in micro-batches of at most `tokens` nodes or padded tokens each, or of one sequence.

    Neighbours in the tree stay together. `auto` takes for each the cheaper of the tree and plain padding, by counted
    tokens and pairs of attention in a model of hidden size `width`. With `repeat` starts that many share are run more
    than once (`prefix_tree.share`). A rank may have no data, and no micro-batch.
    """
    if not sequences:
        return
    if packing == "padded":
        yield from pad_by_length(sequences, range(len(sequences)), tokens)
        return
    for part, shared in _neighbours(sequences, tokens, repeat):
        neighbours = tuple(sequences[index] for index in part)
        tree = PrefixTree.of(neighbours, shared)
        if packing == "prefix_tree" and len(tree.token_ids):
            yield MicroBatch(neighbours, tuple(part), tree)
            continue
        padded = pad_by_length(sequences, part, tokens)
        is_cheaper = tree_cost(tree, width) < sum(padded_cost(batch.data, width) for batch in padded)
        yield from [MicroBatch(neighbours, tuple(part), tree)] if is_cheaper and len(tree.token_ids) else padded


def idle_microbatch(policy: str) -> MicroBatch:
    """Return a micro-batch without a trained token, for a rank that has to keep in step with the others' forwards."""
    zeros = (0.0, 0.0)
    return MicroBatch((TrainingSequence(policy, "", (0, 0), (False, False), zeros, zeros, 0),), ())


def tree_cost(tree: PrefixTree, width: int) -> float:
    """Return the cost of running a prefix tree, in pairs of attention."""
    blocks, prefixes = cover(tree)
    pairs = sum(block.size**2 for block in blocks)
    pairs += sum(prefix.block.size * (prefix.end - prefix.start) for prefix in prefixes)
    return COPIES * len(tree.token_ids) * TOKEN * width + pairs + CALL * (1 + len(prefixes))


def padded_cost(sequences: Sequence[TrainingSequence], width: int) -> int:
    """Return the cost of running padded sequences, in pairs of attention."""
    longest = max(len(sequence.token_ids) for sequence in sequences)
    return len(sequences) * longest * (TOKEN * width + longest) + CALL


def pad_by_length(sequences: Sequence[TrainingSequence], indices: Sequence[int], tokens: int) -> list[MicroBatch]:
    """Return the sequences at `indices` by similar length, at most `tokens` padded tokens each; a longer one is alone.
    Within a micro-batch, the sequences of a policy are side by side."""
    parts: list[list[int]] = []
    for index in sorted(indices, key=lambda index: -len(sequences[index].token_ids)):
        longest = len(sequences[parts[-1][0]].token_ids) if parts else 0
        if parts and longest * (len(parts[-1]) + 1) <= tokens:
            parts[-1].append(index)
        else:
            parts.append([index])
    ordered = [sorted(part, key=lambda index: sequences[index].policy) for part in parts]
    return [MicroBatch(tuple(sequences[index] for index in part), tuple(part)) for part in ordered]


def _neighbours(
    sequences: Sequence[TrainingSequence], tokens: int, repeat: bool
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield indices in the tree's order, in parts of at most `tokens` nodes, cut where little has to run again; and how
    many nodes each shares with the one before it."""
    order = sorted(range(len(sequences)), key=lambda index: path(sequences[index]))
    lengths = [computed_length(sequences[index]) for index in order]
    shared = share([sequences[index] for index in order], repeat)
    # Nodes up to each sequence, were all of them in one tree.
    nodes = list(accumulate(length - again for length, again in zip(lengths, shared, strict=True)))
    start = 0
    while start < len(order):
        previous = nodes[start] - lengths[start]
        end = bisect_right(nodes, previous + tokens, start + 1)
        if end < len(order):
            filled = max(1, nodes[end - 1] - previous)
            half = bisect_left(nodes, previous + filled / 2, start, end) + 1
            # Of the cuts that leave the part at least half full, take the one after which least has to run again.

            def cost_of_cut(cut: int, end: int = end, filled: int = filled) -> float:
                return shared[cut] + FORWARD * (nodes[end - 1] - nodes[cut - 1]) / filled

            end = min(range(end, half - 1, -1), key=cost_of_cut)
        yield order[start:end], [0, *shared[start + 1 : end]]
        start = end


# Tensors.


@dataclass(frozen=True)
class ValueTargets:
    """The N values that heads are trained on.

    sequences, positions  where they are read, int64 [N]
    returns               the targets, float32 [N]
    values                the predictions before the update, float32 [N]
    heads                 (policy, name) of the head that reads each
    """

    sequences: Tensor
    positions: Tensor
    returns: Tensor
    values: Tensor
    heads: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Batch:
    """B sequences padded on the right to T tokens.

    token_ids         int64 [B, T]
    mask              boolean [B, T], True where a token is trained on
    rollout_logprobs  float32 [B, T], the sampler's
    old               float32 [B, T], those at the start of the update
    advantages        float32 [B, T]
    reference         float32 [B, T], those of the reference model
    temperature       float32 [B]
    policies, roles   of each sequence
    lengths           trained tokens of each sequence
    targets           the values that heads are trained on, of all sequences
    tree              the prefix tree that is run in place of the padded sequences
    vision            what a vision-language model takes beside or in place of the ids
    on_cpu            the same on the CPU, where indices are computed without waiting for a GPU; None if this one is it
    """

    token_ids: Tensor
    mask: Tensor
    rollout_logprobs: Tensor
    old: Tensor
    advantages: Tensor
    reference: Tensor
    temperature: Tensor
    policies: tuple[str, ...]
    lengths: tuple[int, ...]
    targets: ValueTargets
    tree: PrefixTree | None = None
    roles: tuple[str, ...] = ()
    vision: Mapping[str, Tensor] = field(default_factory=dict)
    on_cpu: Batch | None = None

    @property
    def host(self) -> Batch:
        """Return the batch on the CPU."""
        return self.on_cpu or self

    def to(self, device: torch.device) -> Batch:
        """Return this batch of the CPU on a device, with itself as `on_cpu`. The tree stays on the CPU."""

        def moved(part: Any) -> dict[str, Any]:
            return {name: to_device(value, device) for name, value in vars(part).items() if isinstance(value, Tensor)}

        return replace(self, **moved(self), targets=replace(self.targets, **moved(self.targets)), on_cpu=self)


def collate(sequences: Sequence[TrainingSequence], device: torch.device, tree: PrefixTree | None = None) -> Batch:
    """Return the sequences as one padded batch. Padding has token id 0 and is outside the mask. `tree` is that of the
    sequences, in their order."""

    def padded(rows: Sequence[Sequence], dtype: type) -> Tensor:
        # By numpy, which reads a tuple several times as fast as torch.
        tensors = [torch.from_numpy(numpy.array(row, dtype=dtype)) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    entries = [
        (number, position, target, value, (sequence.policy, targets.head))
        for number, sequence in enumerate(sequences)
        if (targets := sequence.targets) is not None
        for position, target, value in zip(targets.at, targets.returns, targets.values, strict=True)
    ]
    numbers, positions, returns, values, heads = zip(*entries, strict=True) if entries else ((), (), (), (), ())
    old = reference = rollout_logprobs = padded([sequence.logprobs for sequence in sequences], numpy.float32)
    if any(sequence.old for sequence in sequences):
        old = padded([sequence.old or sequence.logprobs for sequence in sequences], numpy.float32)
    if any(sequence.reference for sequence in sequences):
        reference = padded([sequence.reference or sequence.logprobs for sequence in sequences], numpy.float32)
    batch = Batch(
        token_ids=padded([sequence.token_ids for sequence in sequences], numpy.int64),
        mask=padded([sequence.mask for sequence in sequences], numpy.bool_),
        rollout_logprobs=rollout_logprobs,
        old=old,
        advantages=padded([sequence.advantages for sequence in sequences], numpy.float32),
        reference=reference,
        temperature=torch.tensor([sequence.temperature for sequence in sequences], dtype=torch.float32),
        policies=tuple(sequence.policy for sequence in sequences),
        lengths=tuple(sum(sequence.mask) for sequence in sequences),
        targets=ValueTargets(
            sequences=torch.tensor(numbers, dtype=torch.int64),
            positions=torch.tensor(positions, dtype=torch.int64),
            returns=torch.tensor(returns, dtype=torch.float32),
            values=torch.tensor(values, dtype=torch.float32),
            heads=tuple(heads),
        ),
        tree=tree,
        roles=tuple(sequence.role for sequence in sequences),
    )
    return batch if device.type == "cpu" else batch.to(device)
