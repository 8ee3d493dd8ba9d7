"""Which versions of adapters an engine holds, and which of them it may drop.

Every version has a name and a number of its own: vLLM finds adapters, and what it keeps of prompts, by these, and
would go on with the old weights under a name that it has met before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# The ranks that vLLM knows; an adapter takes the next one that is not less than its own.
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True)
class Adapter:
    """One version of a policy's adapter: `Adapter("planner", 3, 7, "planner-v3")`, the 7th of its engine."""

    policy: str
    version: int
    number: int
    name: str


def slots(trained: int, max_staleness: int) -> int:
    """How many versions an engine may hold: of each trained policy what is played, what its oldest sequences still
    play, and the next."""
    return trained * (max_staleness + 2)


def rank_of(ranks: Iterable[int]) -> int:
    """The rank that the engine is made for, so that it takes all of these."""
    return min(known for known in RANKS if known >= max(ranks))


class AdapterVersions:
    """The versions that one engine holds, at most `room` of them. Owned by its sampler, used in its thread alone."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.held: list[Adapter] = []
        self._current: dict[str, Adapter] = {}
        self._users: Counter[int] = Counter()
        self._made = 0
        self._names: Counter[str] = Counter()

    def fresh(self, policy: str, version: int) -> Adapter:
        """A version that is neither held nor played yet. One that comes a second time, as after going back to a
        checkpoint, gets a name of its own too."""
        self._made += 1
        name = f"{policy}-v{version}"
        self._names[name] += 1
        again = self._names[name]
        return Adapter(policy, version, self._made, name if again == 1 else f"{name}-{again}")

    def play(self, adapter: Adapter) -> None:
        """The engine holds it: what its policy draws from here on is drawn with it."""
        self.held.append(adapter)
        self._current[adapter.policy] = adapter

    def unused(self) -> list[Adapter]:
        """Those held that have been followed by another, and with which nothing is drawn any more."""
        current = set(self._current.values())
        return [adapter for adapter in self.held if adapter not in current and not self._users[adapter.number]]

    def drop(self, adapter: Adapter) -> None:
        """The engine holds it no more."""
        self.held.remove(adapter)

    @property
    def full(self) -> bool:
        """Whether there is no room for another one, even without those that are unused."""
        return len(self.held) - len(self.unused()) >= self.room

    @contextmanager
    def using(self, policy: str) -> Iterator[Adapter | None]:
        """The policy's present version, which is kept meanwhile; None for a policy that has no adapter, or none yet:
        a fresh one changes nothing, so that the plain base says the same."""
        adapter = self._current.get(policy)
        if adapter is None:
            yield None
            return
        self._users[adapter.number] += 1
        try:
            yield adapter
        finally:
            self._users[adapter.number] -= 1
