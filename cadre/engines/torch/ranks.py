"""Communication among the ranks of a learner group: sums of counts and gradients, and weights divided by FSDP2.

Every rank makes every call, in the same order. A single learner is a group of one, in which nothing is sent. Weights
are divided layer by layer: gathered for a forward, and dropped after it. Adapters and value heads stay whole on every
rank: they are hundredths of the model, and a rank without data of a policy has no gradient of them to contribute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """This process's rank, the size of its group, and the device of the tensors that it sends."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over the ranks, entry by entry, in float64."""
        return self._reduce(numbers, distributed.ReduceOp.SUM)

    def max(self, numbers: Sequence[float]) -> list[float]:
        """Return the largest values of the ranks, entry by entry."""
        return self._reduce(numbers, distributed.ReduceOp.MAX)

    def sum_gradients(self, weights: Iterable[nn.Parameter]) -> None:
        """Give every rank the sum of the gradients of weights that each rank holds whole. A weight with a gradient on
        some rank has one on all of them afterwards; one without stays without."""
        if self.size == 1:
            return
        weights = list(weights)
        has_gradient = self.max([float(weight.grad is not None) for weight in weights])
        weights = [weight for weight, on_any_rank in zip(weights, has_gradient, strict=True) if on_any_rank]
        if not weights:
            return
        flat = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])
        distributed.all_reduce(flat)
        parts = torch.split(flat, [weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight)

    def wait(self) -> None:
        """Return once every rank has made this call."""
        self.sum([0.0])

    def _reduce(self, numbers: Sequence[float], operation: distributed.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1 or not numbers:
            return list(numbers)
        tensor: Tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.all_reduce(tensor, op=operation)
        reduced: list[float] = tensor.tolist()
        return reduced


def shard(root: nn.Module, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    """Divide every layer's weights among the ranks of the mesh, then all others; they go to its kind of device.

    Layers compute in `dtype`, to which the weights are rounded before they are gathered; gradients are summed, not
    averaged, in float32.
    """
    narrower = dtype if dtype != torch.float32 else None
    precision = MixedPrecisionPolicy(param_dtype=narrower, reduce_dtype=torch.float32, cast_forward_inputs=False)
    layers = [module for module in root.modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*layers, root):
        sharded: FSDPModule = fully_shard(module, mesh=mesh, mp_policy=precision)
        sharded.set_gradient_divide_factor(1.0)
        # Without a division before the reduction, which not every back-end has.
        sharded.set_force_sum_reduction_for_comms(True)


def gather_weights(model: Any, is_receiver: bool) -> dict[str, Tensor]:
    """Return the model's weights whole and on the CPU on a receiver; all ranks send theirs, one weight at a time."""
    gathered = {}
    for name, weight in model.named_parameters():
        full: Tensor = weight.full_tensor() if isinstance(weight, DTensor) else weight
        if is_receiver:
            gathered[name] = full.detach().cpu()
    return gathered
