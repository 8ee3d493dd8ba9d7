"""Run coroutines from synchronous code, and configure the threads of numerical libraries."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_coroutine(work: Coroutine[Any, Any, T], interrupt: Callable[[], object] = lambda: None) -> T:
    """Run the coroutine and return its result.

    If an event loop runs already (in a notebook), the work gets a thread and a loop of its own, and the caller waits
    for it as for any other function. `interrupt` is then called on Ctrl-C, which the work itself does not receive.
    """
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


def configure_threads() -> None:
    """Let threads of the numerical libraries spin for a moment before they sleep, unless the user has configured it.

    Threads that spin for long make a step several times slower as soon as anything else needs a core; threads that
    sleep at once take twice as long to wake as a small product takes. Has no effect once torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
