"""Keys and values of earlier turns, so that a conversation that goes on costs what is new in it.

What is kept follows from the work alone: the prompts and completions of one scope (whatever was asked for within one
outermost `cadre.rollout.rounds.together`: a step, an evaluation), the least recently used given up first. It is all
forgotten when another scope begins or weights change, so that a step that is sampled again, in this process or in one
that goes on from a checkpoint, finds what it found the first time.

A prompt's keys are held once for all its completions. Letters: E sequences of a piece, G key/value heads, N slots, D
head size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

# Fewer tokens than these are run again, which is as fast.
LEAST = 16


@dataclass(frozen=True, eq=False)
class Piece:
    """Keys and values by layer, [E, G, N, D] each, of sequences that were computed together."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in (*self.keys, *self.values))


@dataclass(frozen=True)
class Part:
    """The first `length` slots of a piece's sequence `row`."""

    piece: Piece
    row: int
    length: int


@dataclass(frozen=True)
class Known:
    """The first tokens of a prompt, so many of them, whose keys and values are those of `parts` one after another."""

    parts: tuple[Part, ...]
    length: int

    def fill(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Copy a layer's into the first slots of tensors [G, N, D]."""
        start = 0
        for part in self.parts:
            end = min(start + part.length, self.length)
            keys[:, start:end] = part.piece.keys[layer][part.row, :, : end - start]
            values[:, start:end] = part.piece.values[layer][part.row, :, : end - start]
            start = end


class TurnCache:
    """What an engine knows of the present scope, within `limit` bytes. Used in the engine's thread alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._scope: object = None
        self._pieces: OrderedDict[Piece, int] = OrderedDict()
        self._ids: dict[str, list[tuple[int, ...]]] = {}
        self._parts: dict[tuple[str, tuple[int, ...]], tuple[Part, ...]] = {}

    def enter(self, scope: object) -> None:
        """What is asked for from here on belongs to this scope."""
        if scope is not self._scope:
            self.clear()
            self._scope = scope

    def clear(self) -> None:
        """Forget everything."""
        self._pieces.clear()
        self._ids.clear()
        self._parts.clear()

    @property
    def bytes(self) -> int:
        """What is held."""
        return sum(self._pieces.values())

    def find(self, policy: str, ids: tuple[int, ...]) -> Known | None:
        """What is known of a prompt's first tokens under a policy, the longest there is; never of all of them."""
        kept = self._ids.get(policy, [])
        place = bisect_left(kept, ids)
        shared = [(_common(ids, other), other) for other in kept[max(0, place - 1) : place + 1]]
        length, nearest = max(shared, default=(0, ()))
        length = min(length, len(ids) - 1)
        if length < LEAST:
            return None
        parts = self._parts[policy, nearest]
        for part in parts:
            self._pieces.move_to_end(part.piece)
        return Known(parts, length)

    def add(self, piece: Piece, sequences: Sequence[tuple[str, tuple[int, ...], tuple[Part, ...]]]) -> None:
        """Keep a piece for sequences, each by its policy, ids and parts, of which it is the last."""
        size = piece.bytes
        if not sequences or size > self.limit:
            return
        while self.bytes + size > self.limit:
            self._drop(next(iter(self._pieces)))
        held = [entry for entry in sequences if all(part.piece in self._pieces for part in entry[2][:-1])]
        if not held:
            return
        self._pieces[piece] = size
        for policy, ids, parts in held:
            if (policy, ids) not in self._parts:
                insort(self._ids.setdefault(policy, []), ids)
            self._parts[policy, ids] = parts

    def _drop(self, piece: Piece) -> None:
        """Give up a piece, and what begins with it."""
        del self._pieces[piece]
        for key, parts in list(self._parts.items()):
            if any(part.piece is piece for part in parts):
                del self._parts[key]
                kept = self._ids[key[0]]
                del kept[bisect_left(kept, key[1])]
        used = {part.piece for parts in self._parts.values() for part in parts}
        for unused in [other for other in self._pieces if other not in used]:
            del self._pieces[unused]


def _common(ids: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many of their first tokens two sequences share."""
    low, high = 0, min(len(ids), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if ids[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def rows_of(keys: Sequence[Tensor], values: Sequence[Tensor], rows: Tensor, slots: slice) -> Piece:
    """A piece of some rows and slots of tensors [B, G, C, D] by layer, copied."""
    return Piece(
        [part[:, :, slots].index_select(0, rows) for part in keys],
        [part[:, :, slots].index_select(0, rows) for part in values],
    )
