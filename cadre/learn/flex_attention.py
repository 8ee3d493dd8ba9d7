"""Attention in a prefix tree by PyTorch's FlexAttention (arXiv 2412.05496), for GPUs.

A fused kernel that skips the blocks of scores in which no node sees another, all trees at once, without a mask of every
pair in memory. It is compiled by the first update. Letters: N nodes, H heads, G key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad

from cadre.learn.attention_scoring import Scoring
from cadre.learn.prefix_tree import attention_mask

BLOCK = 128


class Fused:
    """The masks of one tree by window, made when first asked for; `ends` and `depths` are int64 [N]."""

    def __init__(self, depths: Tensor, ends: Tensor) -> None:
        # Whole blocks only: nodes that see nothing but themselves fill the last one.
        self._rest = -len(ends) % BLOCK
        self._depths = pad(depths, (0, self._rest))
        filled = torch.arange(len(ends), len(ends) + self._rest, device=ends.device) + 1
        self._ends = torch.cat([ends, filled])
        self._masks: dict[int | None, BlockMask] = {}

    def attention(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """The attended values [N, H, D] of `query` [N, H, D], `key` and `value` [N, G, D]."""
        window, softcap = scoring.window, scoring.softcap
        if window not in self._masks:
            self._masks[window] = self._mask(window)
        parts = [pad(part, (0, 0, 0, 0, 0, self._rest)).transpose(0, 1).unsqueeze(0) for part in (query, key, value)]
        attended = _kernel(query.device.type)(
            *parts,
            score_mod=None if softcap is None else _capped(softcap),
            block_mask=self._masks[window],
            scale=scoring.scale,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)[: len(query)]

    def _mask(self, window: int | None) -> BlockMask:
        depths, ends = self._depths, self._ends

        def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return attention_mask(query, key, depths, ends, window)

        return create_block_mask(seen, None, None, len(ends), len(ends), device=ends.device, BLOCK_SIZE=BLOCK)


def _capped(softcap: float) -> Callable[..., Tensor]:
    def cap(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap


@cache
def _kernel(device: str) -> Callable[..., Tensor]:
    # On a CPU there is no backward pass, and the plain form is for comparing results only.
    if device == "cpu":
        return flex_attention  # type: ignore[return-value]
    # A second length makes one kernel for all lengths; asked for at once (`dynamic=True`), soft caps do not compile.
    return torch.compile(flex_attention)
