"""Attention in a prefix tree: every node attends to itself and its ancestors, with little wasted computation.

On a CPU by torch's own flash kernel, called for the blocks and prefix attentions of `cover`. Each call returns the
logarithm of its softmax's denominator, by which partial results are merged; given the merged result instead of its own,
the kernel's backward yields each part's share of the gradients (as in ring attention, arXiv 2310.01889). Elsewhere, and
where scores are soft-capped, by a dense mask for each tree, or by FlexAttention where that is asked for. Letters: N
nodes, H heads, D head size.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from cadre.learn.prefix_tree import Block, PrefixTree, attention_mask, cover
from cadre.learn.tensors import to_device

# Blocks are computed together while the shortest has at least this share of the longest's nodes; from this many nodes
# on they are computed alone, where they lie, which costs less than copying them together.
ALIKE = 0.8
ALONE = 64
# The block size of FlexAttention's masks.
FLEX_BLOCK = 128
# Compilations of one function for several models, precisions, windows and uses of gradients.
MOST_VARIANTS = 64
# Options of FlexAttention's kernels, such as their own block sizes; None for torch's choice.
KERNEL_OPTIONS: Any = None
# The logarithm of a denominator beside which any score is nothing.
ENDLESS = 1e30

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Scoring:
    """The attention scores of a layer: the product of query and key times `scale`. A `softcap` c makes a score s into c
    tanh(s / c). A token attends to at most `window` tokens, itself included."""

    scale: float
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True)
class Blocks:
    """Blocks of at most L nodes, computed together.

    nodes    int64 [blocks, L], padded on the right with a block's own first node, so that a gradient that is not finite
             stays in its tree
    queries  int64, the nodes whose attention is computed
    indices  int64, their positions in `nodes`, flattened
    """

    nodes: Tensor
    indices: Tensor
    queries: Tensor


@dataclass(frozen=True)
class Span:
    """The nodes `start` to `end`, which attend to all of `keys` (a slice or int64), or `causal`ly to themselves."""

    keys: slice | Tensor
    start: int
    end: int
    causal: bool = False


@dataclass(frozen=True)
class Layout:
    """The way in which the attention of a prefix tree is computed, the same in every layer.

    blocks, alone, spans  the kernel calls on a CPU: batched blocks, blocks of their own, and prefixes of others
    roots                 the runs of nodes with one root
    depths, ends          int64 [N] of the tree
    deepest               the largest depth
    flex                  computes all of it by FlexAttention, if that is used
    """

    blocks: tuple[Blocks, ...]
    alone: tuple[Span, ...]
    spans: tuple[Span, ...]
    roots: tuple[tuple[int, int], ...]
    depths: Tensor
    ends: Tensor
    deepest: int
    flex: FlexMasks | None

    @staticmethod
    def of(tree: PrefixTree, device: torch.device, flex: bool = False) -> Layout:
        """Return the layout of a tree for tensors on `device`; `flex` for FlexAttention. Raises ValueError for a padded
        tree without FlexAttention, which alone runs the nodes of no path."""
        in_paths = sum(chain.end - chain.start for chain in tree.chains)
        if not flex and in_paths != len(tree.token_ids):
            raise ValueError(f"got a tree of {len(tree.token_ids)} nodes, {in_paths} of them in paths")
        blocks, prefixes = cover(tree) if device.type == "cpu" and not flex else ([], [])
        depths, ends = to_device(tree.depths, device), to_device(tree.ends, device)
        large = [block for block in blocks if block.size >= ALONE and not block.prefix]
        small = [block for block in blocks if block.size < ALONE or block.prefix]

        def keys(block: Block) -> slice | Tensor:
            return torch.tensor(block.nodes) if block.prefix else slice(block.start, block.end)

        return Layout(
            blocks=_batched(small),
            alone=tuple(Span(keys(block), block.start, block.end, causal=True) for block in large),
            spans=tuple(Span(keys(prefix.block), prefix.start, prefix.end) for prefix in prefixes),
            roots=tuple((chain.start, int(tree.ends[chain.start])) for chain in tree.chains if chain.parent < 0),
            depths=depths,
            ends=ends,
            deepest=int(tree.depths.max()),
            flex=FlexMasks(tree.depths, tree.ends, device) if flex else None,
        )

    def only_for(self, nodes: Tensor) -> Layout:
        """Return the layout without most of what other nodes attend to; `nodes` int64, ascending, on the CPU. The
        results of the other nodes are undefined and must not be used."""
        own_blocks = tuple(span for span in self.alone if _first(nodes, span) < span.end)
        spans = [dataclasses.replace(span, start=_first(nodes, span)) for span in self.spans]
        return dataclasses.replace(self, alone=own_blocks, spans=tuple(span for span in spans if span.start < span.end))


def _first(nodes: Tensor, span: Span) -> int:
    """Return the first of the ascending `nodes` from the start of a span on; the span's end if there is none."""
    index = int(torch.searchsorted(nodes, span.start))
    return min(int(nodes[index]), span.end) if index < len(nodes) else span.end


def _batched(blocks: Sequence[Block]) -> tuple[Blocks, ...]:
    """Return the blocks as tensors, those of similar size together."""
    batches: list[list[Block]] = []
    for block in sorted(blocks, key=lambda block: -block.size):
        if batches and block.size >= ALIKE * batches[-1][0].size:
            batches[-1].append(block)
        else:
            batches.append([block])
    tensors = []
    for batch in batches:
        longest = batch[0].size
        nodes = torch.tensor([block.nodes + block.nodes[:1] * (longest - block.size) for block in batch])
        indices = [torch.arange(len(block.prefix), block.size) + row * longest for row, block in enumerate(batch)]
        queries = [torch.arange(block.start, block.end) for block in batch]
        tensors.append(Blocks(nodes, torch.cat(indices), torch.cat(queries)))
    return tuple(tensors)


def attention(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scoring: Scoring) -> Tensor:
    """Return the attended values [N, H, D] of `query` [N, H, D], `key` and `value` [N, G, D]; H is a multiple of G."""
    # Under autocast, rotated queries and keys come in float32; the projections have the precision that is meant.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if scoring.window is not None and scoring.window > layout.deepest:
        scoring = dataclasses.replace(scoring, window=None)
    if layout.flex is not None:
        return layout.flex.attention(query, key, value, scoring)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if query.device.type != "cpu" or scoring.softcap is not None:
        return dense(query, key, value, layout, scoring)
    attended: Tensor = _Attention.apply(query, key, value, layout, scoring)  # type: ignore[no-untyped-call]
    return attended


def dense(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scoring: Scoring) -> Tensor:
    """Return the same by a mask [n, n] for each tree of n nodes, most of which is wasted computation."""
    parts = []
    for start, end in layout.roots:
        nodes = torch.arange(start, end, device=query.device)
        mask = attention_mask(nodes[:, None], nodes, layout.depths, layout.ends, scoring.window)
        q, k, v = (_heads(part[start:end]) for part in (query, key, value))
        scale, softcap = scoring.scale, scoring.softcap
        if softcap is None:
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        else:
            scores = softcap * torch.tanh(q @ k.transpose(2, 3) * scale / softcap)
            weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1, dtype=torch.float32)
            attended = weights.to(v.dtype) @ v
        parts.append(attended[0].transpose(0, 1))
    return torch.cat(parts)


class _Attention(torch.autograd.Function):
    """Computes blocks first, so that every node has a result, and merges each span into the results of its nodes."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scoring: Scoring) -> Tensor:
        scale, window = scoring.scale, scoring.window
        # A node that nothing is computed for has an endless denominator, so that it has no part in any gradient.
        merged = torch.zeros(query.shape)
        norm = torch.full(query.shape[:2], ENDLESS)
        for blocks in layout.blocks:
            parts = [_gathered(part, blocks) for part in (query, key, value)]
            mask = _block_mask(blocks, window, query.dtype)
            result, log_sum = _forward(*parts, 0.0, mask is None, attn_mask=mask, scale=scale)
            merged[blocks.queries] = result.transpose(1, 2).flatten(0, 1)[blocks.indices].float()
            norm[blocks.queries] = log_sum.transpose(1, 2).flatten(0, 1)[blocks.indices]
        for span in (*layout.alone, *layout.spans):
            mask = _span_mask(span, layout, window, query.dtype)
            queries = slice(span.start, span.end)
            parts = [_heads(query[queries]), _heads(key[span.keys]), _heads(value[span.keys])]
            result, log_sum = _forward(*parts, 0.0, span.causal and mask is None, attn_mask=mask, scale=scale)
            result, log_sum = result[0].transpose(0, 1), log_sum[0].transpose(0, 1)
            if span.causal:
                merged[queries], norm[queries] = result, log_sum
            else:
                merge_attention(merged[queries], norm[queries], result.float(), log_sum)
        merged = merged.to(query.dtype)
        ctx.save_for_backward(query, key, value, merged, norm)
        ctx.layout, ctx.scoring = layout, scoring
        return merged

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *saved, norm = ctx.saved_tensors
        # In bfloat16 the kernel's backward takes up to five times as long as in float32.
        query, key, value, merged, gradient = (part.float() for part in (*saved, *gradients))
        layout, scale, window = ctx.layout, ctx.scoring.scale, ctx.scoring.window
        totals = [torch.zeros(part.shape) for part in (query, key, value)]
        for blocks in layout.blocks:
            parts = [_gathered(part, blocks) for part in (query, key, value)]
            # The other nodes' results are those of other blocks; they have no part in this one.
            upstream, result = (_scattered(part, blocks) for part in (gradient, merged))
            norms = _scattered(norm, blocks, ENDLESS)
            mask = _block_mask(blocks, window, query.dtype)
            slopes = _backward(upstream, *parts, result, norms, 0.0, mask is None, attn_mask=mask, scale=scale)
            for total, part in zip(totals, slopes, strict=True):
                total.index_add_(0, blocks.nodes.flatten(), part.transpose(1, 2).flatten(0, 1))
        for span in (*layout.alone, *layout.spans):
            mask = _span_mask(span, layout, window, query.dtype)
            queries = slice(span.start, span.end)
            parts = [_heads(query[queries]), _heads(key[span.keys]), _heads(value[span.keys])]
            upstream, result = _heads(gradient[queries]), _heads(merged[queries])
            norms, causal = norm[queries].transpose(0, 1).unsqueeze(0), span.causal and mask is None
            slopes = _backward(upstream, *parts, result, norms, 0.0, causal, attn_mask=mask, scale=scale)
            for total, part, nodes in zip(totals, slopes, (queries, span.keys, span.keys), strict=True):
                total[nodes] += part[0].transpose(0, 1)
        return (*(total.to(gradients[0].dtype) for total in totals), None, None)


def _heads(part: Tensor) -> Tensor:
    """Return [n, H, D] as the kernel takes it, [1, H, n, D]."""
    return part.transpose(0, 1).unsqueeze(0)


def _gathered(part: Tensor, blocks: Blocks) -> Tensor:
    """Return [N, H, D] at the blocks' nodes, [blocks, H, L, D]."""
    gathered = part.index_select(0, blocks.nodes.flatten())
    return gathered.view(*blocks.nodes.shape, *part.shape[1:]).transpose(1, 2)


def _scattered(part: Tensor, blocks: Blocks, fill: float = 0.0) -> Tensor:
    """Return [N, H, ...] at the blocks' queries and `fill` elsewhere, [blocks, H, L, ...]."""
    scattered = part.new_full((blocks.nodes.numel(), *part.shape[1:]), fill)
    scattered[blocks.indices] = part[blocks.queries]
    return scattered.view(*blocks.nodes.shape, *part.shape[1:]).transpose(1, 2)


def merge_attention(merged: Tensor, norm: Tensor, result: Tensor, log_sum: Tensor) -> None:
    """Add another part's result [n, H, D] and log-denominators [n, H] to those so far, in place."""
    both = torch.logaddexp(norm, log_sum)
    merged.mul_((norm - both).exp_().unsqueeze(-1)).addcmul_(result, (log_sum - both).exp_().unsqueeze(-1))
    norm.copy_(both)


def _block_mask(blocks: Blocks, window: int | None, dtype: torch.dtype) -> Tensor | None:
    """Return the mask of a block's nodes among themselves, additive [1, 1, L, L]; None for a plain causal one."""
    length = blocks.nodes.shape[1]
    if window is None or window >= length:
        return None
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return _additive((distance >= 0) & (distance < window), dtype)


def _span_mask(span: Span, layout: Layout, window: int | None, dtype: torch.dtype) -> Tensor | None:
    """Return the mask of the nodes on the keys, additive [1, 1, nodes, keys]; None if they see all."""
    if window is None:
        return None
    distance = layout.depths[span.start : span.end, None] - layout.depths[span.keys]
    return None if int(distance.max()) < window else _additive((distance >= 0) & (distance < window), dtype)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    # Not minus infinity: a node that sees nothing of a span must still have a number to be merged.
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)[None, None]


# FlexAttention (arXiv 2412.05496), for GPUs: a fused kernel that skips the blocks of scores in which no node sees
# another, all trees at once, without a mask of every pair in memory. It is compiled by the first update.


class FlexMasks:
    """The masks of one tree by window, made on first use; `ends` and `depths` are int64 [N] on the CPU. The tensors
    that the kernel reads are on `device`."""

    def __init__(self, depths: Tensor, ends: Tensor, device: torch.device) -> None:
        # Whole blocks only: nodes that see nothing but themselves fill the last one.
        self._rest = -len(ends) % FLEX_BLOCK
        self._depths = pad(depths, (0, self._rest))
        self._ends = torch.cat([ends, torch.arange(len(ends), len(ends) + self._rest) + 1])
        self._device = device
        # The kernel looks them up for every pair of a partly seen block, so in the fewest bytes.
        self._on_device = to_device(self._depths.int(), device), to_device(self._ends.int(), device)
        self._masks: dict[int | None, BlockMask] = {}
        self.deepest = int(depths.max())

    def mask(self, window: int | None) -> BlockMask:
        """Return the mask of layers that attend within `window` tokens."""
        if window not in self._masks:
            self._masks[window] = self._mask(window)
        return self._masks[window]

    def mark_dynamic(self, window: int | None) -> None:
        """Tell torch.compile that another tree has another number of nodes, so that it compiles for all numbers."""
        mask = self.mask(window)
        for tensor in (*self._on_device, *(part for part in mask.as_tuple() if isinstance(part, Tensor))):
            for dimension in {4: (2, 3), 3: (2,), 1: (0,)}[tensor.dim()]:
                torch._dynamo.maybe_mark_dynamic(tensor, dimension)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Return the attended values [N, H, D] of `query` [N, H, D], `key` and `value` [N, G, D]."""
        parts = [part.transpose(0, 1).unsqueeze(0) for part in (query, key, value)]
        if self._rest:
            parts = [pad(part, (0, 0, 0, self._rest)) for part in parts]
        attended = _kernel(query.device.type)(
            *parts,
            score_mod=None if scoring.softcap is None else capped(scoring.softcap),
            block_mask=self.mask(scoring.window),
            scale=scoring.scale,
            enable_gqa=True,
            kernel_options=KERNEL_OPTIONS,
        )
        return attended[0].transpose(0, 1)[: len(query)]

    def _mask(self, window: int | None) -> BlockMask:
        """Return the mask, with the pairs of blocks that have to be looked at.

        A node is seen by the run of nodes from itself to the end of its subtree. So of the query blocks after a key
        block, those that start before the last end of its nodes see some of it, and those that stop before the first
        end see all of it, as far as the window reaches. Trying every pair of nodes, as create_block_mask does, would
        take memory and time with the square of the nodes.
        """
        depths, ends = self._on_device

        def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return attention_mask(query, key, depths, ends, window)

        ends_of_blocks, depths_of_blocks = self._ends.view(-1, FLEX_BLOCK), self._depths.view(-1, FLEX_BLOCK)
        count = len(ends_of_blocks)
        start = torch.arange(count).unsqueeze(1) * FLEX_BLOCK  # of the query block, [queries, 1]
        is_after = start > torch.arange(count) * FLEX_BLOCK
        is_partial = is_after & (ends_of_blocks.amax(1) > start)
        is_whole = is_after & (ends_of_blocks.amin(1) >= start + FLEX_BLOCK)
        if window is not None:
            lowest, highest = depths_of_blocks.amin(1), depths_of_blocks.amax(1)
            is_partial &= lowest.unsqueeze(1) - highest < window
            is_whole &= is_partial & (highest.unsqueeze(1) - lowest < window)
        is_partial = (is_partial & ~is_whole) | torch.eye(count, dtype=torch.bool)
        counts, indices = _listed(is_partial, self._device)
        whole_counts, whole_indices = _listed(is_whole, self._device)
        length = count * FLEX_BLOCK
        return BlockMask.from_kv_blocks(
            counts, indices, whole_counts, whole_indices, FLEX_BLOCK, is_seen, seq_lengths=(length, length)
        )


def _listed(pairs: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the number of key blocks of each query block and their indices first in order, int32 [1, 1, B(, B)]."""
    counts = pairs.sum(dim=1, dtype=torch.int32)
    indices = pairs.to(torch.int8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return to_device(counts[None, None], device), to_device(indices[None, None], device)


def capped(softcap: float) -> Callable[..., Tensor]:
    """Return the score function of a soft cap c, c tanh(s / c)."""

    def cap(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap


@cache
def _kernel(device: str) -> Callable[..., Tensor]:
    # On a CPU there is no backward pass, and the plain form is for comparing results only.
    if device == "cpu":
        return flex_attention  # type: ignore[return-value]
    # A second length makes one kernel for all lengths; asked for at once (`dynamic=True`), soft caps do not compile.
    return compile_variants(flex_attention)


def compile_variants(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a function that is called in many ways: each model, precision, window and use of gradients is another.

    Beyond torch's limit of 8 it would run as it is from then on, and FlexAttention would hold the scores of every pair.
    """
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return cast(Any, torch.compile)(function, recompile_limit=MOST_VARIANTS)  # torch's overloads leave it out
    # An older torch has one limit for all functions and threads.
    torch._dynamo.config.recompile_limit = max(MOST_VARIANTS, torch._dynamo.config.recompile_limit)
    return torch.compile(function)
