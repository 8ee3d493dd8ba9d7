"""Prompts that begin with what is known of earlier turns: their keys and values, and the attention of the rest.

A token of the rest attends to all that is known and, causally, to the rest before it. Both are computed apart, without
a mask of every pair, and merged by the logarithms of their denominators, as siblings' keys are in
`shared_prefix_cache`. On CPUs, and where no window or soft cap hides what is known: `serves` tells. The simple form is
the model's own forward with a mask (`prefill`).

Letters: P prompts, H heads, G key/value heads, C slots of the longest prompt, Q tokens of the longest rest, D head
size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from cadre.engines.torch.base.loading import Loaded, attending, check_keywords
from cadre.engines.torch.sampling import shared_prefix_cache
from cadre.engines.torch.sampling.kv_cache import KeyValues
from cadre.engines.torch.sampling.turn_cache import Known
from cadre.learn.prefix_tree_attention import merge

NAME = "cadre_continued"
_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def serves(loaded: Loaded, longest: int) -> bool:
    """Whether prompts of so many tokens at most can be gone on with this way."""
    window = loaded.attention.window
    return shared_prefix_cache.serves(loaded.model) and (window is None or window >= longest)


class ContinuedPrompts:
    """The cache of P prompts of so many tokens, with what is `known` of each in its first slots; as layers run, they
    write the rest behind it."""

    def __init__(self, layers: int, known: Sequence[Known], lengths: Sequence[int]) -> None:
        self._starts = [begins.length for begins in known]
        self._lengths = lengths
        self._before = max(self._starts)
        self._hidden: Tensor | None = None
        self.cache = filled(layers, known, max(lengths))

    @contextmanager
    def reading(self, model: Any) -> Iterator[dict[str, Any]]:
        """Within it the model, given these keywords, attends to the cache and fills it."""
        with attending(model, NAME):
            yield {"continued": self, "use_cache": False}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """The attended values [P, H, Q, D] of the rest's `query` [P, H, Q, D], `key` and `value` [P, G, Q, D]."""
        count, heads, rest, size = query.shape
        groups = key.shape[1]
        own = [part.repeat_interleave(heads // groups, dim=1) for part in (key, value)]
        attended, norm = _attention(query, *own, 0.0, True, scale=scale)
        keys, values = (part[:, :, : self._before].to(value.dtype) for part in self._slots(layer))
        # Heads that share keys stand side by side as queries of one head.
        beside = query.reshape(count, groups, -1, size)
        past, past_norm = _attention(beside, keys, values, 0.0, False, attn_mask=self._mask(query.dtype), scale=scale)
        attended, norm = attended.float(), norm.clone()
        merge(attended, norm, past.reshape(query.shape).float(), past_norm.reshape(count, heads, rest))
        self._write(layer, key, value)
        return attended.to(query.dtype)

    def _slots(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.cache.layers[layer].keys, self.cache.layers[layer].values

    def _mask(self, dtype: torch.dtype) -> Tensor | None:
        """What hides the slots beyond what is known of a prompt, additive [P, 1, 1, C]; None where there are none."""
        if self._hidden is None and min(self._starts) < self._before:
            beyond = torch.arange(self._before) >= torch.tensor(self._starts).unsqueeze(1)
            blank = torch.zeros(beyond.shape, dtype=dtype)
            self._hidden = blank.masked_fill(beyond, torch.finfo(dtype).min)[:, None, None]
        return self._hidden

    def _write(self, layer: int, key: Tensor, value: Tensor) -> None:
        keys, values = self._slots(layer)
        for row, (start, end) in enumerate(zip(self._starts, self._lengths, strict=True)):
            keys[row, :, start:end] = key[row, :, : end - start]
            values[row, :, start:end] = value[row, :, : end - start]


def filled(layers: int, known: Sequence[Known], capacity: int) -> KeyValues:
    """A cache of so many slots, all in use, that holds what is known of each prompt in its first, and zeros beyond."""
    cache = KeyValues(layers, capacity)
    piece = known[0].parts[0].piece
    for number, layer in enumerate(cache.layers):
        layer.keys, layer.values = (
            part.new_zeros(len(known), part.shape[1], capacity, part.shape[3])
            for part in (piece.keys[number], piece.values[number])
        )
        layer.length, layer.is_initialized = capacity, True
        for row, begins in enumerate(known):
            begins.fill(number, layer.keys[row], layer.values[row])
    return cache


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: None,
    *,
    continued: ContinuedPrompts,
    scaling: float,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for attention: `query` [P, H, Q, D] in, [P, Q, H, D] out."""
    check_keywords(rest)
    # Under autocast rotary embeddings leave queries and keys in another precision than values.
    query, key = query.to(value.dtype), key.to(value.dtype)
    return continued.attend(module.layer_idx, query, key, value, scaling).transpose(1, 2), None


AttentionInterface.register(NAME, _attend)
