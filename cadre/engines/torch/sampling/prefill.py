"""Prompts before their first completion token: keys and values of each distinct one, and the logits that follow it.

Of a prompt that begins with what is known of earlier turns only the rest is run. Letters: P prompts of a group, C slots
of what is known, Q tokens of the rest, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cadre.engines.torch.base import vision
from cadre.engines.torch.base.loading import Loaded, projecting
from cadre.engines.torch.base.lora import segments
from cadre.engines.torch.sampling import continued_prompts
from cadre.engines.torch.sampling.attention_masks import mask_by_type
from cadre.engines.torch.sampling.continued_prompts import ContinuedPrompts, filled
from cadre.engines.torch.sampling.kv_cache import KeyValues, Layer
from cadre.engines.torch.sampling.turn_cache import Known, Part, Piece, TurnCache
from cadre.types import Image

# Padded tokens of a group, which bound what a forward takes; of those that are known, so many more.
PREFILL_TOKENS = 8192
KNOWN_TOKENS = 4 * PREFILL_TOKENS


class Prompt(NamedTuple):
    """A prompt by the policy that reads it, its ids, and the pictures that placeholders among these stand for."""

    policy: str
    ids: tuple[int, ...]
    images: tuple[Image, ...] = ()


@dataclass(frozen=True)
class Prefill:
    """Groups of prompts that went through the model together, and what came out.

    `caches` are the groups' keys and values, `lengths` their prompts' int64 [P], `logits` float32 [prompts, V] follow
    all of them; `number` counts a prompt through the groups in order, and `parts` has where each one's keys are.
    `shifts` int64 [prompts] is how far what follows each is from where its length would put it, or None for nowhere.
    """

    caches: list[KeyValues]
    lengths: list[Tensor]
    logits: Tensor
    number: dict[Prompt, int]
    parts: list[Part]
    shifts: Tensor | None = None


def prefill(loaded: Loaded, prompts: Iterable[Prompt], turns: TurnCache, share: bool) -> Prefill:
    """Run every distinct prompt once, as far as it is not known of earlier turns, and make it known to later ones.

    With `share` what is known is attended to apart, where the model can be run so.
    """
    distinct = set(prompts)
    known = {prompt: turns.find(prompt.policy, prompt.ids) for prompt in sorted(distinct)}
    fresh = _grouped(prompt for prompt in distinct if known[prompt] is None)
    going_on = {prompt: begins for prompt, begins in known.items() if begins is not None}
    continued = _grouped_by_rest(going_on)
    device = loaded.model.device
    shifts: list[Tensor] = []
    ran = [_run(loaded, group, shifts) for group in fresh]
    ran += [_continue(loaded, group, [going_on[prompt] for prompt in group], share) for group in continued]
    caches, logits = zip(*ran, strict=True)
    groups = [*fresh, *continued]
    parts = [part for group, cache in zip(groups, caches, strict=True) for part in _kept(turns, group, cache)]
    return Prefill(
        caches=list(caches),
        lengths=[torch.tensor([len(prompt.ids) for prompt in group], device=device) for group in groups],
        logits=torch.cat(logits),
        number={prompt: index for index, prompt in enumerate(prompt for group in groups for prompt in group)},
        parts=parts,
        shifts=torch.cat(shifts) if shifts else None,
    )


def _kept(turns: TurnCache, group: Sequence[Prompt], cache: KeyValues) -> list[Part]:
    """Where the keys of a group's prompts are, which later turns know from here on."""
    used = [(layer.keys[:, :, : layer.length], layer.values[:, :, : layer.length]) for layer in cache.layers]
    piece = Piece([keys for keys, _ in used], [values for _, values in used])
    parts = [Part(piece, row, len(prompt.ids)) for row, prompt in enumerate(group)]
    turns.add(piece, [(prompt.policy, prompt.ids, (part,)) for prompt, part in zip(group, parts, strict=True)])
    return parts


def _grouped(prompts: Iterable[Prompt]) -> list[list[Prompt]]:
    """Prompts of similar length in groups of at most `PREFILL_TOKENS` padded tokens, a group ordered by policy."""
    groups: list[list[Prompt]] = []
    for prompt in sorted(prompts, key=lambda prompt: (len(prompt.ids), prompt)):
        if groups and len(prompt.ids) * (len(groups[-1]) + 1) <= PREFILL_TOKENS:
            groups[-1].append(prompt)
        else:
            groups.append([prompt])
    return [sorted(group) for group in groups]


def _grouped_by_rest(known: dict[Prompt, Known]) -> list[list[Prompt]]:
    """Prompts with rests of similar length in groups of at most `PREFILL_TOKENS` padded tokens of these, and so many
    more of what is known."""
    groups: list[list[Prompt]] = []
    longest = 0
    for prompt in sorted(known, key=lambda prompt: (len(prompt.ids) - known[prompt].length, prompt)):
        rest, longest = len(prompt.ids) - known[prompt].length, max(longest, len(prompt.ids))
        count = len(groups[-1]) + 1 if groups else 0
        if groups and rest * count <= PREFILL_TOKENS and longest * count <= KNOWN_TOKENS:
            groups[-1].append(prompt)
        else:
            groups.append([prompt])
            longest = len(prompt.ids)
    return [sorted(group) for group in groups]


def _run(loaded: Loaded, prompts: Sequence[Prompt], shifts: list[Tensor]) -> tuple[KeyValues, Tensor]:
    """Keys and values of some prompts, and the logits [P, V] that follow their last token. Where positions do not go on
    from a prompt's length, `shifts` gets by how much they differ."""
    cache = KeyValues(loaded.model.config.get_text_config().num_hidden_layers)
    inputs: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
    if loaded.pictures is not None:
        seen = vision.inputs(loaded.model, loaded.pictures, [(prompt.ids, prompt.images) for prompt in prompts])
        inputs |= seen.tensors
        shifts.append(seen.shifts)
    # Padding is on the right: what follows a token cannot change it, so there is no mask to build.
    return cache, _logits(loaded, prompts, [0] * len(prompts), inputs)


def _continue(
    loaded: Loaded, prompts: Sequence[Prompt], known: Sequence[Known], share: bool
) -> tuple[KeyValues, Tensor]:
    """The same for prompts that begin with what is known."""
    starts, lengths = [begins.length for begins in known], [len(prompt.ids) for prompt in prompts]
    if not (share and continued_prompts.serves(loaded, max(lengths))):
        return _continue_masked(loaded, prompts, known)
    keys = ContinuedPrompts(loaded.model.config.num_hidden_layers, known, lengths)
    rest = max(length - start for length, start in zip(lengths, starts, strict=True))
    # Padding stands within the context, too.
    position = (torch.tensor(starts).unsqueeze(1) + torch.arange(rest)).clamp(max=max(lengths) - 1)
    with keys.reading(loaded.model) as inputs:
        logits = _logits(loaded, prompts, starts, {"position_ids": position, **inputs})
    return keys.cache, logits


def _continue_masked(loaded: Loaded, prompts: Sequence[Prompt], known: Sequence[Known]) -> tuple[KeyValues, Tensor]:
    """The same by the model's own forward with a mask of every pair, for any device and model."""
    device = loaded.model.device
    starts = torch.tensor([begins.length for begins in known], device=device)
    lengths = torch.tensor([len(prompt.ids) for prompt in prompts], device=device)
    before, rest = int(starts.max()), int((lengths - starts).max())
    cache = filled(loaded.model.config.num_hidden_layers, known, before + rest)
    for layer in cache.layers:
        layer.length = before
    position = starts.unsqueeze(1) + torch.arange(rest, device=device)
    slots = torch.arange(before, device=device).expand(len(prompts), before)
    # A slot beyond what is known of a prompt stands as if it came after all others.
    slots = torch.cat((slots.masked_fill(slots >= starts.unsqueeze(1), 1 << 40), position), dim=1)
    mask = mask_by_type(loaded.attention, position, slots, cache.layers[0].values.dtype)
    # Padding stands within the context, too, though nobody looks at it.
    within = position.clamp(max=int(lengths.max()) - 1)
    inputs = {"past_key_values": cache, "attention_mask": mask, "position_ids": within, "use_cache": True}
    logits = _logits(loaded, prompts, starts.tolist(), inputs)
    _close_gaps(cache, starts, before, int(lengths.max()))
    return cache, logits


def _logits(loaded: Loaded, prompts: Sequence[Prompt], starts: Sequence[int], inputs: dict[str, Any]) -> Tensor:
    """The logits that follow the prompts, of which the tokens from `starts` on are run."""
    model = loaded.model
    rests = [torch.tensor(prompt.ids[start:]) for prompt, start in zip(prompts, starts, strict=True)]
    last = torch.tensor([len(rest) - 1 for rest in rests], device=model.device)
    ids = torch.nn.utils.rnn.pad_sequence(rests, batch_first=True)
    every = torch.arange(len(prompts), device=model.device)
    policies = segments([prompt.policy for prompt in prompts])
    with projecting(model, every, last), loaded.adapters.rows(policies):
        output = model(**{"input_ids": ids.to(model.device), **inputs})
    logits: Tensor = output.logits[0].float()
    return logits


def _close_gaps(cache: KeyValues, starts: Tensor, before: int, longest: int) -> None:
    """Bring each prompt's slots, those known and from `before` on those that were run, together at the front."""
    slot = torch.arange(longest, device=starts.device)
    source = torch.where(slot < starts.unsqueeze(1), slot, slot - starts.unsqueeze(1) + before)
    source = source.clamp(max=cache.length - 1)[:, None, :, None]
    for layer in cache.layers:
        _take(layer, source)


def _take(layer: Layer, source: Tensor) -> None:
    _, heads, _, size = layer.keys.shape
    source = source.expand(-1, heads, -1, size)
    layer.keys, layer.values = layer.keys.gather(2, source), layer.values.gather(2, source)
    layer.length = layer.capacity = source.shape[2]
