"""Versions of LoRA adapters that an engine holds: their names, their slots, and the files that vLLM reads them from.

Every version has a name and a number of its own: vLLM identifies adapters, and the prefixes that it caches under them,
by these, and would keep using the old weights under a name that it has seen before.
"""

from __future__ import annotations

import shutil
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cadre.engines import host
from cadre.engines.torch.storage import weights_folder, write_adapter
from cadre.settings import LoraConfig
from cadre.team import Weights

# The ranks that vLLM supports; an adapter takes the next one that is not less than its own.
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True)
class Adapter:
    """One version of a policy's adapter: `Adapter("planner", 3, 7, "planner-v3")`, the 7th of its engine."""

    policy: str
    version: int
    number: int
    name: str


def count_slots(trained: int, max_staleness: int) -> int:
    """Return how many versions an engine may hold: of each trained policy the current one, those that its oldest
    sequences still use, and the next."""
    return trained * (max_staleness + 2)


def supported_rank(ranks: Iterable[int]) -> int:
    """Return the least rank that vLLM supports and that all of these fit into."""
    return min(rank for rank in RANKS if rank >= max(ranks))


class AdapterVersions:
    """The versions that one engine holds, at most `slots` of them. Owned by its sampler, used in its thread alone."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.loaded: list[Adapter] = []
        self._current: dict[str, Adapter] = {}
        self._users: Counter[int] = Counter()
        self._last_number = 0
        self._name_counts: Counter[str] = Counter()

    def create(self, policy: str, version: int) -> Adapter:
        """Return a new version, not loaded yet. A repeated one, as after a return to a checkpoint, gets a new name."""
        self._last_number += 1
        name = f"{policy}-v{version}"
        self._name_counts[name] += 1
        count = self._name_counts[name]
        return Adapter(policy, version, self._last_number, name if count == 1 else f"{name}-{count}")

    def activate(self, adapter: Adapter) -> None:
        """Note that the engine holds the version: its policy samples with it from now on."""
        self.loaded.append(adapter)
        self._current[adapter.policy] = adapter

    def unused(self) -> list[Adapter]:
        """Return the loaded versions that a later one has replaced and that no sequence uses."""
        current = set(self._current.values())
        return [adapter for adapter in self.loaded if adapter not in current and not self._users[adapter.number]]

    def remove(self, adapter: Adapter) -> None:
        """Note that the engine holds the version no more."""
        self.loaded.remove(adapter)

    @property
    def is_full(self) -> bool:
        """True if no slot would be free, even without the unused versions."""
        return len(self.loaded) - len(self.unused()) >= self.slots

    @contextmanager
    def use(self, policy: str) -> Iterator[Adapter | None]:
        """Keep the policy's current version loaded within the block. Yields None for a policy without an adapter, or
        with none yet: a fresh one changes nothing, so the plain base samples the same."""
        adapter = self._current.get(policy)
        if adapter is None:
            yield None
            return
        self._users[adapter.number] += 1
        try:
            yield adapter
        finally:
            self._users[adapter.number] -= 1


class AdapterFiles:
    """The folders, in memory, that vLLM reads adapters of the base model `source` from. They are removed by `close`, at
    the latest when the process ends."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._root = host.make_scratch("adapters", host.shared_folder())
        self._finalizer = weakref.finalize(self, host.remove_scratch, self._root)

    def write(self, adapter: Adapter, weights: Weights, config: LoraConfig) -> Path:
        """Return a folder with this version: a new one for tensors, else the one that the weights are in. Raises
        EngineError if the weights are neither."""
        if weights.tensors is None:
            return weights_folder(weights)
        write_adapter(weights.tensors, config, self._source, self._root / adapter.name)
        return self._root / adapter.name

    def remove(self, adapter: Adapter) -> None:
        """Remove the files of a version, if they were written here."""
        shutil.rmtree(self._root / adapter.name, ignore_errors=True)

    def close(self) -> None:
        """Remove all files. May be called more than once."""
        self._finalizer()
