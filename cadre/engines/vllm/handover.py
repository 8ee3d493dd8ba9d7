"""How weights reach an engine that samples: the order of steps, each of which has gone wrong without the one before.

Generation stands still while an adapter is added or weights change: with sequences under way engines have served one
adapter's request with another's weights. What was read of prompts is forgotten afterwards, as it is the old weights'.
A sleeping engine takes its weights' memory first, then what is sent, then memory for keys and values.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cadre.engines.vllm.adapters import Adapter, AdapterVersions
from cadre.engines.vllm.backend import Backend, Call, Pending


class Handover:
    """The gate of one engine: calls go in together, weights while nothing is computed. Lives as long as the engine,
    in its event loop. `dropped` is told of adapters whose files are read no more."""

    def __init__(self, backend: Backend, adapters: AdapterVersions, dropped: Callable[[Adapter], None]) -> None:
        self._backend, self._adapters, self._dropped = backend, adapters, dropped
        self._gate = asyncio.Lock()
        self._left = asyncio.Event()
        self._asleep: list[str] = []
        self._under_way = 0

    async def enter(self, calls: list[Call]) -> list[Pending]:
        """Give all calls to the engine before it begins with any, so that its batches follow from the calls alone."""
        self._under_way += len(calls)
        async with self._gate:
            await self._wake("weights", "kv_cache")
            async with self._paused():
                return [await self._backend.add(call) for call in calls]

    def left(self, count: int) -> None:
        """So many calls have ended: the versions that they were drawn with may be unused now."""
        self._under_way -= count
        self._left.set()

    async def adapter(self, adapter: Adapter, folder: Path) -> None:
        """Play the adapter in this folder from now on. Waits until old versions leave room."""
        async with self._gate:
            while self._adapters.full:
                self._left.clear()
                await self._left.wait()
            await self._wake("weights")
            async with self._paused():
                await self._drop_unused()
                await self._backend.add_adapter(adapter, folder)
                self._adapters.play(adapter)
                await self._drop_unused()
                # What was read under an adapter is found by its name alone. It is forgotten all the same where that
                # disturbs nobody, so that what is computed anew does not depend on how long the engine has run.
                if not self._under_way:
                    await self._backend.forget_prompts()
            await self._wake("kv_cache")

    async def weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Put weights in place of the model's own; sequences under way go on with them."""
        async with self._gate:
            await self._wake("weights")
            async with self._paused():
                await self._backend.send(weights, version)
                await self._backend.forget_prompts()
            await self._wake("kv_cache")

    async def sleep(self) -> None:
        """Give the card's memory back until something is asked for again."""
        async with self._gate:
            if not self._asleep:
                await self._backend.sleep()
                self._asleep = ["weights", "kv_cache"]

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        await self._backend.pause()
        try:
            yield
        finally:
            # An engine that sleeps goes on once it has all its memory.
            if not self._asleep:
                await self._backend.resume()

    async def _drop_unused(self) -> None:
        for adapter in self._adapters.unused():
            await self._backend.remove_adapter(adapter)
            self._adapters.drop(adapter)
            self._dropped(adapter)

    async def _wake(self, *parts: str) -> None:
        """Take the memory of these parts again, where it was given back."""
        for part in parts:
            if part in self._asleep:
                await self._backend.wake(part)
                self._asleep.remove(part)
                if not self._asleep:
                    await self._backend.resume()
