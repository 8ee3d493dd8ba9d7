"""One warm parent as the trainer sees it: a process that was started by exec, and a socket to it."""

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
HELLO_S = 20.0  # how long a warm parent may take to start; a loaded machine is slow
GRACE_S = 10.0  # how much longer than its wall limit a run may take before its parent counts as stuck
BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv[1]); from inside.start import main; main()"
LENT = ("sortedcontainers",)  # what judges of programming problems have, pure Python without dependencies
# Seeded hashing, so that a program prints a set of strings in the same order each time; nothing else is inherited.
# One arena, or each thread would reserve 64 MiB of the address space that the memory limit counts.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}


# Programs that end in each of the usual ways, and what they may use; the interpreter settles within some twenty runs.
REHEARSAL = (
    ("import time; time.sleep(9)", Limits(wall_s=0.03)),
    ("while True: pass", Limits(cpu_s=0.03)),
    *((program, Limits()) for program in ("", "1 / 0") * 10),
)


class WorkerDied(Exception):
    """The warm parent could not be started, ended, got stuck or broke the protocol; or we have no memory, process or
    descriptor left for a run. It says nothing about the program. The run may be tried again on a new one.
    """


@dataclass(frozen=True)
class Setup:
    """How warm parents are started. `packages` are folders on their path and `preload` modules, for trusted jobs;
    `groups` is where each gets a control group for its children, `landlock` the newest version of its interface to use,
    and `executables` are the files that a child may become, none where there are none.
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
        """What a child must say it has armed."""
        return layers.LAYERS[self.level] + ((layers.GROUP_LAYER,) if self.groups else ())


@dataclass(frozen=True)
class Ending:
    """How one child ended, as its parent measured it.

    code     an exit status, or minus a signal
    killed   the limit for which its parent killed it, or an empty string
    ended    it ended before its parent had reason to end it
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
        """Whether neither its parent nor the program killed it, but the system, short of memory, or a user: behind the
        filter no program can send itself SIGKILL.
        """
        return "seccomp" in self.layers and self.code == -SIGKILL and self.ended and not self.killed


def interpreter() -> list[str]:
    """The command of a bare interpreter: the base one (not a virtual environment's), nothing imported, nothing written.

    `-P -s` and an environment of our own isolate it as `-I` would; `-I` would ignore the seed of the hashes.
    """
    executable = getattr(sys, "_base_executable", "") or sys.executable
    return [os.path.realpath(executable), "-P", "-s", "-S", "-B", "-X", "utf8", "-c", BOOTSTRAP]


@functools.cache
def lent() -> list[str]:
    """The folders of the packages that programs may use beside the standard library, those that are installed here."""
    found = [importlib.util.find_spec(name) for name in LENT]
    return [os.path.dirname(spec.origin) for spec in found if spec is not None and spec.origin is not None]


def make_file(content: bytes = b"") -> int:
    """A descriptor of a file in memory, at its start; it has no name and goes when the last descriptor does. Who writes
    to it writes at its end, as to a pipe: a program may open its output a second time.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("cadre")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], written)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
    return descriptor


class Worker:
    """A warm parent. Owned by one slot of the pool, used by one run at a time, closed by `close`."""

    def __init__(self, setup: Setup) -> None:
        """Start the process; it is ready once `hello` has returned. Raises WorkerDied when it cannot be started."""
        self.setup = setup
        self.runs = 0
        self.group = ""
        with contextlib.ExitStack() as undo, ours("start a warm parent"):
            if setup.groups:
                self.group = cgroups.make(setup.groups)
                undo.callback(cgroups.remove, self.group)
            self.channel, theirs = socket.socketpair()
            undo.callback(self.channel.close)
            with theirs:
                self.process = self._start(theirs.fileno())
            self.channel.setblocking(False)
            undo.pop_all()

    def _start(self, channel: int) -> subprocess.Popen[bytes]:
        names = ("level", "mode", "packages", "preload", "executables", "landlock")
        asked = {name: getattr(self.setup, name) for name in names}
        asked |= {"channel": channel, "group": self.group, "lent": lent()}
        return subprocess.Popen(
            [*interpreter(), os.path.dirname(__file__), json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[channel],
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )

    async def hello(self) -> None:
        """Wait until it says which layers its first child armed. Raises WorkerDied when that is not all of them."""
        self._expect_layers(await self._receive(HELLO_S))
        if self.setup.mode == "pool":  # a parent's first run fills caches, and the later ones are to be alike
            for program, limits in REHEARSAL:
                await self.run([{"kind": "program", "program": program, "seed": 0}], b"", limits)
            self.runs = 0

    def _expect_layers(self, message: dict[str, Any]) -> None:
        expected = list(self.setup.layers)
        if message["layers"] != expected:
            raise WorkerDied(message["error"] or f"armed {message['layers']}, expected {expected}")

    async def run(self, jobs: list[dict[str, Any]], stdin: bytes, limits: Limits) -> list[Ending]:
        """Run one job, or two that talk to each other; how each ended. Raises WorkerDied."""
        parts = [part for job in jobs for part in (json.dumps(job).encode("ascii"), stdin, b"", b"")]
        with contextlib.ExitStack() as files, ours("hand a program over"):
            descriptors = [opened(files, part) for part in parts]
            self._send(request_of(limits, len(jobs)), descriptors)
            message = await self._receive(limits.clock_s + GRACE_S)
            self.runs += 1
            return [
                ending_of(told, descriptors[4 * place + 2], descriptors[4 * place + 3], limits.output_bytes)
                for place, told in enumerate(endings_in(message))
            ]

    def _send(self, request: dict[str, Any], files: list[int]) -> None:
        try:
            wire.send(self.channel, request, files)  # a few hundred bytes into an empty buffer: it never waits
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
        """End the process and collect it. It ends its own children first; a stuck one is killed, theirs with it."""
        self.channel.close()
        if not self._ended(1.0):
            self.process.kill()
        self.process.wait()
        if self.group:
            cgroups.remove(self.group)

    def _ended(self, seconds: float) -> bool:
        """Wait until the process ends, so long at most."""
        if sys.platform == "linux" and self.process.returncode is None:
            return ended_by_handle(self.process.pid, seconds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=seconds)
        return self.process.returncode is not None

    def abandon(self) -> None:
        """Forget a worker that belongs to the process this one was forked from."""
        self.channel.close()
        self.process.returncode = 0


@contextlib.contextmanager
def ours(what: str) -> Iterator[None]:
    """What the system refuses in here is the trainer's want, not a program's fault: WorkerDied."""
    try:
        yield
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise WorkerDied(
                f"no means to {what}; too few file descriptors: this process may have {most:,} files and connections "
                f"open at once, and needs more. Run ulimit -n {max(4096, 4 * most)} in the shell before, or ask for "
                "fewer programs at once"
            ) from error
        raise WorkerDied(f"no means to {what}: {error!r}") from error


def opened(files: contextlib.ExitStack, content: bytes) -> int:
    """A file in memory, closed with the rest of `files`."""
    descriptor = make_file(content)
    files.callback(os.close, descriptor)
    return descriptor


def endings_in(message: dict[str, Any]) -> list[dict[str, Any]]:
    """How the children of a run ended. Raises WorkerDied when one of them was never ready to be given code."""
    endings: list[dict[str, Any]] = message.get("endings", [])
    unready = [told["error"] for told in endings if not told["layers"]]
    if unready or not endings:
        raise WorkerDied(str(unready[0] if unready else message.get("error")))
    return endings


def ended_by_handle(pid: int, seconds: float) -> bool:
    """Whether a child process ends within the time. Popen's own wait would doze for up to 50 ms at a time."""
    handle, poller = os.pidfd_open(pid), select.poll()
    try:
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(1000 * seconds))
    finally:
        os.close(handle)


def request_of(limits: Limits, children: int) -> dict[str, float]:
    return {
        "wall_s": limits.clock_s,
        "idle_s": limits.idle_s,
        "cpu_s": limits.cpu_s,
        "memory_mb": limits.memory_mb,
        "output_bytes": limits.output_bytes,
        "folder_mb": limits.folder_mb,
        "children": children,
    }


def ending_of(told: dict[str, Any], stdout: int, stderr: int, output_bytes: int) -> Ending:
    """The record of what the parent told, with the outputs: one byte more than allowed shows a flood."""
    return Ending(
        code=told["code"],
        killed=told["killed"],
        ended=told["ended"],
        wall_s=told["wall_s"],
        cpu_s=told["cpu_s"],
        layers=tuple(told["layers"]),
        error=told["error"],
        stdout=os.pread(stdout, output_bytes + 1, 0),
        stderr=os.pread(stderr, output_bytes + 1, 0),
    )
