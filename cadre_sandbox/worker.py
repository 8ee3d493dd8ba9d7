"""The trainer's side of one warm parent: a process that is started by exec, and a socket to it."""

import asyncio
import contextlib
import errno
import fcntl
import functools
import importlib.util
import json
import os
import resource
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cadre_sandbox import cgroups
from cadre_sandbox.inside import landlock, layers, wire
from cadre_sandbox.records import Limits

SIGKILL = 9
# Seconds that a warm parent may take to start, on a loaded machine too.
HELLO_S = 20.0
# Seconds that a run may take beyond its wall limit before its warm parent counts as stuck.
GRACE_S = 10.0
BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv[1]); from inside.start import main; main()"
# A package that judges of programming problems offer: pure Python without dependencies.
EXTRA_PACKAGES = ("sortedcontainers",)
# The whole environment. Hashing is seeded so that a program prints a set of strings in the same order each time.
# One malloc arena, or each thread would reserve 64 MiB of the address space that the memory limit counts.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}


# Programs that end in each of the usual ways. They fill the caches of a new warm parent, which takes about twenty runs.
REHEARSAL = (
    ("import time; time.sleep(9)", Limits(wall_s=0.03)),
    ("while True: pass", Limits(cpu_s=0.03)),
    *((program, Limits()) for program in ("", "1 / 0") * 10),
)


class WorkerDied(Exception):
    """The warm parent could not be started, ended, got stuck or broke the protocol, or the trainer has no memory,
    process or descriptor left for a run. It is no verdict on the program; the run may be repeated on a new parent.
    """


@dataclass(frozen=True)
class Setup:
    """The settings of a warm parent.

    packages, preload   folders on its path, and modules to import, for trusted jobs
    groups              delegated control group in which each warm parent gets a group for its children
    landlock            newest version of Landlock's interface to use
    executables         files that a child may execute
    """

    level: str
    mode: str = "pool"
    packages: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    groups: cgroups.Delegation | None = None
    landlock: int = landlock.NEWEST
    executables: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that a child must report as armed."""
        return layers.LAYERS[self.level] + ((layers.GROUP_LAYER,) if self.groups else ())


@dataclass(frozen=True)
class Ending:
    """The end of one child, as its parent measured it.

    code     exit status, or minus the signal
    killed   the limit for which its parent killed it, or an empty string
    ended    True if it ended before its parent had reason to end it
    """

    code: int
    killed: str
    ended: bool
    wall_s: float
    cpu_s: float
    layers: tuple[str, ...]
    error: str
    stdout: bytes
    stderr: bytes

    @property
    def foreign(self) -> bool:
        """True if the system (short of memory) or a user killed it, neither its parent nor the program itself."""
        # The seccomp filter lets no program send itself SIGKILL.
        return "seccomp" in self.layers and self.code == -SIGKILL and self.ended and not self.killed


def interpreter() -> list[str]:
    """Return the command of a bare interpreter: the base one (not a virtual environment's), without site packages.

    `-P -s` and ENVIRONMENT isolate it as `-I` would; `-I` would ignore PYTHONHASHSEED.
    """
    executable = getattr(sys, "_base_executable", "") or sys.executable
    return [os.path.realpath(executable), "-P", "-s", "-S", "-B", "-X", "utf8", "-c", BOOTSTRAP]


@functools.cache
def find_extra_packages() -> list[str]:
    """Return the folders of those `EXTRA_PACKAGES` that are installed here."""
    specs = [importlib.util.find_spec(name) for name in EXTRA_PACKAGES]
    return [os.path.dirname(spec.origin) for spec in specs if spec is not None and spec.origin is not None]


def make_file(content: bytes = b"") -> int:
    """Return a descriptor of a nameless file in memory, positioned at its start; it is freed with its last descriptor.

    Writes append, as to a pipe, because a program may open its output a second time.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("cadre")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], written)
    # Only now: on Linux pwrite to a descriptor in append mode ignores the offset.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
    return descriptor


class Worker:
    """A warm parent. Owned by one slot of the pool, used by one run at a time, closed by `close`."""

    def __init__(self, setup: Setup) -> None:
        """Start the process; it is ready when `hello` has returned. Raises WorkerDied if it cannot be started."""
        self.setup = setup
        self.runs = 0
        self.group = ""
        with contextlib.ExitStack() as undo, raising_worker_died("start a warm parent"):
            if setup.groups:
                self.group = cgroups.make(setup.groups)
                undo.callback(cgroups.remove, self.group)
            self.channel, parent_end = socket.socketpair()
            undo.callback(self.channel.close)
            with parent_end:
                self.process = self._start(parent_end.fileno())
            self.channel.setblocking(False)
            undo.pop_all()

    def _start(self, descriptor: int) -> subprocess.Popen[bytes]:
        names = ("level", "mode", "packages", "preload", "executables", "landlock")
        arguments = {name: getattr(self.setup, name) for name in names}
        arguments |= {"channel": descriptor, "group": self.group, "extra_packages": find_extra_packages()}
        return subprocess.Popen(
            [*interpreter(), os.path.dirname(__file__), json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[descriptor],
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )

    async def hello(self) -> None:
        """Wait for the report of the layers that its first child armed. Raises WorkerDied if one is missing."""
        message = await self._receive(HELLO_S)
        expected = list(self.setup.layers)
        if message["layers"] != expected:
            raise WorkerDied(message["error"] or f"armed {message['layers']}, expected {expected}")
        # The first runs of a parent fill caches and move objects in memory; the later ones have to be alike.
        if self.setup.mode == "pool":
            for program, limits in REHEARSAL:
                await self.run([{"kind": "program", "program": program, "seed": 0}], b"", limits)
            self.runs = 0

    async def run(self, jobs: list[dict[str, Any]], stdin: bytes, limits: Limits) -> list[Ending]:
        """Run one job, or two that talk to each other, and return how each ended. Raises WorkerDied."""
        # Four files per job, in the order in which the child expects them: the job, stdin, stdout, stderr.
        parts = [part for job in jobs for part in (json.dumps(job).encode("ascii"), stdin, b"", b"")]
        with contextlib.ExitStack() as files, raising_worker_died("hand a program over"):
            descriptors = [open_memory_file(files, part) for part in parts]
            self._send(
                {
                    "wall_s": limits.clock_s,
                    "idle_s": limits.idle_s,
                    "cpu_s": limits.cpu_s,
                    "memory_mb": limits.memory_mb,
                    "output_bytes": limits.output_bytes,
                    "folder_mb": limits.folder_mb,
                    "children": len(jobs),
                },
                descriptors,
            )
            message = await self._receive(limits.clock_s + GRACE_S)
            self.runs += 1
            # One byte more than allowed is read, so that `results.status_of` can tell a flood.
            return [
                Ending(
                    code=report["code"],
                    killed=report["killed"],
                    ended=report["ended"],
                    wall_s=report["wall_s"],
                    cpu_s=report["cpu_s"],
                    layers=tuple(report["layers"]),
                    error=report["error"],
                    stdout=os.pread(descriptors[4 * index + 2], limits.output_bytes + 1, 0),
                    stderr=os.pread(descriptors[4 * index + 3], limits.output_bytes + 1, 0),
                )
                for index, report in enumerate(endings_in(message))
            ]

    def _send(self, request: dict[str, Any], files: list[int]) -> None:
        try:
            # The socket does not block; a few hundred bytes always fit into its empty buffer.
            wire.send(self.channel, request, files)
        except OSError as error:
            raise WorkerDied(f"the warm parent is gone: {error}") from error

    async def _receive(self, seconds: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                (length,) = wire.HEADER.unpack(await self._read(wire.HEADER.size))
                return json.loads(await self._read(length))
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            raise WorkerDied(f"the warm parent is gone or stuck: {error!r}") from error

    async def _read(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        parts = bytearray()
        while len(parts) < count:
            part = await loop.sock_recv(self.channel, count - len(parts))
            if not part:
                raise EOFError("closed")
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """End the process and reap it. It ends its children first; if it is stuck, it is killed together with them."""
        self.channel.close()
        if not self._wait(1.0):
            self.process.kill()
        self.process.wait()
        if self.group:
            cgroups.remove(self.group)

    def _wait(self, seconds: float) -> bool:
        """Return True if the process ends within the time."""
        if sys.platform == "linux" and self.process.returncode is None:
            # Popen.wait with a timeout sleeps for up to 50 ms at a time; a pidfd becomes readable at once.
            handle, poller = os.pidfd_open(self.process.pid), select.poll()
            try:
                poller.register(handle, select.POLLIN)
                return bool(poller.poll(1000 * seconds))
            finally:
                os.close(handle)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=seconds)
        return self.process.returncode is not None

    def abandon(self) -> None:
        """Forget a worker that belongs to the process from which this one was forked."""
        # A return code keeps Popen from waiting for a process that is not its child.
        self.channel.close()
        self.process.returncode = 0


@contextlib.contextmanager
def raising_worker_died(action: str) -> Iterator[None]:
    """Turn an OSError or a MemoryError into WorkerDied: the trainer lacks resources; the program is not at fault."""
    try:
        yield
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            count, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise WorkerDied(
                f"no means to {action}; too few file descriptors: this process may have {count:,} files and "
                f"connections open at once, and needs more. Run ulimit -n {max(4096, 4 * count)} in the shell before, "
                "or ask for fewer programs at once"
            ) from error
        raise WorkerDied(f"no means to {action}: {error!r}") from error


def open_memory_file(files: contextlib.ExitStack, content: bytes) -> int:
    """Return the descriptor of a new file in memory that is closed with `files`."""
    descriptor = make_file(content)
    files.callback(os.close, descriptor)
    return descriptor


def endings_in(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how the children of a run ended. Raises WorkerDied if one of them never became ready to receive code."""
    endings: list[dict[str, Any]] = message.get("endings", [])
    unready = [report["error"] for report in endings if not report["layers"]]
    if unready or not endings:
        raise WorkerDied(str(unready[0] if unready else message.get("error")))
    return endings
