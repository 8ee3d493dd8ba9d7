"""Tensors on their way to a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on `device`, without waiting for work that the device has still to do.

    Only from pinned memory is a copy queued behind that work; any other one waits until the work is done.
    """
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
