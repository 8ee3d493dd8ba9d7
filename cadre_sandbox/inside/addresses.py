"""Keeps the addresses of objects the same from run to run, as far as that can be had.

Sets of a program's own objects are ordered by address, and a program may print one or draw from it. Without address
space randomization the warm parents of a machine lay out their memory alike.
"""

import contextlib
import gc
import os
import sys
from itertools import repeat, starmap

from . import kernel

ADDR_NO_RANDOMIZE, ASK = 0x0040000, 0xFFFFFFFF


def fix_layout() -> None:
    """Start this process anew without address space randomization; some containers forbid it, and then it stays.

    What a program could do with known addresses it can do without: it may run native code of its own in its process.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        before = kernel.checked("personality", kernel.unsigned_long(ASK))
        if not before & ADDR_NO_RANDOMIZE:
            kernel.checked("personality", kernel.unsigned_long(before | ADDR_NO_RANDOMIZE))
            os.execv(sys.executable, sys.orig_argv)


STEP, LARGEST = 16, 512  # CPython's own allocator has a free list for each multiple of 16 bytes, up to 512
EMPTY_BYTES = sys.getsizeof(b"")
CLASS_BYTES = sys.getsizeof(type("Class", (), {}))  # larger: these come from malloc
FRESH = 24  # so many blocks one beside the other are a free list that has no holes left
CLASSES = 1000
# How many blocks of each size the warm parent may have freed since, in whatever order.
SPARE = {size: 64 if size <= 128 else 4 for size in range(STEP, LARGEST + 1, STEP)}
SPARE |= {size: 4 for size in range(CLASS_BYTES - STEP, CLASS_BYTES + 3 * STEP, STEP)}

_fill: list[object] = []


def fill_holes() -> None:
    """In the warm parent, once: take what is free here and there, so that what comes next lies side by side."""
    gc.collect()  # empties the interpreter's lists of spare objects
    for size in range(STEP, LARGEST + 1, STEP):
        beside, last = 0, 0
        while beside < FRESH:
            (block,) = blocks_of(size, 1)
            beside = beside + 1 if id(block) == last + size else 0
            last = id(block)
            _fill.append(block)
    _fill.append(blocks_of(CLASS_BYTES, CLASSES))


def take_spare() -> None:
    """In each child: take what the warm parent has freed since, so that the program's objects come to lie alike."""
    gc.enable()
    gc.collect()
    for size, count in SPARE.items():
        _fill.append(blocks_of(size, count))


def blocks_of(size: int, count: int) -> list[object]:
    """Small objects of so many bytes each."""
    if size == 16:
        return list(starmap(object, repeat((), count)))
    if size == 32:
        return list(map(complex, repeat(1.0, count)))
    return list(map(bytes, repeat(size - EMPTY_BYTES, count)))
