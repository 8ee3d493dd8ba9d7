"""Memory of a device: how much of it sampling may take, how requests are split into batches, and what glibc keeps.

The split into batches follows from the requests, their order and a number of bytes alone, so that equal work makes
equal batches.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from cadre.engines import host
from cadre.engines.torch.request_batcher import GenerationRequest

GIB = 1 << 30
# Sampling gets these fractions of what the whole device has beside models and their training, and of what is free when
# a model has been loaded. The first decides unless others use much of the device, so that the same experiment gets the
# same memory on the same machine.
TOTAL_FRACTION = {"cpu": 0.25, "cuda": 0.5}
FREE_FRACTION = {"cpu": 0.5, "cuda": 0.75}
MIN_SAMPLING = GIB // 4
# For each score of a sequence's next token: the logits twice in float32, their exponentials, and the cumulative sums of
# those in float64.
SCORE_BYTES = 3 * 4 + 8
# Constants of glibc's malloc.h (mallopt(3)), and the largest threshold that it accepts.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MAX_MMAP_THRESHOLD = 32 << 20


def total_and_free(device: torch.device) -> tuple[int, int]:
    """Return the bytes of a device, and how many of them are free."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total, free
    total = host.total_memory()
    return total, min(total, host.read_meminfo("MemAvailable") or total)


def free_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that tensors of this process may take, with those that torch holds and does not use."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def choose_sampling_memory(device: torch.device, reserved: int, engines: int, size: int = 0) -> int:
    """Return the bytes that keys, values and scores of one batch may take, a power of two.

    `reserved` are the bytes of weights and their training, of each of the `engines` on the device. Rounding to a power
    of two hides small changes in what else runs on the machine. `size` is that of an empty device that is not here.
    """
    total, free = (size, size) if size else total_and_free(device)
    by_total = TOTAL_FRACTION[device.type] * (total / engines - reserved)
    by_free = FREE_FRACTION[device.type] * free / engines
    return floor_power_of_two(max(MIN_SAMPLING, int(min(by_total, by_free))))


def floor_power_of_two(number: int) -> int:
    """Return the largest power of two that is at most `number`."""
    return 1 << (number.bit_length() - 1)


@dataclass(frozen=True)
class SequenceMemory:
    """Bytes of one sequence: `slot` for each token's keys and values over all layers, `scores` for its next token."""

    slot: int
    scores: int

    @classmethod
    def from_config(cls, config: Any, dtype: torch.dtype) -> Self:
        """Return the sizes of a model by its transformers configuration, decoding in `dtype`."""

        def read(name: str) -> int | None:
            try:
                value = getattr(config, name, None)
            except RuntimeError:  # transformers has no single number if layers differ; take the largest
                value = [getattr(layer, name) for layer in config.per_layer_config]
            return max(value) if isinstance(value, list | tuple) else value

        # Models without attention name no heads; one token's states are as wide as keys of all heads would be.
        all_heads: int = read("num_attention_heads") or 1
        heads: int = read("num_key_value_heads") or all_heads
        head_size: int = read("head_dim") or config.hidden_size // all_heads
        slot = 2 * heads * head_size * config.num_hidden_layers * dtype.itemsize
        return cls(slot, config.vocab_size * SCORE_BYTES)


def split_batches(
    requests: Sequence[GenerationRequest], memory: SequenceMemory, limit: int
) -> list[list[GenerationRequest]]:
    """Split requests, in order, into batches of at most `limit` bytes; a larger request gets a batch of its own."""
    batches: list[list[GenerationRequest]] = []
    sequences = longest = 0
    for request in requests:
        length = len(request.prompt_ids) + request.limit
        sequences, longest = sequences + request.count, max(longest, length)
        if batches and sequences * (longest * memory.slot + memory.scores) <= limit:
            batches[-1].append(request)
        else:
            batches.append([request])
            sequences, longest = request.count, length
    return batches


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the process's next allocations; False if the C library cannot do that.

    An update allocates the same gigabytes each time. glibc returns large blocks to the system at once, which then has
    to clear every page again: on two cores that was a tenth to a fifth of an update. Blocks above 32 MB are still
    returned, as freed ones of that size leave holes that the next, a few bytes longer by its alignment, does not fit.
    """
    set_option = _libc_function("mallopt")
    if set_option is None:
        return False
    options = {_M_TRIM_THRESHOLD: -1, _M_MMAP_THRESHOLD: _MAX_MMAP_THRESHOLD, _M_ARENA_MAX: 1}
    return all([set_option(name, value) for name, value in options.items()])


def release_freed_memory() -> None:
    """Return memory that is free now to the system."""
    if trim := _libc_function("malloc_trim"):
        trim(0)


def _libc_function(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
