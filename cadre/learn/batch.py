"""How the sequences of an update become minibatches and micro-batches of padded tensors.

A minibatch is what one optimiser step averages over; a micro-batch is what one forward holds in memory. Padding is on
the right: under a causal model what follows a token cannot change it, so no attention mask is needed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cadre.learn.pack import Trie
from cadre.sections import LossConfig
from cadre.types import Datum


@dataclass(frozen=True)
class Batch:
    """B sequences padded on the right to T tokens.

    `token_ids` int64 [B, T]; `mask` boolean [B, T], True where a token is trained on; `logprobs` (the sampler's), `old`
    (those at the start of the update), `advantages` and `reference` float32 [B, T]; `temperature` float32 [B];
    `policies` names the policy of each row. `targets` are the N values that heads are trained on, of all rows.
    Where there is a `trie`, it is what is run.
    """

    token_ids: Tensor
    mask: Tensor
    logprobs: Tensor
    old: Tensor
    advantages: Tensor
    reference: Tensor
    temperature: Tensor
    policies: tuple[str, ...]
    targets: ValueTargets
    trie: Trie | None = None


@dataclass(frozen=True)
class ValueTargets:
    """Where N values are read, `rows` and `columns` int64 [N], by which `heads` (policy, name), and what they should
    be: `returns` float32 [N], with `values` float32 [N] from before the update."""

    rows: Tensor
    columns: Tensor
    returns: Tensor
    values: Tensor
    heads: tuple[tuple[str, str], ...]


def sequence_weights(data: Sequence[Datum], config: LossConfig) -> dict[int, float]:
    """What a token of each sequence weighs in the loss of a minibatch, by `id` of the datum.

    `token_mean`: one over all trained tokens (DAPO, arXiv 2503.14476). `sequence_mean`: one over the sequences and the
    sequence's own length (GRPO, 2402.03300). `sequence_sum`: one over the sequences and a fixed divisor (Dr. GRPO,
    2503.20783, whose divisor is the longest completion allowed; MAGRPO's is 1). Sequences that only a critic reads do
    not count.
    """
    if config.aggregate == "token_mean":
        return dict.fromkeys(map(id, data), 1.0 / max(1, trained_tokens(data)))
    count = max(1, sum(any(datum.mask) for datum in data))
    lengths = (max(1, sum(datum.mask)) if config.aggregate == "sequence_mean" else config.divisor for datum in data)
    return {id(datum): 1.0 / (count * length) for datum, length in zip(data, lengths, strict=True)}


def trained_tokens(data: Sequence[Datum]) -> int:
    """How many tokens of the sequences are trained on."""
    return sum(sum(datum.mask) for datum in data)


def has_gradient(datum: Datum, config: LossConfig) -> bool:
    """Whether a sequence moves the weights at all: a zero advantage does so only through an entropy bonus or a KL."""
    if datum.targets is not None or (any(datum.mask) and (config.entropy > 0.0 or config.kl > 0.0)):
        return True
    return any(kept and advantage != 0.0 for kept, advantage in zip(datum.mask, datum.advantages, strict=True))


def minibatches(data: Sequence[Datum], count: int, order: random.Random) -> list[list[Datum]]:
    """`count` parts of near equal size in an order drawn from `order`; fewer where there are fewer sequences."""
    shuffled = list(data)
    order.shuffle(shuffled)
    count = min(count, len(shuffled))
    return [shuffled[index::count] for index in range(count)]


def microbatches(data: Sequence[Datum], tokens: int) -> list[list[Datum]]:
    """Groups of similar length whose padded size is at most `tokens`; a longer sequence gets a group of its own."""
    groups: list[list[Datum]] = []
    for datum in sorted(data, key=lambda datum: -len(datum.token_ids)):
        longest = len(groups[-1][0].token_ids) if groups else 0
        if groups and longest * (len(groups[-1]) + 1) <= tokens:
            groups[-1].append(datum)
        else:
            groups.append([datum])
    return groups


def collate(
    data: Sequence[Datum],
    device: torch.device,
    old: Mapping[int, Sequence[float]] | None = None,
    trie: Trie | None = None,
) -> Batch:
    """The sequences as one padded batch. Padding has token id 0 and is outside the mask.

    `old` has, by `id` of the datum, the log-probabilities at the start of the update; else they are the sampler's.
    `trie` is that of the sequences, in their order.
    """
    before = old or {}

    def padded(rows: Sequence[Sequence], dtype: torch.dtype) -> Tensor:
        tensors = [torch.tensor(row, dtype=dtype) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(device)

    return Batch(
        token_ids=padded([datum.token_ids for datum in data], torch.int64),
        mask=padded([datum.mask for datum in data], torch.bool),
        logprobs=padded([datum.logprobs for datum in data], torch.float32),
        old=padded([before.get(id(datum), datum.logprobs) for datum in data], torch.float32),
        advantages=padded([datum.advantages for datum in data], torch.float32),
        reference=padded([datum.reference or datum.logprobs for datum in data], torch.float32),
        temperature=torch.tensor([datum.temperature for datum in data], dtype=torch.float32, device=device),
        policies=tuple(datum.policy for datum in data),
        targets=_targets(data, device),
        trie=trie,
    )


def _targets(data: Sequence[Datum], device: torch.device) -> ValueTargets:
    places = [
        (row, column, wanted, value, (datum.policy, datum.targets.head))
        for row, datum in enumerate(data)
        if datum.targets is not None
        for column, wanted, value in zip(datum.targets.at, datum.targets.returns, datum.targets.values, strict=True)
    ]
    rows, columns, returns, values, heads = zip(*places, strict=True) if places else ((), (), (), (), ())
    return ValueTargets(
        rows=torch.tensor(rows, dtype=torch.int64, device=device),
        columns=torch.tensor(columns, dtype=torch.int64, device=device),
        returns=torch.tensor(returns, dtype=torch.float32, device=device),
        values=torch.tensor(values, dtype=torch.float32, device=device),
        heads=tuple(heads),
    )
