"""One actor, and the one that takes its place when it dies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from cadre.cluster.connection import ray_module
from cadre.errors import CadreError, EngineError

log = logging.getLogger(__name__)


def as_raised(error: Any) -> BaseException:
    """What an actor's own code raised, of what Ray makes of it: ours as it was, others with the actor's traceback."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, CadreError) else error


class Member:
    """An actor of class `kind`; lives until `close`. Replaced at most `most` times.

    It is told to `begin` with `arguments`, each time that it is made. `recover` brings a new one to where the dead one
    was. Methods that ask wait, and may be called from any thread.
    """

    def __init__(self, kind: type, arguments: tuple[Any, ...], options: dict[str, Any], most: int) -> None:
        self.kind, self.arguments, self.options, self.most = kind, arguments, options, most
        self.recover: Callable[[Any], None] = lambda handle: None
        self.deaths = 0
        self._lock = threading.RLock()
        self.handle, self._begun = self._made()

    def ask(self, work: Callable[[Any], Any]) -> Any:
        """What comes of the references that `work` returns for the actor; asked again of the one that replaces it."""
        ray = ray_module()
        while True:
            handle = self.handle
            try:
                ray.get(self._begun)
                return ray.get(work(handle))
            except ray.exceptions.RayActorError as error:
                self.replace(handle, error)
            except ray.exceptions.RayTaskError as error:
                raise as_raised(error) from None

    def kept(self, work: Callable[[Any], Any]) -> tuple[Any, Any]:
        """The same for two references: what comes of the first, and the second as it is, for others to be given."""
        references: list[Any] = []

        def first(handle: Any) -> Any:
            references[:] = work(handle)
            return references[0]

        return self.ask(first), references[1]

    def replace(self, dead: Any, error: Exception) -> None:
        """Make another in place of `dead`, unless that was done. Raises EngineError where too many have died."""
        ray = ray_module()
        with self._lock:
            while self.handle is dead:
                self.deaths += 1
                self._check(error)
                log.warning("A %s died and is replaced (%d): %s", self.kind.__name__, self.deaths, _short(error))
                fresh, begun = self._made()
                try:
                    ray.get(begun)
                    self.recover(fresh)
                except ray.exceptions.RayActorError as again:
                    error = again
                except ray.exceptions.RayTaskError as failed:
                    raise as_raised(failed) from None
                else:
                    # Nobody asks the new one before it is where the dead one was.
                    self.handle, self._begun = fresh, begun

    def close(self) -> None:
        """End the actor. May be called more than once, and when Ray has ended."""
        ray = ray_module()
        if ray.is_initialized():
            ray.kill(self.handle)

    def _made(self) -> tuple[Any, Any]:
        handle = ray_module().remote(self.kind).options(**self.options).remote()
        return handle, handle.begin.remote(*self.arguments)

    def _check(self, error: Exception) -> None:
        if self.deaths > self.most:
            raise EngineError(
                f"cluster: a {self.kind.__name__} died {self.deaths} times, the last time by: {_short(error)}. "
                f"Expected at most {self.most} (cluster.replaced). See Ray's logs, and whether memory is left."
            )


def _short(error: Exception) -> str:
    """The first sentence of what Ray says of it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].partition(". ")[0]
