"""The endpoint's server: a thread and an event loop of its own, on the loopback interface alone.

Were it in the loop that trains, a program that calls from there would wait for itself. Needs uvicorn and starlette (the
extra `programs`).
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, TypeVar

from cadre.errors import EngineError
from cadre.programs import loopback
from cadre.programs.sessions import Sessions

T = TypeVar("T")


class Server:
    """Serves `sessions` at `url` from its making to `close`. Raises EngineError where the port is taken, or what it is
    made of is not installed."""

    def __init__(self, port: int = 0) -> None:
        try:
            import uvicorn

            from cadre.programs.app import application
            from cadre.programs.http_limits import connection_limit, protocol
        except ImportError as error:
            raise EngineError(
                f"The endpoint for programs needs {error.name}, which is not installed; expected the extra `programs`. "
                "Run: pip install cadre-rl[programs]."
            ) from None
        self.sessions, self.loop = Sessions(), asyncio.new_event_loop()
        self._socket = _listening(port)
        self.url = f"http://{loopback.HOST}:{self._socket.getsockname()[1]}"
        settings = uvicorn.Config(
            application(self.sessions),
            http=protocol(connection_limit()),
            ws="none",
            log_level="critical",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=75,
        )
        self._uvicorn = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._run, name="cadre-endpoint", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Stop to listen, break off what is held, and end the thread."""
        self._uvicorn.should_exit = self._uvicorn.force_exit = True
        self._thread.join(timeout=10)
        self._socket.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._uvicorn.serve(sockets=[self._socket]))
        finally:
            self.loop.close()


def _listening(port: int) -> socket.socket:
    try:
        return loopback.listening(port)
    except OSError as error:
        raise EngineError(
            f"The endpoint cannot listen on {loopback.HOST}:{port}: {error.strerror}; expected a free port. "
            "Name another."
        ) from None


@lru_cache
def shared() -> Server:
    """The one server of this process, made when it is first asked for."""
    return Server()
