"""How much memory a device has, and how much of it sampling may take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

GIB = 1 << 30
# Sampling may take so much of what the whole device has beside the models and their training, and so much of what is
# free of it when a model has been loaded. The first decides unless others use much of the device, so that the same
# experiment gets the same on the same machine.
OF_ALL = {"cpu": 0.25, "cuda": 0.5}
OF_FREE = {"cpu": 0.5, "cuda": 0.75}
LEAST = GIB // 4
NO_LIMIT = 1 << 62


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
    total = min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _cgroup_limit())
    return total, min(total, _available() or total)


def _cgroup_limit(own: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """The least that the process's control group and those around it may take, a container's say; more than any machine
    has where there is no limit."""
    texts = (path.read_text().strip() for path in _cgroup_limits(own, mount) if path.is_file())
    return min((int(text) for text in texts if text.isdecimal()), default=NO_LIMIT)


def _cgroup_limits(own: Path, mount: Path) -> Iterator[Path]:
    """The files that limits stand in, from the process's own group up to the root: of version 2, and of version 1."""
    for line in own.read_text().splitlines() if own.is_file() else []:
        _, controllers, path = line.split(":", 2)
        group = Path(path.lstrip("/"))
        for around in (group, *group.parents):
            if not controllers:
                yield mount / around / "memory.max"
            elif "memory" in controllers.split(","):
                yield mount / "memory" / around / "memory.limit_in_bytes"


def _available(path: Path = Path("/proc/meminfo")) -> int | None:
    """What Linux could give without swapping; None on other systems."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
