"""The sequences of one forward as padded tensors, and which sequences make up an optimiser step.

Padding is on the right: under a causal model what follows a token cannot change it, so no attention mask is needed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cadre.learn.prefix_tree import PrefixTree
from cadre.settings import LossConfig
from cadre.types import TrainingSequence


@dataclass(frozen=True)
class Batch:
    """B sequences padded on the right to T tokens.

    `token_ids` int64 [B, T]; `mask` boolean [B, T], True where a token is trained on; `rollout_logprobs` (the
    sampler's), `old` (those at the start of the update), `advantages` and `reference` float32 [B, T]; `temperature`
    float32 [B]; `policies` and `roles` name the policy and the role of each sequence, `lengths` are their trained
    tokens. `targets` are the N values that heads are trained on, of all sequences. Where there is a `tree`, it is what
    is run. `vision` is what a vision-language model takes beside or in place of the ids.
    """

    token_ids: Tensor
    mask: Tensor
    rollout_logprobs: Tensor
    old: Tensor
    advantages: Tensor
    reference: Tensor
    temperature: Tensor
    policies: tuple[str, ...]
    lengths: tuple[int, ...]
    targets: ValueTargets
    tree: PrefixTree | None = None
    roles: tuple[str, ...] = ()
    vision: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ValueTargets:
    """Where N values are read, `sequences` and `positions` int64 [N], by which `heads` (policy, name), and what they
    should be: `returns` float32 [N], with `values` float32 [N] from before the update."""

    sequences: Tensor
    positions: Tensor
    returns: Tensor
    values: Tensor
    heads: tuple[tuple[str, str], ...]


def has_gradient(datum: TrainingSequence, config: LossConfig) -> bool:
    """Whether a sequence moves the weights at all: a zero advantage does so only through an entropy bonus or a KL."""
    if datum.targets is not None or (any(datum.mask) and (config.entropy > 0.0 or config.kl > 0.0)):
        return True
    return any(kept and advantage != 0.0 for kept, advantage in zip(datum.mask, datum.advantages, strict=True))


def minibatches(data: Sequence[TrainingSequence], count: int, order: random.Random) -> list[list[TrainingSequence]]:
    """What each optimiser step averages over: `count` parts of near equal size in an order drawn from `order`.

    Fewer where there are fewer sequences.
    """
    shuffled = list(data)
    order.shuffle(shuffled)
    count = min(count, len(shuffled))
    return [shuffled[index::count] for index in range(count)]


def collate(data: Sequence[TrainingSequence], device: torch.device, tree: PrefixTree | None = None) -> Batch:
    """The sequences as one padded batch. Padding has token id 0 and is outside the mask.

    `tree` is that of the sequences, in their order.
    """

    def padded(sequences: Sequence[Sequence], dtype: torch.dtype) -> Tensor:
        tensors = [torch.tensor(sequence, dtype=dtype) for sequence in sequences]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(device)

    return Batch(
        token_ids=padded([datum.token_ids for datum in data], torch.int64),
        mask=padded([datum.mask for datum in data], torch.bool),
        rollout_logprobs=padded([datum.logprobs for datum in data], torch.float32),
        old=padded([datum.old or datum.logprobs for datum in data], torch.float32),
        advantages=padded([datum.advantages for datum in data], torch.float32),
        reference=padded([datum.reference or datum.logprobs for datum in data], torch.float32),
        temperature=torch.tensor([datum.temperature for datum in data], dtype=torch.float32, device=device),
        policies=tuple(datum.policy for datum in data),
        lengths=tuple(sum(datum.mask) for datum in data),
        targets=_targets(data, device),
        tree=tree,
        roles=tuple(datum.role for datum in data),
    )


def _targets(data: Sequence[TrainingSequence], device: torch.device) -> ValueTargets:
    entries = [
        (number, position, wanted, value, (datum.policy, datum.targets.head))
        for number, datum in enumerate(data)
        if datum.targets is not None
        for position, wanted, value in zip(datum.targets.at, datum.targets.returns, datum.targets.values, strict=True)
    ]
    sequences, positions, returns, values, heads = zip(*entries, strict=True) if entries else ((), (), (), (), ())
    return ValueTargets(
        sequences=torch.tensor(sequences, dtype=torch.int64, device=device),
        positions=torch.tensor(positions, dtype=torch.int64, device=device),
        returns=torch.tensor(returns, dtype=torch.float32, device=device),
        values=torch.tensor(values, dtype=torch.float32, device=device),
        heads=tuple(heads),
    )
