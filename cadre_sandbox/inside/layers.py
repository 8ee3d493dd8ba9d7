"""The layers of each level, and how a process arms them.

process    rlimits, closed descriptors, an empty environment
confined   + no capabilities, no_new_privs, Landlock, the seccomp allow-list
isolated   + its own user, mount, process, network and IPC namespaces (see `namespaces.py`)

If a control group is delegated, every level has it as an additional layer (see `groups.py`).
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
    """The confinement of one warm parent's children.

    packages      folders of libraries that are readable too
    folder        the writable folder of a run, if any
    executables   files that a child may execute
    landlock      newest version of Landlock's interface to use; tests try what an older kernel enforces
    """

    level: str
    packages: tuple[str, ...] = ()
    folder: str | None = None
    executables: tuple[str, ...] = ()
    landlock: int = landlock.NEWEST


def visible_paths(packages: tuple[str, ...], executables: tuple[str, ...] = ()) -> list[str]:
    """Return the paths under the root of an isolated program; Landlock narrows them to what is readable."""
    folders = [os.path.dirname(os.__file__), *packages, *SYSTEM_LIBRARIES]
    visible = tuple(f"{folder}/" for folder in folders)
    return [*folders, *(path for path in executables if not path.startswith(visible))]


def loaded_by(executables: tuple[str, ...]) -> tuple[str, ...]:
    """Return the executables and the dynamic loaders, which the kernel executes too; nothing without executables."""
    return (*executables, *LOADERS) if executables else ()


@dataclass(frozen=True)
class Armour:
    """The layers of a child, prepared by its parent: the Landlock rule set and the seccomp filter, both missing at
    level `process`, and the report (`hello`) that the child sends when all layers are armed.
    """

    profile: Profile
    hello: bytes
    ruleset: int | None = None
    filters: bytes = b""


def make_armour(profile: Profile) -> Armour:
    """Prepare the layers of every child of this profile. Raises OSError if the kernel lacks one."""
    hello = wire.pack({"layers": LAYERS[profile.level], "error": ""})
    if profile.level == "process":
        return Armour(profile, hello)
    listable = [os.path.dirname(os.__file__)]
    # Landlock can only allow, so the entries of the library's folder are listed one by one to leave some out.
    library = os.path.dirname(os.__file__)
    entries = [os.path.join(library, name) for name in os.listdir(library) if name not in NOT_LIBRARY]
    readable, executables = [*entries, *profile.packages, *SYSTEM_LIBRARIES], loaded_by(profile.executables)
    ruleset = landlock.ruleset(readable, listable, profile.folder, profile.landlock, executables)
    # Without a UTS namespace uname returns the host's name, so it is denied. Executables keep the call: dynamic loaders
    # of glibc before 2.37 abort without it.
    unnamed = profile.level == "confined" and not executables
    rules = seccomp.tail(profile.folder is not None, bool(executables), unnamed)
    filters = seccomp.assemble(seccomp.head() + rules)
    return Armour(profile, hello, ruleset, filters)


def arm_parent(level: str) -> None:
    """Arm the layers that children inherit from the warm parent: those that are the same for every run."""
    for name in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK):
        resource.setrlimit(name, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))
    os.environ.clear()
    if level != "process":
        kernel.drop_bounding_set()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


def arm(armour: Armour, keep: int) -> None:
    """Arm the remaining layers on this process. `keep` is the only descriptor above 2 that stays open.

    Raises OSError if a layer cannot be armed: the caller must then exit without running anything.
    """
    # The order matters. Landlock needs the rule set's descriptor, so the others are closed after it. The filter comes
    # last, because it denies the calls by which the other layers are armed.
    kernel.die_with_parent(signal.SIGKILL)
    os.chdir(armour.profile.folder or "/")
    if armour.ruleset is not None:
        kernel.drop_capabilities()
        landlock.restrict(armour.ruleset)
    os.closerange(3, keep)
    os.closerange(keep + 1, 65_536)
    if armour.ruleset is not None:
        seccomp.install(seccomp.personal(armour.filters, os.getpid()))


def lift_stack_limit() -> None:
    """Let the stack of the main thread grow up to the hard limit, as graders of such tasks do.

    Recursion through C code takes about half a KiB of it a level: under the usual 8 MiB a function with `lru_cache`
    crashes 17,000 levels deep, whatever `sys.setrecursionlimit` says. The limit of memory bounds the stack too.
    """
    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))


def limits_of(request: dict[str, float]) -> list[tuple[int, tuple[int, int]]]:
    """Return the limits of a run as (resource, (soft, hard)): memory, CPU seconds, size of a file."""
    memory = int(request["memory_mb"]) << 20
    seconds = max(1, math.ceil(request["cpu_s"]))  # whole seconds; the warm parent watches the fraction
    # One byte more than allowed, so that a flood can be told from an output of just that size.
    size = max(int(request["output_bytes"]) + 1, int(request["folder_mb"]) << 20)
    return [
        (resource.RLIMIT_AS, (memory, memory)),
        # SIGXCPU at the soft limit, which a program may catch; SIGKILL a second later.
        (resource.RLIMIT_CPU, (seconds, seconds + 1)),
        (resource.RLIMIT_FSIZE, (size, size)),
    ]


def tighten(pid: int, request: dict[str, float]) -> None:
    """Set the limits of a run on a waiting child, before it receives any code.

    Outside Linux only a process itself can set its limits; there the child does so in `tighten_self`.
    """
    if sys.platform == "linux":
        for name, limits in limits_of(request):
            resource.prlimit(pid, name, limits)


def tighten_self(request: dict[str, float]) -> None:
    """Set the limits of a run on this process, outside Linux. If the system lacks one of them, the child ends here."""
    if sys.platform != "linux":
        for name, limits in limits_of(request):
            resource.setrlimit(name, limits)
