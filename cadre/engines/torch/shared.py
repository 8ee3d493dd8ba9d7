"""Keys and values of one decoding batch in which a prompt's are held once, however many siblings read them.

A row attends to two parts, its prompt's keys and those of its own completion. The parts are computed apart by torch's
flash kernel, which also gives the logarithm of each softmax's denominator, and merged by these (as in cascade
inference, arXiv 2402.05099, section 4.1). All siblings of a prompt read its keys in one product. On processors only,
and not where scores are soft-capped: `serves` tells.

Letters: B rows, P prompts of one group, S slots (the most siblings that a prompt of the group has), H heads, G
key/value heads, r = H / G, C columns, D head size. Heads that share keys stand side by side as queries of one head, so
keys are never repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from cadre.engines.torch.cache import GROWTH, KeyValues, roomy
from cadre.engines.torch.model import attending
from cadre.learn.tree_attention import merge

NAME = "cadre_shared"
_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def serves(model: Any) -> bool:
    """Whether the model can be decoded this way."""
    return model.device.type == "cpu" and not getattr(model.config, "attn_logit_softcapping", None)


@dataclass
class Group:
    """P prompts: `keys` and `values` by layer [P, G, C, D], their `lengths` int64 [P], and the rows that read them.

    `slots` int64 [P, S] are rows, padded with any; its entries `places` (flattened) are the rows `rows` int64, which
    ascend.
    """

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor
    slots: Tensor
    places: Tensor
    rows: Tensor

    def hidden(self, tokens: int, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """What to add to the scores [P, 1, 1, C] once each row has `tokens` of its own, or None for nothing."""
        column = torch.arange(self.keys[0].shape[2])
        seen = column < self.lengths.unsqueeze(1)
        if window is not None:
            seen &= column > self.lengths.unsqueeze(1) + (tokens - 1 - window)
        if bool(seen.all()):
            return None
        # Not minus infinity: a row that sees none of its prompt must still have a number to be merged.
        return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None, None]


class SharedKeys:
    """The cache of one batch. `prompts[row]` is the prompt that a row reads, numbered through the groups in order."""

    def __init__(self, groups: Sequence[KeyValues], lengths: Sequence[Tensor], prompts: Tensor, capacity: int) -> None:
        self._prompts = prompts
        self._capacity = capacity
        self._length = 0
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._held = [(*_prompts(group), own) for group, own in zip(groups, lengths, strict=True)]
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}
        self._groups = self._assigned()

    def _assigned(self) -> list[Group]:
        """The groups with the rows that read them now; a group without rows is left out."""
        found, first = [], 0
        for keys, values, lengths in self._held:
            rows = ((self._prompts >= first) & (self._prompts < first + len(lengths))).nonzero().squeeze(1)
            prompt = self._prompts[rows] - first
            first += len(lengths)
            if len(rows):
                order = prompt.argsort(stable=True)
                counts = prompt.bincount(minlength=len(lengths))
                slot = torch.empty_like(prompt)
                slot[order] = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[prompt[order]]
                slots = rows.new_zeros(len(lengths), int(counts.max()))
                slots[prompt, slot] = rows
                found.append(Group(keys, values, lengths, slots, prompt * slots.shape[1] + slot, rows))
        return found

    @contextmanager
    def reading(self, model: Any, position: Tensor) -> Iterator[dict[str, Any]]:
        """Within it the model attends to these keys, each layer taking in those of one more token a row."""
        self.advance()
        with attending(model, NAME):
            yield {"shared": self, "use_cache": False}

    def advance(self) -> None:
        """Make room for one more token a row, which each layer takes in as it attends."""
        self._length += 1
        self._masks.clear()

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order. Prompts that nobody reads any more go once they are half of a group."""
        self._prompts = self._prompts[rows]
        for layer, (keys, values) in self._own.items():
            used = (part[:, :, : self._length].index_select(0, rows) for part in (keys, values))
            self._own[layer] = tuple(roomy(part, self._capacity) for part in used)  # type: ignore[assignment]
        self._drop_unread()
        self._groups = self._assigned()
        self._masks.clear()

    def _drop_unread(self) -> None:
        first, numbers = 0, torch.zeros_like(self._prompts)
        count = 0
        for index, (keys, values, lengths) in enumerate(self._held):
            inside = (self._prompts >= first) & (self._prompts < first + len(lengths))
            own = self._prompts[inside] - first
            first += len(lengths)
            read = torch.unique(own)
            if 2 * len(read) <= len(lengths):
                place = torch.zeros(len(lengths), dtype=torch.int64)
                place[read] = torch.arange(len(read))
                own, lengths = place[own], lengths[read]
                self._held[index] = ([part[read] for part in keys], [part[read] for part in values], lengths)
            numbers[inside] = own + count
            count += len(lengths)
        self._prompts = numbers

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """The attended values [B, H, 1, D] of one token a row, which is taken into the cache first.

        `query` [B, H, 1, D], `key` and `value` [B, G, 1, D]. A row sees at most `window` tokens, itself included.
        """
        keys, values = self._append(layer, key, value)
        count, heads, _, size = query.shape
        query = query.reshape(count, keys.shape[1], -1, size)
        start = 0 if window is None else max(0, self._length - window)
        merged, norm = _attention(query, keys[:, :, start:], values[:, :, start:], 0.0, False, scale=scale)
        merged, norm = merged.float(), norm.clone()
        for number, group in enumerate(self._groups):
            result, own = self._prompt_part(number, group, layer, query, scale, window)
            rows = group.rows
            if len(rows) == count:
                merge(merged, norm, result, own)
                continue
            so_far, denominators = merged[rows], norm[rows]
            merge(so_far, denominators, result, own)
            merged[rows], norm[rows] = so_far, denominators
        return merged.to(query.dtype).reshape(count, heads, 1, size)

    def _prompt_part(
        self, number: int, group: Group, layer: int, query: Tensor, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """What the group's rows read of their prompts, [rows, G, r, D] and its log-denominators [rows, G, r]."""
        if (number, window) not in self._masks:
            self._masks[number, window] = group.hidden(self._length, window, query.dtype)
        prompts, slots = group.slots.shape
        _, heads, repeats, size = query.shape
        asked = query[group.slots].transpose(1, 2).reshape(prompts, heads, slots * repeats, size)
        mask = self._masks[number, window]
        result, norm = _attention(
            asked, group.keys[layer], group.values[layer], 0.0, False, attn_mask=mask, scale=scale
        )
        result = result.reshape(prompts, heads, slots, repeats, size).transpose(1, 2).flatten(0, 1)[group.places]
        norm = norm.reshape(prompts, heads, slots, repeats).transpose(1, 2).flatten(0, 1)[group.places]
        return result.float(), norm

    def _append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of the rows' own tokens, the newest included, [B, G, tokens, D]."""
        if layer not in self._own:
            self._own[layer] = (roomy(key[:, :, :0], self._capacity), roomy(value[:, :, :0], self._capacity))
        if self._length > self._own[layer][0].shape[2]:
            self._capacity = max(self._capacity, self._length + max(GROWTH, self._length // 4))
            keys, values = (roomy(part[:, :, : self._length - 1], self._capacity) for part in self._own[layer])
            self._own[layer] = (keys, values)
        keys, values = self._own[layer]
        keys[:, :, self._length - 1 : self._length] = key
        values[:, :, self._length - 1 : self._length] = value
        return keys[:, :, : self._length], values[:, :, : self._length]


def _prompts(group: KeyValues) -> tuple[list[Tensor], list[Tensor]]:
    """The keys and values of a group's prompts by layer, in one precision."""
    values = [layer.values[:, :, : layer.length] for layer in group.layers]
    keys = [layer.keys[:, :, : layer.length] for layer in group.layers]
    return [key.to(value.dtype) for key, value in zip(keys, values, strict=True)], values


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: None,
    *,
    shared: SharedKeys,
    scaling: float,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for attention: `query` [B, H, 1, D] in, [B, 1, H, D] out."""
    # Under autocast rotary embeddings leave queries and keys in another precision than values.
    query, key = query.to(value.dtype), key.to(value.dtype)
    return shared.attend(module.layer_idx, query, key, value, scaling, sliding_window).transpose(1, 2), None


AttentionInterface.register(NAME, _attend)
