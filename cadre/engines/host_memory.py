"""How much memory the machine has for its processors, as its control groups limit it. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

NO_LIMIT = 1 << 62


def total() -> int:
    """Bytes that this process and those beside it may take."""
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), cgroup_limit())


def cgroup_limit(own: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
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


def swap() -> int:
    """Bytes that Linux may move memory to; 0 on other systems."""
    return _meminfo("SwapTotal") or 0


def available(path: Path = Path("/proc/meminfo")) -> int | None:
    """What Linux could give without swapping; None on other systems."""
    return _meminfo("MemAvailable", path)


def _meminfo(name: str, path: Path = Path("/proc/meminfo")) -> int | None:
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), None)
