"""Run coroutines from synchronous code, and configure the threads of numerical libraries."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
# PyTorch's number of threads in the thread that entered `one_thread`.
_threads: ContextVar[int] = ContextVar("threads")


def run_coroutine(work: Coroutine[Any, Any, T], interrupt: Callable[[], object] = lambda: None) -> T:
    """Run the coroutine and return its result.

    If an event loop runs already (in a notebook), the work gets a thread and a loop of its own, and the caller waits
    for it as for any other function. `interrupt` is then called on Ctrl-C, which the work itself does not receive.
    PyTorch computes with one thread beside the loop, as engines compute in theirs (`cadre.engines.torch.compute`).
    """

    def run() -> T:
        with one_thread():
            return asyncio.run(work)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(run)
        try:
            return future.result()
        except KeyboardInterrupt:
            interrupt()
            return future.result()


@contextmanager
def one_thread() -> Iterator[None]:
    """Make PyTorch, if it is loaded, compute with one thread for this thread; its number is as before afterwards."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before, token = torch.get_num_threads(), _threads.set(count_threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _threads.reset(token)


def count_threads() -> int:
    """Return with how many threads PyTorch may compute: this thread's number, or that before `one_thread`."""
    import torch

    return _threads.get(None) or torch.get_num_threads()


def configure_threads() -> None:
    """Let threads of the numerical libraries spin for a moment before they sleep, unless the user has configured it.

    Threads that spin for long make a step several times slower as soon as anything else needs a core; threads that
    sleep at once take twice as long to wake as a small product takes. Has no effect once torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
