"""Keys and values of sequences while they are decoded, in tensors with room to grow and sequences that can be dropped.

Slots, not positions: every sequence has its prompt in slots 0 to n - 1, then a gap up to the longest prompt of the
batch, then its completion. Which slots a sequence may look at is the business of `attention_masks`.
Shapes: B sequences, G key/value heads, C slots, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

GROWTH = 64


class Layer(CacheLayerMixin):
    """One layer's keys and values [B, G, capacity, D], of which the first `length` slots are in use."""

    is_sliding = False

    def __init__(self, capacity: int = 0) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = roomy(key_states[:, :, :0], self.capacity)
        self.values = roomy(value_states[:, :, :0], self.capacity)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append the new slots and return views of all slots in use."""
        start, end = self.length, self.length + key_states.shape[2]
        if not self.is_initialized:
            self.capacity = max(self.capacity, end)
            self.lazy_initialization(key_states, value_states)
        elif end > self.capacity:
            self._grow(end + max(GROWTH, end // 4))
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys = roomy(self.keys[:, :, : self.length], capacity)
        self.values = roomy(self.values[:, :, : self.length], capacity)

    def select(self, kept: Tensor) -> None:
        """Keep these sequences, in this order; the others' memory is given back."""
        self.keys = roomy(self.keys[:, :, : self.length].index_select(0, kept), self.capacity)
        self.values = roomy(self.values[:, :, : self.length].index_select(0, kept), self.capacity)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def roomy(used: Tensor, capacity: int) -> Tensor:
    """The slots in use, copied into a tensor with room for `capacity` of them."""
    count, heads, length, size = used.shape
    roomy = used.new_empty(count, heads, capacity, size)
    roomy[:, :, :length] = used
    return roomy


class KeyValues(Cache):
    """The cache of one batch: one `Layer` for each layer of the model, all of the same length."""

    def __init__(self, layers: int, capacity: int = 0) -> None:
        super().__init__(layers=[Layer(capacity) for _ in range(layers)])

    @property
    def length(self) -> int:
        return self.layers[0].length

    def select(self, kept: Tensor) -> None:
        """Keep these sequences of every layer, in this order."""
        for layer in self.layers:
            layer.select(kept)

    @staticmethod
    def copied(groups: Sequence[KeyValues], prompts: Tensor, length: int, capacity: int) -> KeyValues:
        """One cache for all sequences of a batch out of its prefill groups; each gets a copy of its prompt's.

        `prompts` int64 [B] are numbered through the groups in order. `length` is the longest prompt: the new length.
        """
        copied = KeyValues(len(groups[0].layers), capacity)
        for index, layer in enumerate(copied.layers):
            parts = [group.layers[index] for group in groups]
            lengths = [part.length for part in parts]
            layer.keys = _copied([part.keys for part in parts], lengths, prompts, capacity)
            layer.values = _copied([part.values for part in parts], lengths, prompts, capacity)
            layer.length, layer.is_initialized = length, True
            for part in parts:
                part.keys = part.values = None
        return copied


def _copied(parts: Sequence[Tensor], lengths: Sequence[int], prompts: Tensor, capacity: int) -> Tensor:
    _, heads, _, size = parts[0].shape
    # Zeros, not empty memory: a masked slot still enters a product, and 0 * NaN is NaN.
    target = parts[0].new_zeros(prompts.shape[0], heads, capacity, size)
    first = 0
    for part, length in zip(parts, lengths, strict=True):
        readers = ((prompts >= first) & (prompts < first + part.shape[0])).nonzero().squeeze(1)
        target[readers, :, :length] = part[:, :, :length].index_select(0, prompts[readers] - first)
        first += part.shape[0]
    return target
