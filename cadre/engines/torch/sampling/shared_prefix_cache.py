"""Keys and values of one decoding batch in which a prompt's are held once, however many siblings read them.

A sequence attends to two parts, its prompt's keys and those of its own completion. The parts are computed apart by
torch's flash kernel, which also gives the logarithm of each softmax's denominator, and merged by these (as in cascade
inference, arXiv 2402.05099, section 4.1). All siblings of a prompt read its keys in one product. On CPUs only, and not
where scores are soft-capped: `serves` tells.

Letters: B sequences, P prompts of one group, S the most siblings that read one of them, H heads, G key/value heads,
r = H / G, C slots of a prompt's keys, D head size. Heads that share keys stand side by side as queries of one head, so
keys are never repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AttentionInterface

from cadre.engines.torch.base.loading import attending, check_keywords
from cadre.engines.torch.sampling.kv_cache import GROWTH, KeyValues, roomy
from cadre.engines.torch.sampling.turn_cache import Piece, rows_of
from cadre.learn.prefix_tree_attention import merge

NAME = "cadre_shared"
_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def is_plain(model: Any) -> bool:
    """Whether it is a model of text alone, whose scores of attention are as they are."""
    text = model.config.get_text_config() is model.config
    return text and not getattr(model.config, "attn_logit_softcapping", None)


def serves(model: Any) -> bool:
    """Whether the model can be decoded this way."""
    return model.device.type == "cpu" and is_plain(model)


@dataclass(frozen=True)
class Scoring:
    """How a layer attends: products of queries and keys times `scale`, over at most `window` tokens."""

    scale: float
    window: int | None


@dataclass(frozen=True)
class Prompts:
    """A group of P prompts: `keys` and `values` by layer [P, G, C, D], and their `lengths` int64 [P]."""

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor

    @classmethod
    def of(cls, prefill: KeyValues, lengths: Tensor) -> Self:
        """Those of a prefill's cache, in one precision."""
        values = [layer.values[:, :, : layer.length] for layer in prefill.layers]
        keys = [layer.keys[:, :, : layer.length] for layer in prefill.layers]
        return cls([key.to(value.dtype) for key, value in zip(keys, values, strict=True)], values, lengths)

    def select(self, kept: Tensor) -> Prompts:
        """Some of the prompts, in this order."""
        return Prompts([part[kept] for part in self.keys], [part[kept] for part in self.values], self.lengths[kept])

    def hidden(self, tokens: int, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """What to add to the scores [P, 1, 1, C] once each sequence has `tokens` of its own, or None for nothing."""
        slot = torch.arange(self.keys[0].shape[2])
        seen = slot < self.lengths.unsqueeze(1)
        if window is not None:
            seen &= slot > self.lengths.unsqueeze(1) + (tokens - 1 - window)
        if bool(seen.all()):
            return None
        # Not minus infinity: a sequence that sees none of its prompt must still have a number to be merged.
        return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None, None]


@dataclass(frozen=True)
class Readers:
    """The sequences that read the prompts of a group now.

    `siblings` int64 [P, S] are the sequences of each prompt, padded with any; its entries `places` (flattened) are
    `sequences` int64, which ascend.
    """

    prompts: Prompts
    siblings: Tensor
    places: Tensor
    sequences: Tensor

    @classmethod
    def of(cls, prompts: Prompts, sequences: Tensor, prompt: Tensor) -> Self:
        """`prompt` is the number within the group of what each of the sequences reads."""
        counts = prompt.bincount(minlength=len(prompts.lengths))
        order = prompt.argsort(stable=True)
        sibling = torch.empty_like(prompt)
        sibling[order] = torch.arange(len(sequences)) - (counts.cumsum(0) - counts)[prompt[order]]
        siblings = sequences.new_zeros(len(prompts.lengths), int(counts.max()))
        siblings[prompt, sibling] = sequences
        return cls(prompts, siblings, prompt * siblings.shape[1] + sibling, sequences)

    def gather(self, query: Tensor) -> Tensor:
        """The queries [B, G, r, D] of each prompt's siblings side by side, [P, G, S * r, D]."""
        prompts, siblings = self.siblings.shape
        _, heads, repeats, size = query.shape
        return query[self.siblings].transpose(1, 2).reshape(prompts, heads, siblings * repeats, size)

    def scatter(self, result: Tensor, repeats: int) -> Tensor:
        """What was read, [P, G, S * r, ...], for each of the sequences, [sequences, G, r, ...]."""
        prompts, siblings = self.siblings.shape
        apart = result.reshape(prompts, result.shape[1], siblings, repeats, *result.shape[3:])
        return apart.transpose(1, 2).flatten(0, 1)[self.places]


class SharedKeys:
    """The cache of one batch. `read[sequence]` is its prompt, numbered through the groups in order."""

    def __init__(self, groups: Sequence[Prompts], read: Tensor, capacity: int) -> None:
        self._groups = list(groups)
        self._read = read
        self._capacity = capacity
        self._length = 0
        self._completions: dict[int, tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}
        self._readers = self._assign()

    def _by_group(self) -> Iterator[tuple[Prompts, Tensor, Tensor]]:
        """Each group with the sequences that read it, which ascend, and which of its prompts each of them reads."""
        first = 0
        for prompts in self._groups:
            last = first + len(prompts.lengths)
            sequences = ((self._read >= first) & (self._read < last)).nonzero().squeeze(1)
            yield prompts, sequences, self._read[sequences] - first
            first = last

    def _assign(self) -> list[Readers]:
        return [Readers.of(*group) for group in self._by_group() if len(group[1])]

    @contextmanager
    def reading(self, model: Any, position: Tensor) -> Iterator[dict[str, Any]]:
        """Within it the model attends to these keys, each layer taking in those of one more token a sequence."""
        self.advance()
        with attending(model, NAME):
            yield {"shared": self, "use_cache": False}

    def advance(self) -> None:
        """Make room for one more token a sequence, which each layer takes in as it attends."""
        self._length += 1
        self._masks.clear()

    def select(self, kept: Tensor) -> None:
        """Keep these sequences, in this order. Prompts that nobody reads any more go once they are half of a group."""
        self._read = self._read[kept]
        for layer, (keys, values) in self._completions.items():
            used = [part[:, :, : self._length].index_select(0, kept) for part in (keys, values)]
            self._completions[layer] = (roomy(used[0], self._capacity), roomy(used[1], self._capacity))
        self._drop_unread()
        self._readers = self._assign()
        self._masks.clear()

    def said(self, rows: Tensor) -> Piece:
        """The keys and values of what these sequences have said."""
        layers = [self._completions[layer] for layer in range(len(self._completions))]
        keys, values = [keys for keys, _ in layers], [values for _, values in layers]
        return rows_of(keys, values, rows, slice(0, self._length))

    def _drop_unread(self) -> None:
        groups: list[Prompts] = []
        numbers, first = torch.zeros_like(self._read), 0
        for prompts, sequences, prompt in self._by_group():
            read = torch.unique(prompt)
            if 2 * len(read) <= len(prompts.lengths):
                prompts, prompt = prompts.select(read), torch.searchsorted(read, prompt)
            groups.append(prompts)
            numbers[sequences] = prompt + first
            first += len(prompts.lengths)
        self._groups, self._read = groups, numbers

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """The attended values [B, H, 1, D] of one token a sequence, which is taken into the cache first.

        `query` [B, H, 1, D], `key` and `value` [B, G, 1, D]. A token itself counts in the window.
        """
        scale, window = scoring.scale, scoring.window
        keys, values = self._append(layer, key, value)
        count, heads, _, size = query.shape
        query = query.reshape(count, keys.shape[1], -1, size)
        start = 0 if window is None else max(0, self._length - window)
        attended, norm = _attention(query, keys[:, :, start:], values[:, :, start:], 0.0, False, scale=scale)
        attended, norm = attended.float(), norm.clone()
        for number, readers in enumerate(self._readers):
            mask = self._mask(number, window, query.dtype)
            _merge_at(readers.sequences, attended, norm, *_prompt_part(readers, layer, query, scale, mask))
        return attended.to(query.dtype).reshape(count, heads, 1, size)

    def _mask(self, number: int, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """The mask of a group's prompts, the same in every layer."""
        if (number, window) not in self._masks:
            self._masks[number, window] = self._readers[number].prompts.hidden(self._length, window, dtype)
        return self._masks[number, window]

    def _append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of the completions so far, the newest included, [B, G, tokens, D]."""
        if layer not in self._completions:
            self._completions[layer] = (roomy(key[:, :, :0], self._capacity), roomy(value[:, :, :0], self._capacity))
        if self._length > self._completions[layer][0].shape[2]:
            self._grow(layer)
        keys, values = self._completions[layer]
        keys[:, :, self._length - 1 : self._length] = key
        values[:, :, self._length - 1 : self._length] = value
        return keys[:, :, : self._length], values[:, :, : self._length]

    def _grow(self, layer: int) -> None:
        self._capacity = max(self._capacity, self._length + max(GROWTH, self._length // 4))
        keys, values = (roomy(part[:, :, : self._length - 1], self._capacity) for part in self._completions[layer])
        self._completions[layer] = (keys, values)


def _prompt_part(
    readers: Readers, layer: int, query: Tensor, scale: float, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What a group's sequences read of their prompts, [n, G, r, D], and its log-denominators [n, G, r]."""
    keys, values = readers.prompts.keys[layer], readers.prompts.values[layer]
    result, norm = _attention(readers.gather(query), keys, values, 0.0, False, attn_mask=mask, scale=scale)
    repeats = query.shape[2]
    return readers.scatter(result, repeats).float(), readers.scatter(norm, repeats)


def _merge_at(sequences: Tensor, attended: Tensor, norm: Tensor, result: Tensor, denominators: Tensor) -> None:
    """Take the result of some of the sequences into what all have attended to so far, in place."""
    if len(sequences) == len(attended):
        merge(attended, norm, result, denominators)
        return
    so_far, norms = attended[sequences], norm[sequences]
    merge(so_far, norms, result, denominators)
    attended[sequences], norm[sequences] = so_far, norms


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
    check_keywords(rest)
    # Under autocast rotary embeddings leave queries and keys in another precision than values.
    query, key = query.to(value.dtype), key.to(value.dtype)
    scoring = Scoring(scaling, sliding_window)
    return shared.attend(module.layer_idx, query, key, value, scoring).transpose(1, 2), None


AttentionInterface.register(NAME, _attend)
