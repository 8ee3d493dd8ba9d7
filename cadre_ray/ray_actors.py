"""The connection to Ray, made once for a process, actors that are replaced when they die, and reserved GPUs.

Ray is imported once it is used.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from cadre.errors import CadreError, EngineError
from cadre.plugins import install_command

# Unless the user has set them. Actors do the run's own work, so they are no less urgent than the training process.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
# Deaths that one call may meet: then the call kills its actor, or its construction does.
MAX_DEATHS_PER_CALL = 5
# Seconds that the other ranks have to answer once one of them has failed.
RANK_GRACE_S = 5.0

log = logging.getLogger(__name__)


def ray_module() -> ModuleType:
    """Return the package `ray`. Raises EngineError if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise EngineError(
            f"cluster: Ray cannot be imported ({error}). Run {install_command('ray')}, or remove the section cluster."
        ) from None
    return ray


def connect(address: str | None) -> None:
    """Join the cluster at `address`, once a process.

    Without an address it is the one of a submitted job (RAY_ADDRESS), else a new one on this machine: never one that
    another user happens to have started here. Raises EngineError if the cluster cannot be reached.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if address and (Path.home() / ".ray" / "auth_token").exists():
        # `ray start --head` then asks for the token, and Ray reads this variable when it is imported.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    ray = ray_module()
    if ray.is_initialized():
        return
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address or "local", include_dashboard=None if address else False, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.AuthenticationError) as error:
        raise EngineError(
            f"cluster.address: got {address!r}, and Ray cannot be reached there ({error}); expected one that "
            "runs. Start one with `ray start --head`, or leave the address out to start one here. If it runs, it may "
            "ask for its token: set RAY_AUTH_MODE=token and copy ~/.ray/auth_token from its first machine."
        ) from None


def close() -> None:
    """Leave the cluster; one that was started here ends."""
    ray_module().shutdown()


def death_errors() -> tuple[type[Exception], ...]:
    """Return the errors that Ray raises for a dead actor.

    It died by itself, for want of memory, or with its machine, which takes along results that were not fetched.
    """
    exceptions = ray_module().exceptions
    return exceptions.RayActorError, exceptions.OutOfMemoryError, exceptions.NodeDiedError, exceptions.ObjectLostError


def unwrap_error(error: Any) -> BaseException:
    """Return the cause of an actor's error if it is one of ours, else the error with the actor's traceback.

    A cause on another machine gets that machine's address: a file that it misses may well be on this one.
    """
    cause = getattr(error, "cause", None)
    if not isinstance(cause, CadreError):
        return error
    # Ray raises a subclass of the cause, which has the address in its text alone.
    address = re.search(r"\bip=([^,)\s]+)", str(error))
    if address and address[1] != ray_module().util.get_node_ip_address():
        cause.args = (f"On {address[1]}, which reads models and files from its own disk: {cause}", *cause.args[1:])
    return cause


def _summary(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].partition(". ")[0]


class ActorDied(Exception):
    """The actor is dead, or of no more use; call its replacement."""


class SupervisedActor:
    """An actor of class `kind` that is replaced when it dies, at most `max_deaths` times. Lives until `close`.

    Each new actor gets a call of `begin` with `arguments`, as errors there can be raised as they are, and those of a
    constructor cannot. `recover` then brings it to the state of the dead one. Methods block and are thread-safe.
    `size` is the number of actors.
    """

    size = 1

    def __init__(self, kind: type, arguments: tuple[Any, ...], options: dict[str, Any], max_deaths: int) -> None:
        self.kind, self.arguments, self.options, self.max_deaths = kind, arguments, options, max_deaths
        self.recover: Callable[[Any], None] = lambda handle: None
        self.deaths = 0
        self._lock = threading.RLock()
        self.handle, self._started = self._create()

    def call(self, work: Callable[[Any], Any]) -> Any:
        """Return the result of the reference that `work` returns for the actor, repeated for its replacement."""
        count = 0
        while True:
            handle = self.handle
            try:
                self._get(self._started)
                return self.call_once(handle, work)
            except ActorDied as error:
                count = self.replace(handle, error, count)

    def call_once(self, handle: Any, work: Callable[[Any], Any]) -> Any:
        """Return the result from this actor alone. Raises ActorDied."""
        return self._get(work(handle))

    def call_and_store(self, work: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
        """Like `call` for two references: return the result of the first, and the second of each actor.

        The seconds can be passed on to others as long as this process lives: they are in the store of this machine.
        """
        stored: list[Any] = []

        def first(handle: Any) -> Any:
            reference, second = work(handle)
            stored.append(second)
            return reference

        count = 0
        while True:
            handle, result = self.handle, self.call(first)
            try:
                # Calls that met a death have left references before those of the last one.
                return result, [_to_local_store(second) for second in stored[-self.size :]]
            except death_errors() as error:
                count = self.replace(handle, error, count)

    def replace(self, dead: Any, error: Exception, count: int) -> int:
        """Create an actor in place of `dead`, unless another call did, and return how many deaths this call has met.

        `count` is how many it had met before. Raises EngineError after too many.
        """
        count += 1
        with self._lock:
            # Several calls meet one death; the first of them counts it and replaces the actor.
            self.deaths += self.handle is dead
            self._check_deaths(error, count)
            died: tuple[type[Exception], ...] = (ActorDied, *death_errors())
            fresh = dead
            while self.handle is dead:
                log.warning("A %s died and is replaced (%d): %s", self.kind.__name__, self.deaths, _summary(error))
                # It may only seem dead, if its machine is out of reach for a while.
                self._kill(fresh)
                fresh, started = self._create()
                try:
                    self._get(started)
                    self.recover(fresh)
                except died as next_error:
                    error, count = next_error, count + 1
                    self.deaths += 1
                    self._check_deaths(error, count)
                except ray_module().exceptions.RayTaskError as task_error:
                    raise unwrap_error(task_error) from None
                else:
                    # No call reaches the new one before it has the dead one's state.
                    self.handle, self._started = fresh, started
        return count

    def replace_stuck(self, stuck: Any) -> None:
        """Create an actor in place of one that does not answer, unless that was done.

        That is no death that counts: the work that blocked it is to blame.
        """
        with self._lock:
            if self.handle is stuck:
                log.warning("A %s does not answer and is replaced.", self.kind.__name__)
                self._kill(stuck)
                fresh, started = self._create()
                self._get(started)
                self.recover(fresh)
                self.handle, self._started = fresh, started

    def close(self) -> None:
        """End the actor, and free its reservation. May be called more than once, and when Ray has ended."""
        if ray_module().is_initialized():
            self._kill(self.handle)
            free_reservation(self.options)

    def _create(self) -> tuple[Any, Any]:
        handle = ray_module().remote(self.kind).options(**self.options).remote()
        return handle, handle.begin.remote(*self.arguments)

    def _kill(self, handle: Any) -> None:
        ray_module().kill(handle)

    def _get(self, reference: Any) -> Any:
        """Return the result. Raises ActorDied, or the error of the actor's own code."""
        ray = ray_module()
        try:
            return ray.get(reference)
        except death_errors() as error:
            raise ActorDied(_summary(error)) from None
        except ray.exceptions.RayTaskError as error:
            raise unwrap_error(error) from None

    def _check_deaths(self, error: Exception, count: int) -> None:
        if self.deaths > self.max_deaths:
            often, why = f"{self.deaths} times", f"Expected at most {self.max_deaths} (cluster.replaced)."
        elif count > MAX_DEATHS_PER_CALL:
            often, why = f"{count} times in a row", "What it is asked kills it, or how it begins."
        else:
            return
        raise EngineError(
            f"cluster: a {self.kind.__name__} died {often}, the last time by: {_summary(error)}. {why} See Ray's logs, "
            "and whether memory is left; --resume goes on from the last checkpoint."
        )


class SupervisedRanks(SupervisedActor):
    """The ranks of a learner group, an actor each, on any machines; `handle` is all of them.

    Calls go to every rank, and the first one's result counts. `rank_options` are each rank's. A rank that dies, or
    raises an error that is not ours, takes the group with it: the others wait for it in a collective operation that
    does not end, and Ray puts their replacements wherever there are resources.
    """

    def __init__(
        self, kind: type, arguments: tuple[Any, ...], rank_options: Sequence[Mapping[str, Any]], max_deaths: int
    ) -> None:
        self.rank_options, self.size = rank_options, len(rank_options)
        self._latest: tuple[Any, ...] = ()
        super().__init__(kind, arguments, {}, max_deaths)

    def call(self, work: Callable[[Any], Any]) -> Any:
        """Return the first rank's result of the reference that `work` returns, once all ranks have answered."""
        # Every rank has to get all calls in the same order.
        with self._lock:
            return super().call(work)

    def call_once(self, handle: Any, work: Callable[[Any], Any]) -> Any:
        """Return the result from these ranks alone. Raises ActorDied."""
        return self._get([work(rank) for rank in handle])

    def close(self) -> None:
        """End the ranks, and free their reservations. May be called more than once, and when Ray has ended."""
        if ray_module().is_initialized():
            self._kill(self._latest)
            for options in self.rank_options:
                free_reservation(options)

    def _create(self) -> tuple[Any, Any]:
        actor = ray_module().remote(self.kind)
        ranks = tuple(actor.options(**options).remote() for options in self.rank_options)
        self._latest = ranks
        # References, which Ray resolves before `begin` runs.
        rendezvous, nodes = ranks[0].rendezvous.remote(), [rank.node.remote() for rank in ranks]
        scratch = f"cadre-group-{secrets.token_hex(8)}"
        started = [
            rank.begin.remote(*self.arguments, scratch, number, rendezvous, *nodes) for number, rank in enumerate(ranks)
        ]
        return ranks, started

    def _kill(self, handle: Any) -> None:
        for rank in handle:
            super()._kill(rank)

    def _get(self, references: Any) -> Any:
        """Return the first result, once all are there. Raises ActorDied, or an error of ours that a rank raised."""
        ray = ray_module()
        waiting, failures = list(references), list[Any]()
        while waiting:
            timeout = RANK_GRACE_S if failures else None
            finished, waiting = ray.wait(waiting, num_returns=1, timeout=timeout, fetch_local=False)
            if not finished:
                raise ActorDied("a rank has failed and others do not answer")
            try:
                ray.get(finished[0])
            except (*death_errors(), ray.exceptions.RayTaskError) as error:
                failures.append(unwrap_error(error))
        if failures:
            raise next((error for error in failures if isinstance(error, CadreError)), ActorDied(str(failures[0])))
        return ray.get(references[0])


def _to_local_store(reference: Any) -> Any:
    """Return the reference to a copy in this machine's store: what is in another's is lost with that machine."""
    from ray.experimental import get_object_locations

    ray = ray_module()
    node, locations = ray.get_runtime_context().get_node_id(), get_object_locations([reference])
    return reference if node in locations[reference]["node_ids"] else ray.put(ray.get(reference))


def reserve(bundles: Sequence[dict[str, float]], strategy: str) -> list[dict[str, Any]]:
    """Reserve bundles of resources; return the options of an actor in each, once Ray has all of them."""
    ray = ray_module()
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group(list(bundles), strategy=strategy)
    ray.get(group.ready())
    strategies = (PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=n) for n in range(len(bundles)))
    return [{"scheduling_strategy": each} for each in strategies]


def free_reservation(options: Mapping[str, Any]) -> None:
    """Remove the placement group of actors with these options, if they are in one. May be called for each actor."""
    from ray.util.placement_group import remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = options.get("scheduling_strategy")
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        remove_placement_group(strategy.placement_group)
