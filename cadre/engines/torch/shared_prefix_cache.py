"""A key/value cache of one decoding batch in which a prompt's keys are held once for all its completions.

A sequence attends to two parts, its prompt's keys and those of its own completion. The parts are computed separately by
torch's flash kernel, which also gives the logarithm of each softmax's denominator, and merged by these (as in cascade
inference, arXiv 2402.05099, section 4.1). All completions of a prompt read its keys in one product. On CPUs only, and
not for soft-capped scores: see `can_share`.

Letters: B sequences, P prompts of one group, S the most completions of one of them, H heads, G key/value heads,
r = H / G, C slots of a prompt's keys, D head size. Heads that share keys become queries of one head, so that keys are
never repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from cadre.engines.torch.kv_cache import GROWTH, NAME, KeyValueCache, hide, with_capacity
from cadre.engines.torch.model import use_attention
from cadre.engines.torch.prefix_cache import KeyValueBlock
from cadre.learn.tree_attention import Scoring, merge_attention

flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def can_share(model: Any) -> bool:
    """Return True for a model of text on a CPU whose attention scores are not soft-capped."""
    is_text = model.config.get_text_config() is model.config
    return model.device.type == "cpu" and is_text and not getattr(model.config, "attn_logit_softcapping", None)


@dataclass(frozen=True)
class PromptGroup:
    """P prompts that were run together: `keys` and `values` by layer [P, G, C, D], and their `lengths` int64 [P]."""

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor

    @classmethod
    def from_cache(cls, cache: KeyValueCache, lengths: Tensor) -> Self:
        """Return the keys and values of a prefill's cache, in one precision."""
        values = [layer.values[:, :, : layer.length] for layer in cache.layers]
        keys = [layer.keys[:, :, : layer.length] for layer in cache.layers]
        return cls([key.to(value.dtype) for key, value in zip(keys, values, strict=True)], values, lengths)

    def select(self, rows: Tensor) -> PromptGroup:
        """Return some of the prompts, in this order."""
        return PromptGroup([part[rows] for part in self.keys], [part[rows] for part in self.values], self.lengths[rows])

    def make_mask(self, tokens: int, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Return the additive mask [P, 1, 1, C] once each completion has `tokens`; None if nothing is hidden."""
        slot = torch.arange(self.keys[0].shape[2])
        visible = slot < self.lengths.unsqueeze(1)
        if window is not None:
            visible &= slot > self.lengths.unsqueeze(1) + (tokens - 1 - window)
        return None if bool(visible.all()) else hide(~visible, dtype)[:, None, None]


@dataclass(frozen=True)
class PromptReaders:
    """The sequences that read the prompts of a group now. `table` int64 [P, S] has the sequences of each prompt, padded
    with any; its entries `indices` (flattened) are `sequences` int64, which ascend."""

    group: PromptGroup
    table: Tensor
    indices: Tensor
    sequences: Tensor

    @classmethod
    def make(cls, group: PromptGroup, sequences: Tensor, prompt: Tensor) -> Self:
        """Return the readers of a group; `prompt` is the index within the group of each sequence's prompt."""
        counts = prompt.bincount(minlength=len(group.lengths))
        order = prompt.argsort(stable=True)
        column = torch.empty_like(prompt)
        column[order] = torch.arange(len(sequences)) - (counts.cumsum(0) - counts)[prompt[order]]
        table = sequences.new_zeros(len(group.lengths), int(counts.max()))
        table[prompt, column] = sequences
        return cls(group, table, prompt * table.shape[1] + column, sequences)

    def gather(self, query: Tensor) -> Tensor:
        """Return the queries [B, G, r, D] of each prompt's completions side by side, [P, G, S * r, D]."""
        prompts, completions = self.table.shape
        _, heads, repeats, size = query.shape
        return query[self.table].transpose(1, 2).reshape(prompts, heads, completions * repeats, size)

    def scatter(self, result: Tensor, repeats: int) -> Tensor:
        """Return results [P, G, S * r, ...] for each of the sequences, [sequences, G, r, ...]."""
        prompts, completions = self.table.shape
        by_completion = result.reshape(prompts, result.shape[1], completions, repeats, *result.shape[3:])
        return by_completion.transpose(1, 2).flatten(0, 1)[self.indices]


class SharedPrefixCache:
    """The cache of one batch. `prompts[sequence]` is its prompt's index through the groups in order."""

    def __init__(self, groups: Sequence[PromptGroup], prompts: Tensor, capacity: int) -> None:
        self._groups = list(groups)
        self._prompts = prompts
        self._capacity = capacity
        self._length = 0
        self._completions: dict[int, tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}
        self._readers = self._assign()

    def _by_group(self) -> Iterator[tuple[PromptGroup, Tensor, Tensor]]:
        """Yield each group with the sequences that read it, ascending, and their prompts' indices within the group."""
        first = 0
        for group in self._groups:
            last = first + len(group.lengths)
            sequences = ((self._prompts >= first) & (self._prompts < last)).nonzero().squeeze(1)
            yield group, sequences, self._prompts[sequences] - first
            first = last

    def _assign(self) -> list[PromptReaders]:
        return [PromptReaders.make(*entry) for entry in self._by_group() if len(entry[1])]

    @contextmanager
    def step_inputs(self, model: Any, position: Tensor) -> Iterator[dict[str, Any]]:
        """Yield keywords with which the model attends to this cache; see `DecodingCache`."""
        self.advance()
        with use_attention(model, NAME):
            yield {"decoding_cache": self, "use_cache": False}

    def advance(self) -> None:
        """Make room for one more token a sequence, which each layer adds as it attends."""
        self._length += 1
        self._masks.clear()

    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order. Unread prompts are dropped once they are half of a group."""
        self._prompts = self._prompts[rows]
        for layer, parts in self._completions.items():
            keys, values = (
                with_capacity(part[:, :, : self._length].index_select(0, rows), self._capacity) for part in parts
            )
            self._completions[layer] = (keys, values)

        groups: list[PromptGroup] = []
        numbers, first = torch.zeros_like(self._prompts), 0
        for group, sequences, prompt in self._by_group():
            read = torch.unique(prompt)
            if 2 * len(read) <= len(group.lengths):
                group, prompt = group.select(read), torch.searchsorted(read, prompt)
            groups.append(group)
            numbers[sequences] = prompt + first
            first += len(group.lengths)
        self._groups, self._prompts = groups, numbers
        self._readers = self._assign()
        self._masks.clear()

    def completion_block(self, rows: Tensor) -> KeyValueBlock:
        """Return the keys and values of these sequences' completions."""
        layers = [self._completions[layer] for layer in range(len(self._completions))]
        keys, values = [keys for keys, _ in layers], [values for _, values in layers]
        return KeyValueBlock.copy_of(keys, values, rows, slice(0, self._length))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Return the attended values [B, H, 1, D] of one token a sequence, which is added to the cache first. `query`
        [B, H, 1, D], `key` and `value` [B, G, 1, D]. The token itself counts in the window."""
        scale, window = scoring.scale, scoring.window
        keys, values = self._append(layer, key, value)
        count, heads, _, size = query.shape
        query = query.reshape(count, keys.shape[1], -1, size)
        repeats = query.shape[2]

        # The sequence's own completion, within the window.
        start = 0 if window is None else max(0, self._length - window)
        attended, norm = flash_attention(query, keys[:, :, start:], values[:, :, start:], 0.0, False, scale=scale)
        attended, norm = attended.float(), norm.clone()

        # The prompts, a group at a time; the mask is the same in every layer.
        for number, readers in enumerate(self._readers):
            if (number, window) not in self._masks:
                self._masks[number, window] = readers.group.make_mask(self._length, window, query.dtype)
            mask = self._masks[number, window]
            prompt_keys, prompt_values = readers.group.keys[layer], readers.group.values[layer]
            part, part_norm = flash_attention(
                readers.gather(query), prompt_keys, prompt_values, 0.0, False, attn_mask=mask, scale=scale
            )
            part, part_norm = readers.scatter(part, repeats).float(), readers.scatter(part_norm, repeats)
            rows = readers.sequences
            if len(rows) == count:
                merge_attention(attended, norm, part, part_norm)
            else:
                merged, merged_norm = attended[rows], norm[rows]
                merge_attention(merged, merged_norm, part, part_norm)
                attended[rows], norm[rows] = merged, merged_norm
        return attended.to(query.dtype).reshape(count, heads, 1, size)

    def _append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the completions so far, the newest included, [B, G, tokens, D]."""
        newest = self._length - 1
        keys, values = self._completions.get(layer, (key[:, :, :0], value[:, :, :0]))
        if self._length > keys.shape[2]:
            if newest:
                self._capacity = max(self._capacity, self._length + max(GROWTH, self._length // 4))
            keys, values = (with_capacity(part[:, :, :newest], self._capacity) for part in (keys, values))
            self._completions[layer] = (keys, values)
        keys[:, :, newest : self._length] = key
        values[:, :, newest : self._length] = value
        return keys[:, :, : self._length], values[:, :, : self._length]
