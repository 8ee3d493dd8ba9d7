"""How much memory a device has, and how much of it sampling may take."""

from __future__ import annotations

import torch

from cadre.engines import host_memory

GIB = 1 << 30
# Sampling may take so much of what the whole device has beside the models and their training, and so much of what is
# free of it when a model has been loaded. The first decides unless others use much of the device, so that the same
# experiment gets the same on the same machine.
OF_ALL = {"cpu": 0.25, "cuda": 0.5}
OF_FREE = {"cpu": 0.5, "cuda": 0.75}
LEAST = GIB // 4


def for_sampling(device: torch.device, taken: int, sharing: int) -> int:
    """Bytes for keys, values and scores: a power of two, so that what else runs changes it as seldom as can be.

    `taken` are bytes of weights and of their training, of each of the `sharing` engines on the device.
    """
    total, free = total_and_free(device)
    of_all = OF_ALL[device.type] * (total / sharing - taken)
    of_free = OF_FREE[device.type] * free / sharing
    return power_of_two(max(LEAST, int(min(of_all, of_free))))


def power_of_two(number: int) -> int:
    """The largest power of two that is no larger."""
    return 1 << (number.bit_length() - 1)


def total_and_free(device: torch.device) -> tuple[int, int]:
    """Bytes of a device, and of these what nobody uses."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total, free
    total = host_memory.total()
    return total, min(total, host_memory.available() or total)
