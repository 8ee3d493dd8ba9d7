"""Which slots of the key/value cache a token that is being decoded may look at, as ready-made additive masks.

Handing transformers a ready 4D mask spares it from building one each step. Models that mix full and sliding-window
layers take one mask for each type of layer. Letters: B sequences, C slots in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cadre.engines.torch.base.layer_attention import FULL, SLIDING, LayerAttention
from cadre.engines.torch.sampling.kv_cache import KeyValues
from cadre.engines.torch.sampling.turn_cache import Piece, rows_of


class Masks:
    """The masks of one decoding batch, [B, 1, 1, C]; 0 where a sequence may look.

    `lengths` int64 [B] are the prompts' tokens, `longest` the most of them, where the completions begin.
    """

    def __init__(self, attention: LayerAttention, lengths: Tensor, longest: int, dtype: torch.dtype) -> None:
        self._attention = attention
        self._hidden = torch.finfo(dtype).min
        slot = torch.arange(longest, device=lengths.device)
        self._positions = slot.expand(lengths.shape[0], longest)
        visible = slot < lengths.unsqueeze(1)
        self._full = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, self._hidden)

    def append(self, positions: Tensor) -> None:
        """One more slot, which holds the token at `positions` int64 [B] of each sequence."""
        self._full = torch.nn.functional.pad(self._full, (0, 1))
        self._positions = torch.cat((self._positions, positions.unsqueeze(1)), dim=1)

    def select(self, kept: Tensor) -> None:
        """Keep these sequences, in this order."""
        self._full = self._full[kept]
        self._positions = self._positions[kept]

    def current(self) -> Tensor | Mapping[str, Tensor]:
        """What the model takes as `attention_mask` for the newest slot."""
        full = self._full[:, None, None]
        if self._attention.window is None:
            return full
        sliding = self._sliding(self._attention.window)[:, None, None]
        return sliding if len(self._attention.types) == 1 else {FULL: full, SLIDING: sliding}

    def _sliding(self, window: int) -> Tensor:
        recent = self._positions > self._positions[:, -1:] - window
        return self._full.masked_fill(~recent, self._hidden)


def mask_by_type(
    attention: LayerAttention, position: Tensor, slots: Tensor, dtype: torch.dtype
) -> Tensor | Mapping[str, Tensor]:
    """What the model takes as `attention_mask`, [P, 1, Q, C], for queries and slots that hold tokens at these places.

    `position` int64 [P, Q], `slots` int64 [P, C]; nobody looks at what comes after it.
    """
    query, key = position.unsqueeze(2), slots.unsqueeze(1)
    seen = key <= query

    def additive(seen: Tensor) -> Tensor:
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)

    full = additive(seen)[:, None]
    if attention.window is None:
        return full
    sliding = additive(seen & (key > query - attention.window))[:, None]
    return sliding if len(attention.types) == 1 else {FULL: full, SLIDING: sliding}


class CopiedPrompts:
    """The keys and values of a batch in which every sequence has a copy of its prompt's; the simple form."""

    def __init__(self, attention: LayerAttention, cache: KeyValues, lengths: Tensor) -> None:
        self._cache = cache
        self._longest = cache.length
        self._masks = Masks(attention, lengths, cache.length, cache.layers[0].keys.dtype)

    @contextmanager
    def reading(self, model: Any, position: Tensor) -> Iterator[dict[str, Any]]:
        """Within it the model reads and extends the cache."""
        self._masks.append(position)
        yield {"attention_mask": self._masks.current(), "past_key_values": self._cache, "use_cache": True}

    def select(self, kept: Tensor) -> None:
        """Keep these sequences, in this order."""
        self._cache.select(kept)
        self._masks.select(kept)

    def said(self, rows: Tensor) -> Piece:
        """The keys and values of what these sequences have said."""
        keys, values = ([getattr(layer, name) for layer in self._cache.layers] for name in ("keys", "values"))
        return rows_of(keys, values, rows, slice(self._longest, self._cache.length))
