"""A model's weights divided among the ranks of a group: gathered layer by layer for a forward, and dropped after it.

Adapters and value heads stay whole on every rank: they are hundredths of the model, and a rank in whose data a policy
does not occur has no gradient of them to take part with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from cadre.engines.torch.base.lora import Adapters
from cadre.engines.torch.learning.forward import Scorer


def shard(root: Scorer, mesh: DeviceMesh, dtype: torch.dtype) -> None:
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
        # Without a division before it, which not every back-end has.
        sharded.set_force_sum_reduction_for_comms(True)


def move(adapters: Adapters, device: torch.device) -> None:
    """Bring all adapters to a device, where their layers compute."""
    for policy in adapters.pairs:
        for weight in adapters.parameters(policy).values():
            weight.data = weight.data.to(device)


def gathered(model: Any, wanted: bool) -> dict[str, Tensor]:
    """The model's weights whole and on the CPU, where they are `wanted`; all ranks send theirs, a weight at a time."""
    whole = {}
    for name, weight in model.named_parameters():
        full: Tensor = weight.full_tensor() if isinstance(weight, DTensor) else weight
        if wanted:
            whole[name] = full.detach().cpu()
    return whole
