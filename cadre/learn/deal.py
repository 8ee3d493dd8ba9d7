"""Which rank of a group runs which sequences: dealt by what they cost to run, not by their number.

What is equal on every rank is computed by each of them anew, so that nothing has to be sent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from cadre.learn.microbatches import TOKEN
from cadre.learn.prefix_tree import computed_length, path, shared_length
from cadre.settings import Packing
from cadre.types import TrainingSequence


def deal(data: Sequence[TrainingSequence], ranks: int, packing: Packing, width: int) -> list[list[int]]:
    """The indices of each rank's sequences; a rank may have none.

    Neighbours in the prefix tree go to one rank, which runs what they share once. Where the tree is cut both sides run
    what they shared, and that counts: of all ways to cut the tree's order into so many runs, the dearest run is the
    cheapest. `width` is the model's hidden size.
    """
    order = sorted(range(len(data)), key=lambda index: path(data[index]))
    costs = _costs([data[index] for index in order], packing, width)
    most = sum(alone for alone, _ in costs)
    bound = bisect_left(range(most), True, key=lambda bound: _starts(costs, bound, ranks) is not None)
    starts = _starts(costs, bound, ranks) or []
    shares = [order[start:end] for start, end in pairwise([*starts, len(order)])]
    return shares + [[] for _ in range(ranks - len(shares))]


def _costs(ordered: Sequence[TrainingSequence], packing: Packing, width: int) -> list[tuple[int, int]]:
    """What each sequence costs alone, and after the one before it, in half pairs of attention."""
    costs = []
    for before, datum in zip([None, *ordered], ordered, strict=False):
        alone = _work(computed_length(datum), width)
        shared = shared_length(before, datum) if before and packing != "padded" else 0
        costs.append((alone, alone - _work(shared, width)))
    return costs


def _work(length: int, width: int) -> int:
    """Of the first tokens of a sequence: each costs so much by itself, and a pair with every token up to it."""
    return length * (2 * TOKEN * width + length)


def _starts(costs: Sequence[tuple[int, int]], bound: int, ranks: int) -> list[int] | None:
    """Where runs begin of which none costs more than `bound`, or None where that takes more than `ranks` of them."""
    starts: list[int] = []
    filled = bound + 1
    for place, (alone, after) in enumerate(costs):
        if filled + after > bound:
            if alone > bound or len(starts) == ranks:
                return None
            starts.append(place)
            filled = alone
        else:
            filled += after
    return starts
