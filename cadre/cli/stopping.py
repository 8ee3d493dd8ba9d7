"""Ctrl-C, SIGTERM and SIGHUP end a command without a traceback, whatever it is at. A training hears them itself.

Nothing but the standard library is imported here: what is imported meanwhile is a part of what can be stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """The handler: remembers the first signal, and raises KeyboardInterrupt."""

    number = 0

    def __call__(self, number: int, _: Any) -> None:
        self.number = self.number or number
        raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[None]:
    """Within it the first signal ends the process with 128 + its number, and does not wait for threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stop = Stop()
    heard = [signal.SIGINT, signal.SIGTERM]
    heard += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []  # nohup ignores it
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    except BaseException as error:
        # What is interrupted in the middle of an import may say so with an error of its own.
        if not (stop.number or isinstance(error, KeyboardInterrupt)):
            raise
        _end(stop.number or signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int) -> None:
    for again in NUMBERS:
        signal.signal(again, signal.SIG_IGN)
    pool = sys.modules.get("cadre_sandbox.pool")
    if pool is not None:
        pool.close_all()
    host = sys.modules.get("cadre.engines.host")
    if host is not None:
        host.remove_all_scratch()
    with suppress(OSError, ValueError):  # a terminal that hung up takes nothing more
        sys.stdout.flush()
        sys.stderr.write("Stopped.\n")
        sys.stderr.flush()
    os._exit(128 + number)
