"""Prompts before their first completion token: keys and values of each distinct one, and the logits that follow it.

Letters: P prompts of a group, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cadre.engines.torch.base.loading import Loaded, projecting
from cadre.engines.torch.base.lora import segments
from cadre.engines.torch.sampling.kv_cache import KeyValues

# Padded tokens of a group, which bound what a forward takes.
PREFILL_TOKENS = 8192

Prompt = tuple[str, tuple[int, ...]]  # the policy that reads it, and its ids


@dataclass(frozen=True)
class Prefill:
    """Groups of prompts that went through the model together, and what came out.

    `caches` are the groups' keys and values, `lengths` their prompts' int64 [P], `logits` float32 [prompts, V] follow
    all of them; `number` counts a prompt through the groups in order.
    """

    caches: list[KeyValues]
    lengths: list[Tensor]
    logits: Tensor
    number: dict[Prompt, int]


def prefill(loaded: Loaded, prompts: Iterable[Prompt]) -> Prefill:
    """Run every distinct prompt once."""
    groups = _grouped(set(prompts))
    device = loaded.model.device
    caches, logits = zip(*(_run(loaded, group) for group in groups), strict=True)
    return Prefill(
        caches=list(caches),
        lengths=[torch.tensor([len(ids) for _, ids in group], device=device) for group in groups],
        logits=torch.cat(logits),
        number={prompt: index for index, prompt in enumerate(prompt for group in groups for prompt in group)},
    )


def _grouped(prompts: Iterable[Prompt]) -> list[list[Prompt]]:
    """Prompts of similar length in groups of at most `PREFILL_TOKENS` padded tokens, a group ordered by policy."""
    groups: list[list[Prompt]] = []
    for prompt in sorted(prompts, key=lambda prompt: (len(prompt[1]), prompt)):
        if groups and len(prompt[1]) * (len(groups[-1]) + 1) <= PREFILL_TOKENS:
            groups[-1].append(prompt)
        else:
            groups.append([prompt])
    return [sorted(group) for group in groups]


def _run(loaded: Loaded, prompts: Sequence[Prompt]) -> tuple[KeyValues, Tensor]:
    """Keys and values of some prompts, and the logits [P, V] that follow their last token."""
    model = loaded.model
    last = torch.tensor([len(ids) - 1 for _, ids in prompts], device=model.device)
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for _, ids in prompts], batch_first=True)
    cache = KeyValues(model.config.num_hidden_layers)
    every = torch.arange(len(prompts), device=model.device)
    # Padding is on the right: what follows a token cannot change it, so there is no mask to build.
    policies = segments([policy for policy, _ in prompts])
    with projecting(model, every, last), loaded.adapters.rows(policies):
        output = model(input_ids=ids.to(model.device), past_key_values=cache, use_cache=True)
    return cache, output.logits[0].float()
