"""Attention in a token trie: every node attends to itself and its ancestors, and little else is computed.

On a processor by torch's own flash kernel, called for the blocks and reaches of `pack.cover`. Each call returns the
logarithm of its softmax's denominator, by which partial results are merged; given the merged result instead of its own,
the kernel's backward yields each part's share of the gradients (as in ring attention, arXiv 2310.01889). Elsewhere, and
where scores are soft-capped, by a dense mask for each tree, or by FlexAttention where that is asked for. Letters: N
nodes, H heads, D head size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cadre.learn.flex_attention import Fused
from cadre.learn.pack import Block, Reach, Trie, cover, sees

# Blocks are computed together while the shortest has at least this share of the longest's nodes; from this many nodes
# on they are computed alone, where they lie, which costs less than copying them together.
ALIKE = 0.8
ALONE = 64
# The logarithm of a denominator beside which any score is nothing.
ENDLESS = 1e30

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Blocks:
    """Blocks of at most L nodes: `nodes` int64 [blocks, L], padded on the right with a block's own first node, so that
    a gradient that is not finite stays in its tree. The entries `places` int64 of it, flattened, are the blocks' own
    nodes, which are `own` int64."""

    nodes: Tensor
    places: Tensor
    own: Tensor


@dataclass(frozen=True)
class Span:
    """The nodes `start` to `end` attend to all of `keys`, nodes as a slice or as int64; or `causal`ly to themselves."""

    keys: slice | Tensor
    start: int
    end: int
    causal: bool = False


@dataclass(frozen=True)
class Layout:
    """How the attention of a trie is computed, the same in every layer. `trees` are the runs of nodes with one root.

    `deepest` is the largest of `depths`, which are int64 [N] as `ends`. Blocks and spans are for processors only;
    `fused`, where it is there, computes all of it.
    """

    blocks: tuple[Blocks, ...]
    alone: tuple[Span, ...]
    spans: tuple[Span, ...]
    trees: tuple[tuple[int, int], ...]
    depths: Tensor
    ends: Tensor
    deepest: int
    fused: Fused | None

    @staticmethod
    def of(trie: Trie, device: torch.device, flex: bool = False) -> Layout:
        """The layout of a trie for tensors on `device`; `flex` for FlexAttention."""
        blocks, reaches = cover(trie) if device.type == "cpu" and not flex else ([], [])
        trees = tuple((chain.start, int(trie.ends[chain.start])) for chain in trie.chains if chain.parent < 0)
        depths, ends = trie.depths.to(device), trie.ends.to(device)
        large = [block for block in blocks if block.size >= ALONE and not block.near]
        small = [block for block in blocks if block.size < ALONE or block.near]
        alone = tuple(Span(slice(one.start, one.end), one.start, one.end, causal=True) for one in large)
        return Layout(
            blocks=_batched(small),
            alone=alone,
            spans=tuple(_span(reach) for reach in reaches),
            trees=trees,
            depths=depths,
            ends=ends,
            deepest=int(trie.depths.max()),
            fused=Fused(depths, ends) if flex else None,
        )

    def asked_by(self, nodes: Tensor) -> Layout:
        """The same without most of what other nodes attend to; `nodes` int64, ascending, on the processor.

        The results of the others are then anything, and must not be used.
        """
        alone = tuple(span for span in self.alone if _first(nodes, span) < span.end)
        spans = [dataclasses.replace(span, start=_first(nodes, span)) for span in self.spans]
        return dataclasses.replace(self, alone=alone, spans=tuple(span for span in spans if span.start < span.end))


def _first(nodes: Tensor, span: Span) -> int:
    """The first of the ascending `nodes` from the start of a span on; the span's end where it has none."""
    place = int(torch.searchsorted(nodes, span.start))
    return min(int(nodes[place]), span.end) if place < len(nodes) else span.end


def _batched(blocks: Sequence[Block]) -> tuple[Blocks, ...]:
    batches: list[list[Block]] = []
    for block in sorted(blocks, key=lambda block: -block.size):
        if batches and block.size >= ALIKE * batches[-1][0].size:
            batches[-1].append(block)
        else:
            batches.append([block])
    return tuple(_padded(batch) for batch in batches)


def _padded(blocks: Sequence[Block]) -> Blocks:
    """Blocks of which the first is the longest, as tensors."""
    longest = blocks[0].size
    nodes = torch.tensor([block.nodes + block.nodes[:1] * (longest - block.size) for block in blocks])
    places = [torch.arange(len(one.near), one.size) + row * longest for row, one in enumerate(blocks)]
    return Blocks(nodes, torch.cat(places), torch.cat([torch.arange(one.start, one.end) for one in blocks]))


def _span(reach: Reach) -> Span:
    block = reach.block
    keys = torch.tensor(block.nodes) if block.near else slice(block.start, block.end)
    return Span(keys, reach.start, reach.end)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """The attended values [N, H, D] of `query` [N, H, D], `key` and `value` [N, G, D], where H is a multiple of G.

    A node sees at most `window` tokens, itself included. `softcap` c makes a score s into c tanh(s / c).
    """
    # Under autocast, rotated queries and keys come in float32; the projections have the precision that is meant.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if window is not None and window > layout.deepest:
        window = None
    if layout.fused is not None:
        return layout.fused.attention(query, key, value, scale, window, softcap)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if query.device.type != "cpu" or softcap is not None:
        return dense(query, key, value, layout, scale, window, softcap)
    attended: Tensor = _Attention.apply(query, key, value, layout, scale, window)  # type: ignore[no-untyped-call]
    return attended


def dense(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """The same with a mask [n, n] for each tree of n nodes, most of which is computed for nothing."""
    parts = []
    for start, end in layout.trees:
        numbers = torch.arange(start, end, device=query.device)
        seen = sees(numbers[:, None], numbers, layout.depths, layout.ends, window)
        own = [_heads(part[start:end]) for part in (query, key, value)]
        parts.append(_masked(own, seen, scale, softcap)[0].transpose(0, 1))
    return torch.cat(parts)


def _masked(parts: Sequence[Tensor], seen: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Attention [1, H, n, D] of query, key and value, where `seen` [n, n] says which keys a query has."""
    query, key, value = parts
    if softcap is None:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale)
    scores = softcap * torch.tanh(query @ key.transpose(2, 3) * scale / softcap)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1, dtype=torch.float32)
    return weights.to(value.dtype) @ value


class _Attention(torch.autograd.Function):
    """Blocks first, so that every node has a result; then each span is merged into the results of its nodes."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float, window: int | None
    ) -> Tensor:
        # A node that nothing is computed for has an endless denominator, so that it has no part in any gradient.
        merged = torch.zeros(query.shape)
        norm = torch.full(query.shape[:2], ENDLESS)
        for blocks in layout.blocks:
            parts = [_gathered(part, blocks) for part in (query, key, value)]
            mask = _block_mask(blocks, window, query.dtype)
            result, own = _forward(*parts, 0.0, mask is None, attn_mask=mask, scale=scale)
            merged[blocks.own] = result.transpose(1, 2).flatten(0, 1)[blocks.places].float()
            norm[blocks.own] = own.transpose(1, 2).flatten(0, 1)[blocks.places]
        for span in (*layout.alone, *layout.spans):
            mask = _span_mask(span, layout, window, query.dtype)
            rows = slice(span.start, span.end)
            parts = [_heads(query[rows]), _heads(key[span.keys]), _heads(value[span.keys])]
            result, own = _forward(*parts, 0.0, span.causal and mask is None, attn_mask=mask, scale=scale)
            if span.causal:
                merged[rows], norm[rows] = result[0].transpose(0, 1), own[0].transpose(0, 1)
            else:
                merge(merged[rows], norm[rows], result[0].transpose(0, 1).float(), own[0].transpose(0, 1))
        merged = merged.to(query.dtype)
        ctx.save_for_backward(query, key, value, merged, norm)
        ctx.layout, ctx.scale, ctx.window = layout, scale, window
        return merged

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, merged, norm = ctx.saved_tensors
        (gradient,) = gradients
        totals = [torch.zeros(part.shape) for part in (query, key, value)]
        for blocks in ctx.layout.blocks:
            parts = [_gathered(part, blocks) for part in (query, key, value)]
            # The other nodes' own results are those of other blocks; they have no part in this one.
            own = [_scattered(part, blocks) for part in (gradient, merged)]
            norms = _scattered(norm, blocks, ENDLESS)
            mask = _block_mask(blocks, ctx.window, query.dtype)
            found = _backward(own[0], *parts, own[1], norms, 0.0, mask is None, attn_mask=mask, scale=ctx.scale)
            for total, part in zip(totals, found, strict=True):
                total.index_add_(0, blocks.nodes.flatten(), part.transpose(1, 2).flatten(0, 1).float())
        for span in (*ctx.layout.alone, *ctx.layout.spans):
            mask = _span_mask(span, ctx.layout, ctx.window, query.dtype)
            rows = slice(span.start, span.end)
            parts = [_heads(query[rows]), _heads(key[span.keys]), _heads(value[span.keys])]
            own = [_heads(gradient[rows]), _heads(merged[rows])]
            norms = norm[rows].transpose(0, 1).unsqueeze(0)
            causal = span.causal and mask is None
            found = _backward(own[0], *parts, own[1], norms, 0.0, causal, attn_mask=mask, scale=ctx.scale)
            for total, part, nodes in zip(totals, found, (rows, span.keys, span.keys), strict=True):
                total[nodes] += part[0].transpose(0, 1)
        return (*(total.to(query.dtype) for total in totals), None, None, None)


def _heads(part: Tensor) -> Tensor:
    """[n, H, D] as the kernel takes it, [1, H, n, D]."""
    return part.transpose(0, 1).unsqueeze(0)


def _gathered(part: Tensor, blocks: Blocks) -> Tensor:
    """[N, H, D] at the blocks' nodes, [blocks, H, L, D]."""
    gathered = part.index_select(0, blocks.nodes.flatten())
    return gathered.view(*blocks.nodes.shape, *part.shape[1:]).transpose(1, 2)


def _scattered(part: Tensor, blocks: Blocks, fill: float = 0.0) -> Tensor:
    """[N, H, ...] at the blocks' own nodes and `fill` elsewhere, [blocks, H, L, ...]."""
    spread = part.new_full((blocks.nodes.numel(), *part.shape[1:]), fill)
    spread[blocks.places] = part[blocks.own]
    return spread.view(*blocks.nodes.shape, *part.shape[1:]).transpose(1, 2)


def merge(merged: Tensor, norm: Tensor, result: Tensor, own: Tensor) -> None:
    """Take another part's result [n, H, D] and log-denominators [n, H] into those so far, in place."""
    both = torch.logaddexp(norm, own)
    merged.mul_((norm - both).exp_().unsqueeze(-1)).addcmul_(result, (own - both).exp_().unsqueeze(-1))
    norm.copy_(both)


def _block_mask(blocks: Blocks, window: int | None, dtype: torch.dtype) -> Tensor | None:
    """What a node sees of its own block, additive [1, 1, L, L]; None for all before it."""
    length = blocks.nodes.shape[1]
    if window is None or window >= length:
        return None
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return _additive((distance >= 0) & (distance < window), dtype)


def _span_mask(span: Span, layout: Layout, window: int | None, dtype: torch.dtype) -> Tensor | None:
    """What the nodes see of the keys, additive [1, 1, nodes, keys]; None for all."""
    if window is None:
        return None
    distance = layout.depths[span.start : span.end, None] - layout.depths[span.keys]
    return None if int(distance.max()) < window else _additive((distance >= 0) & (distance < window), dtype)


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    # Not minus infinity: a node that sees nothing of a span must still have a number to be merged.
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[None, None]
