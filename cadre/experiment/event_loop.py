"""Coroutines from functions that are none, wherever they are called from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(work: Coroutine[Any, Any, T], interrupt: Callable[[], object] = lambda: None) -> T:
    """What the coroutine returns. Where an event loop runs already (a notebook), the work gets a thread and a loop of
    its own, and the caller waits for it as for any other function; `interrupt` is then called on Ctrl-C, which the
    work itself cannot hear."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(asyncio.run, work)
        try:
            return future.result()
        except KeyboardInterrupt:
            interrupt()
            return future.result()
