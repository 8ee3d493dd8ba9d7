"""The command line: parses, calls, prints.

Ctrl-C, SIGTERM and SIGHUP end a command without a traceback, whatever it is doing; a training handles them itself.
Only the standard library is imported here, so that the import of everything else can be interrupted as well.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

__all__ = ["main"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Run the command line; the first Ctrl-C, SIGTERM or SIGHUP ends it in order."""
    with stoppable() as handler:
        from cadre.cli.app import main as run

        handler.raise_ignored()
        run()


class StopHandler:
    """Remember the first signal, and raise KeyboardInterrupt."""

    number = 0

    def __call__(self, number: int, _: Any) -> None:
        self.number = self.number or number
        raise KeyboardInterrupt

    def raise_ignored(self) -> None:
        """Raise KeyboardInterrupt if a signal has come already: an import may have ignored the first exception, as
        compiled modules do where they ask for an attribute."""
        if self.number:
            raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[StopHandler]:
    """End the process with 128 + the signal's number at the first signal within this context. It does not wait for
    threads. Outside of the main thread, where no handler can be set, the context does nothing."""
    handler = StopHandler()
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    # nohup ignores SIGHUP; that stays so.
    handled = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in handled}
    try:
        yield handler
    except BaseException as error:
        # An import that is interrupted may turn the KeyboardInterrupt into an error of its own.
        if not (handler.number or isinstance(error, KeyboardInterrupt)):
            raise
        _end_process(handler.number or signal.SIGINT)
    finally:
        for number, former in previous.items():
            signal.signal(number, former)


def _end_process(number: int) -> NoReturn:
    for signal_number in SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    # Clean up what outlives the process, but only for modules that this command has imported.
    if (pool := sys.modules.get("cadre_sandbox.pool")) is not None:
        pool.close_all()
    if (host := sys.modules.get("cadre.engines.host")) is not None:
        host.remove_all_scratch()
    with suppress(OSError, ValueError):  # the terminal may be gone
        sys.stdout.flush()
        sys.stderr.write("Stopped.\n")
        sys.stderr.flush()
    # No exit handlers: they would wait for threads that are in the middle of their work.
    os._exit(128 + number)
