"""Keys for randomness: every draw is keyed by its purpose, never by its time.

`key(seed, step, task, node, role)` is a 63-bit integer; `fold(key, k)` is that of the k-th completion. A sampler
makes one uniform number of the completion's key and the token's position, so samples do not depend on the batch.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

MASK = (1 << 64) - 1


def key(*parts: str | int) -> int:
    """Return a 63-bit key of the parts, the same on every machine. `key("a", "b")` differs from `key("ab")`."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def fold(base: int, index: int) -> int:
    """Return the key of member `index` of the family `base`: one round of SplitMix64 (Steele et al. 2014), 63 bits."""
    mixed = (base + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return (mixed ^ (mixed >> 31)) >> 1


def generator(*parts: str | int) -> random.Random:
    """Return a Python generator seeded by the key of the parts."""
    return random.Random(key(*parts))


def in_epochs(size: int, count: int, step: int, seed: int, name: str, period: int = 1) -> list[int]:
    """Return the `count` of `size` indices that a step uses: epochs, each in an order keyed by seed and name, in which
    blocks of `period` indices stay together."""
    blocks = size // period
    positions = (divmod(position, period) for position in range(step * count, (step + 1) * count))
    return [_order(blocks, seed, name, n // blocks)[n % blocks] * period + offset for n, offset in positions]


@lru_cache(maxsize=2)
def _order(size: int, seed: int, name: str, epoch: int) -> list[int]:
    return generator(seed, name, epoch).sample(range(size), size)
