"""A cache of the keys and values of earlier turns, so that a later turn of a conversation runs only its new tokens.

The entries follow from the work alone: the prompts and completions of one scope (all requests within one outermost
`cadre.rollout.batching.gather`: a step, an evaluation), the least recently used evicted first. Everything is dropped
when another scope begins or weights change, so that a step that is sampled again has the same cache hits.

Letters: E sequences of a block, G key/value heads, N slots, D head size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from cadre.learn.prefix_tree import common_length

# Shorter prefixes are run again, which is as fast.
MIN_TOKENS = 16


@dataclass(frozen=True, eq=False)
class KeyValueBlock:
    """Keys and values by layer, [E, G, N, D] each, of sequences that were computed together."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def copy_of(cls, keys: Sequence[Tensor], values: Sequence[Tensor], rows: Tensor, slots: slice) -> KeyValueBlock:
        """Return a copy of some rows and slots of tensors [B, G, C, D] by layer."""
        return cls(
            [part[:, :, slots].index_select(0, rows) for part in keys],
            [part[:, :, slots].index_select(0, rows) for part in values],
        )

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in (*self.keys, *self.values))


@dataclass(frozen=True)
class BlockSlice:
    """The first `length` slots of a block's sequence `row`."""

    block: KeyValueBlock
    row: int
    length: int


@dataclass(frozen=True)
class CachedPrefix:
    """The first `length` tokens of a prompt, whose keys and values are those of `slices` one after another."""

    slices: tuple[BlockSlice, ...]
    length: int

    def copy_into(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Copy a layer's keys and values into the first slots of tensors [G, N, D]."""
        start = 0
        for part in self.slices:
            end = min(start + part.length, self.length)
            keys[:, start:end] = part.block.keys[layer][part.row, :, : end - start]
            values[:, start:end] = part.block.values[layer][part.row, :, : end - start]
            start = end


class PrefixCache:
    """An engine's cache for the present scope, of at most `limit` bytes. Used in the engine's thread alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._scope: object = None
        self._blocks: OrderedDict[KeyValueBlock, int] = OrderedDict()
        # By policy the token ids of all cached sequences, sorted, so that neighbours share the longest prefixes.
        self._ids: dict[str, list[tuple[int, ...]]] = {}
        self._slices: dict[tuple[str, tuple[int, ...]], tuple[BlockSlice, ...]] = {}

    def enter_scope(self, scope: object) -> None:
        """Assign the following requests to a scope, and drop everything if it is a new one."""
        if scope is not self._scope:
            self.clear()
            self._scope = scope

    def clear(self) -> None:
        """Drop everything."""
        self._blocks.clear()
        self._ids.clear()
        self._slices.clear()

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(self._blocks.values())

    def find(self, policy: str, ids: tuple[int, ...]) -> CachedPrefix | None:
        """Return the longest cached prefix of a prompt under a policy; never the whole prompt."""
        cached_ids = self._ids.get(policy, [])
        index = bisect_left(cached_ids, ids)
        neighbours = cached_ids[max(0, index - 1) : index + 1]
        lengths = (common_length(ids, cached, min(len(ids), len(cached))) for cached in neighbours)
        length, nearest = max(zip(lengths, neighbours, strict=True), default=(0, ()))
        length = min(length, len(ids) - 1)
        if length < MIN_TOKENS:
            return None
        slices = self._slices[policy, nearest]
        for part in slices:
            self._blocks.move_to_end(part.block)
        return CachedPrefix(slices, length)

    def add(
        self, block: KeyValueBlock, sequences: Sequence[tuple[str, tuple[int, ...], tuple[BlockSlice, ...]]]
    ) -> None:
        """Cache sequences, each by its policy, ids and slices, of which the last is in `block`."""
        size = block.bytes
        if not sequences or size > self.limit:
            return
        while self.bytes + size > self.limit:
            self._evict(next(iter(self._blocks)))
        complete = [entry for entry in sequences if self.holds(entry[2][:-1])]
        if not complete:
            return
        self._blocks[block] = size
        for policy, ids, slices in complete:
            if (policy, ids) not in self._slices:
                insort(self._ids.setdefault(policy, []), ids)
            self._slices[policy, ids] = slices

    def holds(self, slices: Sequence[BlockSlice]) -> bool:
        """Return True if all of these slices' blocks are cached."""
        return all(part.block in self._blocks for part in slices)

    def _evict(self, block: KeyValueBlock) -> None:
        """Drop a block, the sequences that begin with it, and blocks that no sequence uses any more."""
        del self._blocks[block]
        for key, slices in list(self._slices.items()):
            if any(part.block is block for part in slices):
                del self._slices[key]
                policy_ids = self._ids[key[0]]
                del policy_ids[bisect_left(policy_ids, key[1])]
        used = {part.block for slices in self._slices.values() for part in slices}
        for unused in [block for block in self._blocks if block not in used]:
            del self._blocks[unused]
