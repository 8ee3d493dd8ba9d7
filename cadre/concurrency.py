"""Run coroutines from synchronous code, and configure the threads of numerical libraries."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")
# PyTorch's number of threads in the thread that entered `one_thread`.
_threads: ContextVar[int] = ContextVar("threads")

# The event loop of each process by its id, as a forked one may not use that of its parent; held by the thread that
# runs it.
_runners: dict[int, asyncio.Runner] = {}
_is_running = threading.Lock()


def run_coroutine(work: Coroutine[Any, Any, T], interrupt: Callable[[], object] = lambda: None) -> T:
    """Run the coroutine and return its result.

    All work of a process runs in one event loop, so that an environment's module may hold clients and semaphores of
    asyncio. Work that begins while the loop runs, in another thread or within it, gets a loop of its own. PyTorch
    computes with one thread beside the loop, as engines compute in theirs (`cadre.engines.torch.compute`).

    If an event loop runs already in this thread (in a notebook), the work gets a thread, and the caller waits for it as
    for any other function. `interrupt` is then called on Ctrl-C, which the work itself does not receive.
    """

    def run() -> T:
        with one_thread():
            return _run_in_process_loop(work)

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
    threads, token = torch.get_num_threads(), _threads.set(count_threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _threads.reset(token)


def count_threads() -> int:
    """Return with how many threads PyTorch may compute: this thread's number, or that before `one_thread`."""
    import torch

    return _threads.get(None) or torch.get_num_threads()


def _run_in_process_loop(work: Coroutine[Any, Any, T]) -> T:
    if not _is_running.acquire(blocking=False):
        return asyncio.run(work)
    try:
        if os.getpid() not in _runners:
            _runners[os.getpid()] = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            atexit.register(_close_loop)
        runner = _runners[os.getpid()]
        earlier, has_failed = asyncio.all_tasks(runner.get_loop()), True
        try:
            result = runner.run(work, context=copy_context())
            has_failed = False
            return result
        finally:
            # What a client began in the background lives on, unless the work was broken off with all that it began.
            begun = asyncio.all_tasks(runner.get_loop()) - earlier
            for task in begun if has_failed else ():
                task.cancel()
            if ending := [task for task in begun if task.cancelling()]:
                runner.run(asyncio.wait(ending))
    finally:
        _is_running.release()


def _close_loop() -> None:
    if os.getpid() in _runners and _is_running.acquire(blocking=False):
        with suppress(RuntimeError):  # since Python 3.12 no thread may be started here to wait for idle ones
            _runners[os.getpid()].close()


def configure_threads() -> None:
    """Let threads of the numerical libraries spin for a moment before they sleep, unless the user has configured it.

    Threads that spin for long make a step several times slower as soon as anything else needs a core; threads that
    sleep at once take twice as long to wake as a small product takes. Has no effect once torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
