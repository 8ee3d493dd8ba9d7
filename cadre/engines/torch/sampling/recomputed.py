"""Decoding without keys and values: every step runs the whole sequences again, by the model's own plain forward.

The form for models that no cached form is right for: recurrent and state-space layers, attention in chunks, positions
that a cache loses. Sequences of one length are run together, so that nothing is ever padded. A completion of T tokens
costs T forwards of its whole sequence instead of T of one token.

Letters: B sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cadre.engines.torch.base.loading import Loaded, projecting
from cadre.engines.torch.base.lora import segments

# Tokens of one forward; a longer sequence is run alone.
TOKENS = 8192


class Recomputed:
    """The sequences of one decoding batch, with the policy of each. Lives as long as the batch."""

    def __init__(self, loaded: Loaded, prompts: Sequence[Sequence[int]], policies: Sequence[str]) -> None:
        self._loaded = loaded
        self._ids = [list(prompt) for prompt in prompts]
        self._policies = list(policies)

    def logits(self) -> Tensor:
        """The logits float32 [B, V] that follow the sequences as they are."""
        rows: dict[int, Tensor] = {}
        for part in self._parts():
            rows |= zip(part, self._run(part), strict=True)
        return torch.stack([rows[row] for row in range(len(self._ids))])

    def step(self, token: Tensor, position: Tensor) -> Tensor:
        """The next logits [B, V] once each sequence has one more token int64 [B]."""
        for ids, added in zip(self._ids, token.tolist(), strict=True):
            ids.append(added)
        return self.logits()

    def select(self, kept: Tensor) -> None:
        """Keep these sequences, in this order."""
        rows = kept.tolist()
        self._ids = [self._ids[row] for row in rows]
        self._policies = [self._policies[row] for row in rows]

    def _parts(self) -> Iterator[list[int]]:
        """Sequences of equal length, in order, at most `TOKENS` tokens at a time."""
        by_length: dict[int, list[int]] = {}
        for row, ids in enumerate(self._ids):
            by_length.setdefault(len(ids), []).append(row)
        for length, rows in sorted(by_length.items()):
            count = max(1, TOKENS // length)
            for start in range(0, len(rows), count):
                yield rows[start : start + count]

    def _run(self, part: Sequence[int]) -> Tensor:
        model = self._loaded.model
        ids = torch.tensor([self._ids[row] for row in part], device=model.device)
        every = torch.arange(len(part), device=model.device)
        last = torch.full_like(every, ids.shape[1] - 1)
        policies = segments([self._policies[row] for row in part])
        with projecting(model, every, last), self._loaded.adapters.rows(policies):
            logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
        return logits.float()
