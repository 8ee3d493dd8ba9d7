"""What the ranks of a learner group tell each other: counts, sums, and the gradients of weights that all of them hold.

Every rank makes every call, in the same order. A learner alone is a group of one, in which nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """This rank's number in its group, how many ranks there are, and the device that what they send lies on."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Sums over the ranks, entry by entry, in float64."""
        return self._over_ranks(numbers, distributed.ReduceOp.SUM)

    def highest(self, numbers: Sequence[float]) -> list[float]:
        """The largest of the ranks, entry by entry."""
        return self._over_ranks(numbers, distributed.ReduceOp.MAX)

    def add_gradients(self, weights: Iterable[nn.Parameter]) -> None:
        """Give every rank the sum of the gradients of weights that each rank holds whole.

        A weight that has a gradient on some rank has one on all of them afterwards; one that has none stays without.
        """
        if self.size == 1:
            return
        weights = list(weights)
        moved = self.highest([float(weight.grad is not None) for weight in weights])
        weights = [weight for weight, any_rank in zip(weights, moved, strict=True) if any_rank]
        if not weights:
            return
        flat = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])
        distributed.all_reduce(flat)
        parts = torch.split(flat, [weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight)

    def meet(self) -> None:
        """Return once every rank has come here."""
        self.total([0.0])

    def _over_ranks(self, numbers: Sequence[float], how: distributed.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1 or not numbers:
            return list(numbers)
        sent: Tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.all_reduce(sent, op=how)
        summed: list[float] = sent.tolist()
        return summed
