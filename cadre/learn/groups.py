"""How an update is cut into forwards: as tries of neighbouring sequences, or padded where that is cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cadre.learn.batch import microbatches
from cadre.learn.pack import Trie, common, cover, path, reads, trie
from cadre.sections import Packing
from cadre.types import Datum

# Costs in query-key pairs of attention, found by measuring: of a token apart from attention, for each unit of the
# model's width (the weights of a layer take about 24 width^2 operations, a pair 4 width, at about half the speed), and
# of calling the attention kernel at all. A node of a trie costs a twentieth more than a padded token, for copying.
TOKEN = 3
CALL = 2_000
COPIES = 1.05


@dataclass(frozen=True)
class Group:
    """The sequences of one forward in order, and their trie, or None where plain padding is cheaper."""

    data: tuple[Datum, ...]
    trie: Trie | None


def groups(data: Sequence[Datum], tokens: int, packing: Packing, width: int) -> list[Group]:
    """The micro-batches of an update: at most `tokens` nodes or padded tokens each, or one sequence.

    Neighbours in the trie stay together. `auto` takes for each the cheaper of the trie and plain padding, by counted
    tokens and pairs of attention in a model of hidden size `width`.
    """
    if packing == "padded":
        return _padded(data, tokens)
    found: list[Group] = []
    for part in _parts(data, tokens):
        made, plain = trie(part), _padded(part, tokens)
        cheaper = packing == "trie" or trie_cost(made, width) < sum(padded_cost(one.data, width) for one in plain)
        found.extend([Group(tuple(part), made)] if cheaper and len(made.token_ids) else plain)
    return found


def trie_cost(made: Trie, width: int) -> float:
    """What running a trie costs, in pairs of attention."""
    blocks, reaches = cover(made)
    pairs = sum(block.size**2 for block in blocks) + sum(one.block.size * (one.end - one.start) for one in reaches)
    return COPIES * len(made.token_ids) * TOKEN * width + pairs + CALL * (1 + len(reaches))


def padded_cost(data: Sequence[Datum], width: int) -> int:
    """What running padded sequences costs, in pairs of attention."""
    longest = max(len(datum.token_ids) for datum in data)
    return len(data) * longest * (TOKEN * width + longest) + CALL


def _padded(data: Sequence[Datum], tokens: int) -> list[Group]:
    parts = microbatches(data, tokens)
    return [Group(tuple(sorted(part, key=lambda datum: datum.policy)), None) for part in parts]


def _parts(data: Sequence[Datum], tokens: int) -> Iterator[list[Datum]]:
    """The sequences in the order of the trie, cut where a part would have more than `tokens` nodes."""
    part: list[Datum] = []
    size = 0
    for datum in sorted(data, key=path):
        length = reads(datum)
        fresh = length - common(part[-1], datum) if part else length
        if part and size + fresh > tokens:
            yield part
            part, size, fresh = [], 0, length
        part.append(datum)
        size += fresh
    if part:
        yield part
