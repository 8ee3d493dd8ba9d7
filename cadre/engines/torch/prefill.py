"""Prefill: run every distinct prompt once, for its keys and values and the logits that follow it.

Of a prompt that begins with a prefix of earlier turns (`prefix_cache`) only the rest is run. On CPUs, if no window or
soft cap hides the prefix, a token of the rest attends to the prefix and, causally, to the rest before it in two parts
without a mask of every pair, merged by the logarithms of their denominators as in `shared_prefix_cache`. The simple
form is the model's own forward with a mask.

Letters: P prompts of a group, H heads, G key/value heads, C slots of the longest prefix, Q tokens of the longest rest,
D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cadre.engines.torch import shared_prefix_cache, vision
from cadre.engines.torch.kv_cache import NAME, NEVER, KeyValueCache, hide, make_masks
from cadre.engines.torch.lora import segments
from cadre.engines.torch.model import LoadedModel, project_only, use_attention
from cadre.engines.torch.prefix_cache import BlockSlice, CachedPrefix, KeyValueBlock, PrefixCache
from cadre.engines.torch.shared_prefix_cache import flash_attention
from cadre.learn.tree_attention import Scoring, merge_attention
from cadre.types import Media

# Padded tokens of a group, which bound what a forward takes; and the same with the cached prefixes.
PREFILL_TOKENS = 8192
CONTINUED_TOKENS = 4 * PREFILL_TOKENS


class PolicyPrompt(NamedTuple):
    """A prompt with the policy that reads it, and the images that its placeholders stand for."""

    policy: str
    ids: tuple[int, ...]
    images: tuple[Media, ...] = ()


@dataclass(frozen=True)
class Prefill:
    """Groups of prompts that went through the model together, and the outputs.

    caches    keys and values by group
    lengths   int64 [P], tokens of the prompts by group
    logits    float32 [prompts, V], which follow the prompts of all groups in order
    numbers   the index of each prompt in that order
    slices    where each prompt's keys are, in that order
    shifts    int64 [prompts], the position after each prompt less its length; None if all are zero
    """

    caches: list[KeyValueCache]
    lengths: list[Tensor]
    logits: Tensor
    numbers: dict[PolicyPrompt, int]
    slices: list[BlockSlice]
    shifts: Tensor | None = None


def prefill(loaded: LoadedModel, prompts: Iterable[PolicyPrompt], prefix_cache: PrefixCache, share: bool) -> Prefill:
    """Run every distinct prompt once, as far as `prefix_cache` does not have it, and add it there. With `share` cached
    prefixes are attended to without a mask, if the model can be run so."""
    device = loaded.model.device
    distinct = set(prompts)
    prefixes = {prompt: prefix_cache.find(prompt.policy, prompt.ids) for prompt in sorted(distinct)}
    cached = {prompt: prefix for prompt, prefix in prefixes.items() if prefix is not None}
    new_groups = _group_by_rest((prompt for prompt in distinct if prompt not in cached), {})
    continued_groups = _group_by_rest(cached, {prompt: prefix.length for prompt, prefix in cached.items()})
    groups = [*new_groups, *continued_groups]

    caches: list[KeyValueCache] = []
    logits: list[Tensor] = []
    shifts: list[Tensor] = []
    for group in new_groups:
        cache = KeyValueCache(loaded.model.config.get_text_config().num_hidden_layers)
        inputs: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
        if loaded.pictures is not None:
            rows = [(prompt.ids, prompt.images) for prompt in group]
            vision_inputs = vision.make_inputs(loaded.model, loaded.pictures, rows)
            inputs |= vision_inputs.tensors
            shifts.append(vision_inputs.shifts)
        # Padding is on the right: what follows a token cannot change it, so there is no mask to build.
        logits.append(_run_rests(loaded, group, [0] * len(group), inputs))
        caches.append(cache)
    window = loaded.attention.window
    can_merge = share and shared_prefix_cache.can_share(loaded.model)
    for group in continued_groups:
        group_prefixes = [cached[prompt] for prompt in group]
        is_hidden = window is not None and window < max(len(prompt.ids) for prompt in group)
        form = _continue_merged if can_merge and not is_hidden else _continue_masked
        cache, group_logits = form(loaded, group, group_prefixes)
        logits.append(group_logits)
        caches.append(cache)

    # Later turns find the prompts from here on.
    slices: list[BlockSlice] = []
    for group, cache in zip(groups, caches, strict=True):
        keys = [layer.keys[:, :, : layer.length] for layer in cache.layers]
        values = [layer.values[:, :, : layer.length] for layer in cache.layers]
        block = KeyValueBlock(keys, values)
        parts = [BlockSlice(block, row, len(prompt.ids)) for row, prompt in enumerate(group)]
        entries = zip(group, parts, strict=True)
        prefix_cache.add(block, [(prompt.policy, prompt.ids, (part,)) for prompt, part in entries])
        slices += parts
    return Prefill(
        caches=caches,
        lengths=[torch.tensor([len(prompt.ids) for prompt in group], device=device) for group in groups],
        logits=torch.cat(logits),
        numbers={prompt: index for index, prompt in enumerate(prompt for group in groups for prompt in group)},
        slices=slices,
        shifts=torch.cat(shifts) if shifts else None,
    )


def _group_by_rest(prompts: Iterable[PolicyPrompt], starts: Mapping[PolicyPrompt, int]) -> list[list[PolicyPrompt]]:
    """Return prompts whose rests from `starts` on have similar length, in groups that are each ordered by policy. The
    rests of a group have at most PREFILL_TOKENS padded tokens, and with their prefixes at most CONTINUED_TOKENS."""
    groups: list[list[PolicyPrompt]] = []
    longest = 0
    for prompt in sorted(prompts, key=lambda prompt: (len(prompt.ids) - starts.get(prompt, 0), prompt)):
        rest, longest = len(prompt.ids) - starts.get(prompt, 0), max(longest, len(prompt.ids))
        count = len(groups[-1]) + 1 if groups else 0
        if groups and rest * count <= PREFILL_TOKENS and longest * count <= CONTINUED_TOKENS:
            groups[-1].append(prompt)
        else:
            groups.append([prompt])
            longest = len(prompt.ids)
    return [sorted(group) for group in groups]


def _run_rests(
    loaded: LoadedModel, prompts: Sequence[PolicyPrompt], starts: Sequence[int], inputs: dict[str, Any]
) -> Tensor:
    """Run the tokens of the prompts from `starts` on, and return the logits [P, V] that follow them."""
    model = loaded.model
    rests = [torch.tensor(prompt.ids[start:]) for prompt, start in zip(prompts, starts, strict=True)]
    last = torch.tensor([len(rest) - 1 for rest in rests], device=model.device)
    ids = torch.nn.utils.rnn.pad_sequence(rests, batch_first=True)
    rows = torch.arange(len(prompts), device=model.device)
    policies = segments([prompt.policy for prompt in prompts])
    with project_only(model, rows, last), loaded.adapters.rows(policies):
        output = model(**{"input_ids": ids.to(model.device), **inputs})
    logits: Tensor = output.logits[0].float()
    return logits


def _cache_with_prefixes(layers: int, prefixes: Sequence[CachedPrefix], capacity: int) -> KeyValueCache:
    """Return a cache of `capacity` slots, all in use, with each prompt's prefix in its first and zeros beyond."""
    cache = KeyValueCache(layers, capacity)
    block = prefixes[0].slices[0].block
    for number, layer in enumerate(cache.layers):
        layer.keys, layer.values = (
            part.new_zeros(len(prefixes), part.shape[1], capacity, part.shape[3])
            for part in (block.keys[number], block.values[number])
        )
        layer.length, layer.is_initialized = capacity, True
        for row, prefix in enumerate(prefixes):
            prefix.copy_into(number, layer.keys[row], layer.values[row])
    return cache


# The simple form.


def _continue_masked(
    loaded: LoadedModel, prompts: Sequence[PolicyPrompt], prefixes: Sequence[CachedPrefix]
) -> tuple[KeyValueCache, Tensor]:
    """Return the cache and the logits of prompts with cached prefixes, by the model's own forward with a mask."""
    device = loaded.model.device
    starts = torch.tensor([prefix.length for prefix in prefixes], device=device)
    lengths = torch.tensor([len(prompt.ids) for prompt in prompts], device=device)
    longest, prefix_slots, rest = int(lengths.max()), int(starts.max()), int((lengths - starts).max())
    cache = _cache_with_prefixes(loaded.model.config.get_text_config().num_hidden_layers, prefixes, prefix_slots + rest)
    for layer in cache.layers:
        layer.length = prefix_slots
    position = starts.unsqueeze(1) + torch.arange(rest, device=device)
    slots = torch.arange(prefix_slots, device=device).expand(len(prompts), prefix_slots)
    # A slot beyond a prompt's prefix counts as if it came after all others.
    slots = torch.cat((slots.masked_fill(slots >= starts.unsqueeze(1), NEVER), position), dim=1)
    mask = make_masks(loaded.attention, position, slots, cache.layers[0].values.dtype)
    # Padding stands within the context, too, though no token attends to it.
    within_context = position.clamp(max=longest - 1)
    inputs = {"past_key_values": cache, "attention_mask": mask, "position_ids": within_context, "use_cache": True}
    logits = _run_rests(loaded, prompts, starts.tolist(), inputs)

    # Close the gaps: each prompt's prefix and its rest, which begins at `prefix_slots`, move together at the front.
    slot = torch.arange(longest, device=device)
    source = torch.where(slot < starts.unsqueeze(1), slot, slot - starts.unsqueeze(1) + prefix_slots)
    source = source.clamp(max=cache.length - 1)[:, None, :, None]
    for layer in cache.layers:
        _, heads, _, size = layer.keys.shape
        index = source.expand(-1, heads, -1, size)
        layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        layer.length = layer.capacity = longest
    return cache, logits


# The form without a mask.


def _continue_merged(
    loaded: LoadedModel, prompts: Sequence[PolicyPrompt], prefixes: Sequence[CachedPrefix]
) -> tuple[KeyValueCache, Tensor]:
    """Return the cache and the logits of prompts with cached prefixes, by merged attention."""
    starts, lengths = [prefix.length for prefix in prefixes], [len(prompt.ids) for prompt in prompts]
    prompt_cache = ContinuedPromptCache(loaded.model.config.num_hidden_layers, prefixes, lengths)
    rest = max(length - start for length, start in zip(lengths, starts, strict=True))
    # Padding stands within the context, too.
    position = (torch.tensor(starts).unsqueeze(1) + torch.arange(rest)).clamp(max=max(lengths) - 1)
    inputs = {"position_ids": position, "decoding_cache": prompt_cache, "use_cache": False}
    with use_attention(loaded.model, NAME):
        logits = _run_rests(loaded, prompts, starts, inputs)
    return prompt_cache.cache, logits


class ContinuedPromptCache:
    """The cache of P prompts of given `lengths`, with their prefixes; layers write the rest behind them as they run."""

    def __init__(self, layers: int, prefixes: Sequence[CachedPrefix], lengths: Sequence[int]) -> None:
        self._starts = [prefix.length for prefix in prefixes]
        self._lengths = lengths
        self._prefix_slots = max(self._starts)
        self._mask: Tensor | None = None
        self.cache = _cache_with_prefixes(layers, prefixes, max(lengths))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Return the attended values [P, H, Q, D] of the rest's `query` [P, H, Q, D], and cache its keys and values.
        `key` and `value` [P, G, Q, D]. No window is shorter than the prompts."""
        count, heads, rest, size = query.shape
        groups, scale = key.shape[1], scoring.scale
        # The rest, causally.
        repeated = [part.repeat_interleave(heads // groups, dim=1) for part in (key, value)]
        attended, norm = flash_attention(query, *repeated, 0.0, True, scale=scale)
        attended, norm = attended.float(), norm.clone()

        # The prefixes. Heads that share keys become queries of one head.
        cached_keys, cached_values = self.cache.layers[layer].keys, self.cache.layers[layer].values
        keys, values = (part[:, :, : self._prefix_slots].to(value.dtype) for part in (cached_keys, cached_values))
        if self._mask is None and min(self._starts) < self._prefix_slots:
            is_hidden = torch.arange(self._prefix_slots) >= torch.tensor(self._starts).unsqueeze(1)
            self._mask = hide(is_hidden, query.dtype)[:, None, None]
        grouped = query.reshape(count, groups, -1, size)
        part, part_norm = flash_attention(grouped, keys, values, 0.0, False, attn_mask=self._mask, scale=scale)
        merge_attention(attended, norm, part.reshape(query.shape).float(), part_norm.reshape(count, heads, rest))

        for row, (start, end) in enumerate(zip(self._starts, self._lengths, strict=True)):
            cached_keys[row, :, start:end] = key[row, :, : end - start]
            cached_values[row, :, start:end] = value[row, :, : end - start]
        return attended.to(query.dtype)
