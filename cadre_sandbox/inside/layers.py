"""The layers of each level, and how a process puts them on.

process    rlimits, closed descriptors, an empty environment
confined   + no capabilities, no_new_privs, Landlock, the seccomp allow-list
isolated   + its own user, mount, process, network and IPC namespaces (see `namespaces.py`)

Where a control group is delegated, any of them has it on top (see `groups.py`).
"""

import math
import os
import resource
import signal
import sys
from dataclasses import dataclass

from . import kernel, landlock, seccomp, wire

BASE_LAYERS = ("rlimits", "descriptors", "environment")
CONFINED_LAYERS = (*BASE_LAYERS, "capabilities", "no_new_privs", "landlock", "seccomp")
ISOLATED_LAYERS = (*CONFINED_LAYERS, "namespaces")
LAYERS = {"process": BASE_LAYERS, "confined": CONFINED_LAYERS, "isolated": ISOLATED_LAYERS}
GROUP_LAYER = "cgroup"

OPEN_FILES = 64
SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
NOT_LIBRARY = ("site-packages", "dist-packages", "test", "__pycache__")


@dataclass(frozen=True)
class Profile:
    """How the children of one warm parent are confined. `packages` are folders of libraries to be readable too,
    `executables` files that a child may become, and `landlock` the newest version of Landlock's interface that is used,
    for trying what an older kernel gives.
    """

    level: str
    packages: tuple[str, ...] = ()
    folder: str | None = None
    executables: tuple[str, ...] = ()
    landlock: int = landlock.NEWEST


def readable_paths(packages: tuple[str, ...]) -> list[str]:
    """What a program may read: the standard library without installed packages, and the system's shared libraries."""
    library = os.path.dirname(os.__file__)
    entries = [os.path.join(library, name) for name in os.listdir(library) if name not in NOT_LIBRARY]
    return [*entries, *packages, *SYSTEM_LIBRARIES]


def visible_paths(packages: tuple[str, ...], executables: tuple[str, ...] = ()) -> list[str]:
    """What the root of an isolated program holds; Landlock narrows it to `readable_paths`."""
    folders = [os.path.dirname(os.__file__), *packages, *SYSTEM_LIBRARIES]
    shown = tuple(f"{folder}/" for folder in folders)
    return [*folders, *(path for path in executables if not path.startswith(shown))]


def loaded_by(executables: tuple[str, ...]) -> tuple[str, ...]:
    """The executables, and what loads the libraries of any: the kernel executes both."""
    return (*executables, *LOADERS) if executables else ()


@dataclass(frozen=True)
class Armour:
    """What a child puts on, made ready by its parent: a Landlock rule set and the filter, both missing at level
    `process`; and what it says when all of it is on.
    """

    profile: Profile
    hello: bytes
    ruleset: int | None = None
    filters: bytes = b""


def make_armour(profile: Profile) -> Armour:
    """Make ready what every child of this profile puts on. Raises OSError when the kernel lacks it."""
    hello = wire.pack({"layers": LAYERS[profile.level], "error": ""})
    if profile.level == "process":
        return Armour(profile, hello)
    listable = [os.path.dirname(os.__file__)]
    readable, executables = readable_paths(profile.packages), loaded_by(profile.executables)
    ruleset = landlock.ruleset(readable, listable, profile.folder, profile.landlock, executables)
    # Without a UTS namespace the machine's name is the host's. What becomes an executable keeps the call: loaders of
    # the C library before 2.37 end without it.
    unnamed = profile.level == "confined" and not executables
    rules = seccomp.tail(profile.folder is not None, bool(executables), unnamed)
    filters = seccomp.assemble(seccomp.head() + rules)
    return Armour(profile, hello, ruleset, filters)


def arm_parent(level: str) -> None:
    """The layers that a child inherits, put on once: what does not depend on the run, and cannot be taken off."""
    fixed_limits()
    os.environ.clear()
    if level != "process":
        kernel.drop_bounding_set()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


def arm(armour: Armour, keep: int) -> None:
    """Put the remaining layers on this process. `keep` is the one descriptor to stay open past 2.

    Raises OSError when a layer cannot be put on: the caller must then end without running anything.
    """
    kernel.die_with_parent(signal.SIGKILL)
    os.chdir(armour.profile.folder or "/")
    if armour.ruleset is not None:
        kernel.drop_capabilities()
        landlock.restrict(armour.ruleset)
    close_others(keep)
    if armour.ruleset is not None:
        seccomp.install(seccomp.personal(armour.filters, os.getpid()))


def close_others(keep: int) -> None:
    """Close every descriptor but 0, 1, 2 and `keep`."""
    os.closerange(3, keep)
    os.closerange(keep + 1, 65_536)


def fixed_limits() -> None:
    """The limits that do not depend on the run. Memory, time and output follow once the run is known."""
    for name in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK):
        resource.setrlimit(name, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))


def limits_of(request: dict[str, float]) -> list[tuple[int, tuple[int, int]]]:
    """The limits that depend on the run, as (resource, (soft, hard)): memory, processor seconds, size of a file."""
    memory = int(request["memory_mb"]) << 20
    seconds = max(1, math.ceil(request["cpu_s"]))  # whole seconds; the warm parent watches the fraction
    size = max(int(request["output_bytes"]) + 1, int(request["folder_mb"]) << 20)
    return [
        (resource.RLIMIT_AS, (memory, memory)),
        (resource.RLIMIT_CPU, (seconds, seconds + 1)),
        (resource.RLIMIT_FSIZE, (size, size)),
    ]


def tighten(pid: int, request: dict[str, float]) -> None:
    """Set the run's own limits on a waiting child, before it is given any code. Where only a process itself can set
    them (outside Linux), the child does so in `tighten_self`.
    """
    if sys.platform == "linux":
        for name, limits in limits_of(request):
            resource.prlimit(pid, name, limits)


def tighten_self(request: dict[str, float]) -> None:
    """What `tighten` does, where it cannot. A system without one of the limits refuses it, and the child ends there."""
    if sys.platform != "linux":
        for name, limits in limits_of(request):
            resource.setrlimit(name, limits)
