"""Gathering and adding by index such that the same numbers give the same sums to the last bit.

Where an index occurs more than once, its values are added up. torch's way for `tensor[index]` does that on a GPU in a
fixed order and on a CPU in whatever order threads come; for `index_add` it is the other way round.
"""

from __future__ import annotations

import torch
from torch import Tensor


def take(source: Tensor, index: Tensor) -> Tensor:
    """`source[index]`, [M, ...] of [N, ...] by int64 [M]; the gradient of equal indices is added up in their order."""
    return source.index_select(0, index) if source.device.type == "cpu" else source[index]


def add_at(target: Tensor, index: Tensor, values: Tensor) -> None:
    """Add `values` [M, ...] to the rows `index` int64 [M] of `target` [N, ...] in place, equal indices in order."""
    if target.device.type == "cpu":
        target.index_add_(0, index, values)
    else:
        target.index_put_((index,), values, accumulate=True)


def sum_at(index: Tensor, values: Tensor, size: int) -> Tensor:
    """[size] with the sum of the `values` [M] of each index int64 [M], 0 where there are none."""
    total = torch.zeros(size, dtype=values.dtype, device=values.device)
    add_at(total, index, values)
    return total
