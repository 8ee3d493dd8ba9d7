"""The processor's memory between two steps: kept by the process instead of being given back and asked for again."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

# Of glibc's malloc.h, by its manual (mallopt(3)); the largest threshold that it takes.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST = 32 << 20


def keep_freed() -> bool:
    """Let what this process frees serve its next allocations; False where the C library cannot be told so.

    An update allocates the same gigabytes each time. glibc gives large blocks back to the system at once, which has to
    clear every page anew: on two cores that was a tenth to a fifth of an update. Blocks beyond 32 MB still go back, as
    freed ones of that size would leave holes that the next, a few bytes longer with its alignment, does not fit into.
    """
    tell = _libc("mallopt")
    if tell is None:
        return False
    settings = {_M_TRIM_THRESHOLD: -1, _M_MMAP_THRESHOLD: _LARGEST, _M_ARENA_MAX: 1}
    return all([tell(name, value) for name, value in settings.items()])


def give_back() -> None:
    """Give what is free back to the system."""
    trim = _libc("malloc_trim")
    if trim is not None:
        trim(0)


def _libc(name: str) -> Callable[..., int] | None:
    """A function of the C library, where this one has it."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
