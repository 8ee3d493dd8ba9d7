"""A guess of how long a step takes: the weights, how often each enters a product, and how fast this machine is at that.

Attention, environments and everything else but products with weights are left out.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache

import torch

WIDTH = 2048
# Products of more vectors take in proportion as long.
MOST_VECTORS = 1024
LONG_ENOUGH = 0.1  # seconds of measuring


@dataclass(frozen=True)
class Products:
    """How fast a device multiplies vectors with a matrix, measured when it is first asked."""

    device: torch.device
    dtype: torch.dtype

    def seconds(self, vectors: int, weights: int) -> float:
        """Of a product of so many vectors with matrices of so many weights in all."""
        few = min(vectors, MOST_VECTORS)
        return measured(self.device, self.dtype, few) * weights * vectors / few


@cache
def measured(device: torch.device, dtype: torch.dtype, vectors: int) -> float:
    """Seconds that a weight takes in a product with so many vectors."""
    matrix = torch.ones(WIDTH, WIDTH, device=device, dtype=dtype)
    inputs = torch.ones(vectors, WIDTH, device=device, dtype=dtype)
    _timed(inputs, matrix, 1)
    once = _timed(inputs, matrix, 1)
    count = max(1, math.ceil(LONG_ENOUGH / max(once, 1e-6)))
    return _timed(inputs, matrix, count) / count / WIDTH**2


def _timed(inputs: torch.Tensor, matrix: torch.Tensor, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        product = inputs @ matrix
    # Waits for a GPU.
    product[0, 0].item()
    return time.perf_counter() - began


def sampling_seconds(products: Products, weights: int, sequences: int, most: int, tokens: int) -> float:
    """Of so many completions of `tokens` each, at most `most` at once; every token of a batch is a product."""
    batches = math.ceil(sequences / most)
    return batches * tokens * products.seconds(min(sequences, most), weights)


def learning_seconds(products: Products, weights: int, tokens: int, passes: int) -> float:
    """Of so many tokens; `passes` are the products of each weight with each token, forward and backward."""
    return passes * products.seconds(tokens, weights)
