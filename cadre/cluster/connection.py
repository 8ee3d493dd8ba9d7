"""The connection to Ray: made once, when the first team is built that needs it."""

from __future__ import annotations

import os
from types import ModuleType

from cadre.errors import EngineError

# Unless the user has set them. Actors do the run's own work, so they are no less urgent than the process that trains.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


def ray_module() -> ModuleType:
    """The package. Raises EngineError where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise EngineError(
            f"cluster: Ray cannot be imported ({error}); expected it beside Cadre. Install cadre-rl[ray], or remove "
            "the section cluster to train in one process."
        ) from None
    return ray


def deaths() -> tuple[type[Exception], ...]:
    """What Ray raises when whoever is asked is no more: by itself, for want of memory, or with its machine, which takes
    along what was answered and not fetched."""
    exceptions = ray_module().exceptions
    return exceptions.RayActorError, exceptions.OutOfMemoryError, exceptions.NodeDiedError, exceptions.ObjectLostError


def connect(address: str | None) -> None:
    """Join the cluster at `address`; where that is None the one a submitted job finds in RAY_ADDRESS, else start one on
    this machine: never one that somebody else happens to have started here. Joined once a process.

    Raises EngineError where the cluster cannot be reached.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    ray = ray_module()
    if ray.is_initialized():
        return
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address or "local", include_dashboard=None if address else False, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"cluster.address: got {address!r}, and Ray cannot be reached there ({error}); expected one that "
            "runs. Start one with `ray start --head`, or leave the address out to start one here."
        ) from None


def close() -> None:
    """Leave the cluster; one that was started here ends."""
    ray_module().shutdown()
