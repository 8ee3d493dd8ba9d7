"""Operations on tensors: sums by index that are equal to the last bit at every run, and copies to a GPU.

Where an index occurs more than once, its values are added up. For `tensor[index]` torch does that on a GPU in a fixed
order and on a CPU in the order of its threads; for `index_add` it is the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


def take(source: Tensor, index: Tensor) -> Tensor:
    """Return `source[index]`, [M, ...] of [N, ...] by int64 [M]; gradients of equal indices are added in order."""
    return source.index_select(0, index) if source.device.type == "cpu" else source[index]


def add_at(target: Tensor, index: Tensor, values: Tensor) -> None:
    """Add `values` [M, ...] to the rows `index` int64 [M] of `target` [N, ...] in place, equal indices in order."""
    if target.device.type == "cpu":
        target.index_add_(0, index, values)
    else:
        target.index_put_((index,), values, accumulate=True)


def sum_at(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Return [size] with the sum of the `values` [M] of each index int64 [M], 0 where there are none."""
    total = torch.zeros(size, dtype=values.dtype, device=values.device)
    add_at(total, index, values)
    return total


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on `device`, without waiting for work that the device has still to do. Only from pinned
    memory is a copy queued behind that work; any other one waits until the work is done."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def read(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Return the numbers of tensors of any shape, read from a GPU by one transfer. It waits for all work that the GPU
    has still to do. Everything that an update reads from a GPU is read here."""
    if not tensors:
        return []
    numbers = torch.cat([tensor.detach().flatten().double() for tensor in tensors]).tolist()
    ends = list(accumulate(tensor.numel() for tensor in tensors))
    return [numbers[start:end] for start, end in zip([0, *ends], ends, strict=False)]
