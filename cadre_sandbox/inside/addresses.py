"""Keep the addresses of objects the same from run to run, as far as possible.

Sets of a program's own objects are ordered by address, and a program may print one or draw from it. Without address
space randomization the warm parents of a machine lay out their memory alike.
"""

import contextlib
import gc
import os
import sys
from itertools import repeat, starmap

from . import kernel

ADDR_NO_RANDOMIZE, QUERY = 0x0040000, 0xFFFFFFFF


def fix_layout() -> None:
    """Execute this process anew without address space randomization; does nothing where a container forbids it.

    Known addresses give a program no new power: it may run native code in its own process anyway.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        persona = kernel.checked("personality", kernel.unsigned_long(QUERY))
        # The flag takes effect at the next exec, and survives it: the new process finds it set and goes on.
        if not persona & ADDR_NO_RANDOMIZE:
            kernel.checked("personality", kernel.unsigned_long(persona | ADDR_NO_RANDOMIZE))
            os.execv(sys.executable, sys.orig_argv)


STEP, LARGEST = 16, 512  # CPython's own allocator has a free list for each multiple of 16 bytes, up to 512
EMPTY_BYTES = sys.getsizeof(b"")
# A class is larger than LARGEST, so it comes from malloc.
CLASS_BYTES = sys.getsizeof(type("Class", (), {}))
CLASSES = 1000
# After so many adjacent blocks a free list has no holes left.
ADJACENT_BLOCKS = 24
# How many blocks of each size the warm parent may have freed since, in whatever order.
SPARE = {size: 64 if size <= 128 else 4 for size in range(STEP, LARGEST + 1, STEP)}
SPARE |= {size: 4 for size in range(CLASS_BYTES - STEP, CLASS_BYTES + 3 * STEP, STEP)}

_fill: list[object] = []


def fill_holes() -> None:
    """Fill the holes of the warm parent's memory once, so that the objects of its children lie side by side."""
    gc.collect()  # empties the interpreter's lists of spare objects
    for size in range(STEP, LARGEST + 1, STEP):
        adjacent, previous = 0, 0
        while adjacent < ADJACENT_BLOCKS:
            (block,) = allocate_blocks(size, 1)
            adjacent = adjacent + 1 if id(block) == previous + size else 0
            previous = id(block)
            _fill.append(block)
    _fill.append(allocate_blocks(CLASS_BYTES, CLASSES))


def take_spare() -> None:
    """Allocate what the warm parent has freed since, so that all programs' objects lie alike; each child does it."""
    gc.enable()
    gc.collect()
    for size, count in SPARE.items():
        _fill.append(allocate_blocks(size, count))


def allocate_blocks(size: int, count: int) -> list[object]:
    """Return `count` objects of `size` bytes each."""
    # bytes objects have more than 32 bytes. Everything runs in C: a Python loop would allocate objects of its own.
    if size == 16:
        return list(starmap(object, repeat((), count)))
    if size == 32:
        return list(map(complex, repeat(1.0, count)))
    return list(map(bytes, repeat(size - EMPTY_BYTES, count)))
