"""One actor, and the one that takes its place when it dies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from cadre.cluster.connection import deaths, ray_module
from cadre.errors import CadreError, EngineError

log = logging.getLogger(__name__)

# Deaths that one question meets: it kills whoever is asked, or how an actor begins does.
IN_A_ROW = 5


class Died(Exception):
    """What was asked is no more, or of no more use: ask what replaces it."""


def as_raised(error: Any) -> BaseException:
    """What an actor's own code raised, of what Ray makes of it: ours as it was, others with the actor's traceback."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, CadreError) else error


class Member:
    """An actor of class `kind`; lives until `close`. Replaced at most `most` times.

    It is told to `begin` with `arguments`, each time that it is made. `recover` brings a new one to where the dead one
    was. Methods that ask wait, and may be called from any thread. `size` is how many actors it is.
    """

    size = 1

    def __init__(self, kind: type, arguments: tuple[Any, ...], options: dict[str, Any], most: int) -> None:
        self.kind, self.arguments, self.options, self.most = kind, arguments, options, most
        self.recover: Callable[[Any], None] = lambda handle: None
        self.deaths = 0
        self._lock = threading.RLock()
        self.handle, self._begun = self._made()

    def ask(self, work: Callable[[Any], Any]) -> Any:
        """What comes of the reference that `work` returns for the actor; asked again of the one that replaces it."""
        met = 0
        while True:
            handle = self.handle
            try:
                self._got(self._begun)
                return self.answer(handle, work)
            except Died as died:
                met = self.replace(handle, died, met)

    def answer(self, handle: Any, work: Callable[[Any], Any]) -> Any:
        """What comes of it, asked of this one alone. Raises Died."""
        return self._got(work(handle))

    def kept(self, work: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
        """The same for two references: what comes of the first, and the second of each actor for others to be given, as
        long as this process lives: it is in the store of this machine."""
        seconds: list[Any] = []

        def first(handle: Any) -> Any:
            reference, second = work(handle)
            seconds.append(second)
            return reference

        met = 0
        while True:
            handle, told = self.handle, self.ask(first)
            try:
                return told, [_here(second) for second in seconds[-self.size :]]
            except deaths() as error:
                met = self.replace(handle, error, met)

    def replace(self, dead: Any, error: Exception, before: int) -> int:
        """Make another in place of `dead`, unless that was done, for a question that met as many deaths `before`; how
        many it has met now. Raises EngineError where too many have died."""
        met = before + 1
        with self._lock:
            self.deaths += self.handle is dead
            self._check(error, met)
            died: tuple[type[Exception], ...] = (Died, *deaths())
            fresh = dead
            while self.handle is dead:
                log.warning("A %s died and is replaced (%d): %s", self.kind.__name__, self.deaths, _short(error))
                # It may only seem dead: where its machine is out of reach for a while, say.
                self._end(fresh)
                fresh, begun = self._made()
                try:
                    self._got(begun)
                    self.recover(fresh)
                except died as again:
                    error, met = again, met + 1
                    self.deaths += 1
                    self._check(error, met)
                except ray_module().exceptions.RayTaskError as failed:
                    raise as_raised(failed) from None
                else:
                    # Nobody asks the new one before it is where the dead one was.
                    self.handle, self._begun = fresh, begun
        return met

    def renew(self, stuck: Any) -> None:
        """Make another in place of one that is `stuck`, unless that was done. That is no death that counts: what it
        was asked for is what blocked it."""
        with self._lock:
            if self.handle is stuck:
                log.warning("A %s does not answer and is replaced.", self.kind.__name__)
                self._end(stuck)
                fresh, begun = self._made()
                self._got(begun)
                self.recover(fresh)
                self.handle, self._begun = fresh, begun

    def close(self) -> None:
        """End the actor, and what is reserved for it. May be called more than once, and when Ray has ended."""
        if ray_module().is_initialized():
            self._end(self.handle)
            give_back(self.options)

    def _made(self) -> tuple[Any, Any]:
        handle = ray_module().remote(self.kind).options(**self.options).remote()
        return handle, handle.begin.remote(*self.arguments)

    def _end(self, handle: Any) -> None:
        ray_module().kill(handle)

    def _got(self, reference: Any) -> Any:
        """What comes of it. Raises Died, or what the actor's own code raised."""
        ray = ray_module()
        try:
            return ray.get(reference)
        except deaths() as error:
            raise Died(_short(error)) from None
        except ray.exceptions.RayTaskError as error:
            raise as_raised(error) from None

    def _check(self, error: Exception, met: int) -> None:
        if self.deaths > self.most:
            often, why = f"{self.deaths} times", f"Expected at most {self.most} (cluster.replaced)."
        elif met > IN_A_ROW:
            often, why = f"{met} times in a row", "What it is asked kills it, or how it begins."
        else:
            return
        raise EngineError(
            f"cluster: a {self.kind.__name__} died {often}, the last time by: {_short(error)}. {why} See Ray's logs, "
            "and whether memory is left; --resume goes on from the last checkpoint."
        )


def _here(reference: Any) -> Any:
    """The same in this machine's store: what is in another's is lost with that machine."""
    from ray.experimental import get_object_locations

    ray = ray_module()
    node, places = ray.get_runtime_context().get_node_id(), get_object_locations([reference])
    return reference if node in places[reference]["node_ids"] else ray.put(ray.get(reference))


def give_back(options: Mapping[str, Any]) -> None:
    """Remove the placement group that actors of these options are in, if they are in one. May be called for each."""
    from ray.util.placement_group import remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = options.get("scheduling_strategy")
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        remove_placement_group(strategy.placement_group)


def _short(error: Exception) -> str:
    """The first sentence of what Ray says of it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].partition(". ")[0]
