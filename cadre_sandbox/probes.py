"""Probes: hostile programs that show whether a level of confinement holds on this machine.

An attack runs in the sandbox and says BREACH where it got through; what it does besides is seen from outside, by a
`World` of planted secrets, files, listeners and a neighbouring process. The catalogue of some 470 attacks that the
sandbox is tested with lies beside the tests; the few here are run wherever a level is chosen.
"""

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from cadre_sandbox.errors import SandboxUnavailable
from cadre_sandbox.inside.host import NAME
from cadre_sandbox.records import Limits, Result, Status

QUICK = Limits(cpu_s=0.15)
ROOM = Limits(cpu_s=2.0)
FOLDER = Limits(cpu_s=2.0, folder_mb=2)


class Runner(Protocol):
    """What an attack is tried on: a `Sandbox`, or something as small as it needs."""

    level: str

    async def run(self, program: str, stdin: str = "", limits: Limits = ...) -> Result: ...


@dataclass(frozen=True)
class Attack:
    """A hostile program, in Python source text with @NAME@ where the world's names go.

    It calls `attack(function)`, which prints BREACH when the function succeeds and STOPPED with the reason when it
    raises. What it does besides that is seen from outside; see `World`.

    layer   what stops it, where its end does not tell
    ends    the only statuses, besides `timeout` and `wall`, that count as held; any when empty
    limits  of its run
    """

    name: str
    kind: str
    program: str
    ends: tuple[Status, ...] = ()
    limits: Limits = ROOM
    layer: str = ""


def tried(
    name: str, kind: str, expression: str, ends: tuple[Status, ...] = (), limits: Limits = ROOM, layer: str = ""
) -> Attack:
    """An attack that is one expression, and that has got through when the expression has a value."""
    return Attack(name, kind, f"attack(lambda: {expression})", ends, limits, layer)


@dataclass(frozen=True)
class Outcome:
    """How an attack went: `breach` says what got through and is empty when it held; `layer` is what stopped it. `slow`
    where the breach is no more than a run that took too long, which a busy machine does by itself."""

    name: str
    kind: str
    status: Status
    breach: str
    layer: str
    wall_s: float
    slow: bool = False


# One attack for each layer of confinement, none of which takes time: the choice of a level rests on them.
PROBES = [
    tried("secret by path", "secrets by path", "print(open('@SECRET@', 'rb').read(4096))"),
    tried("file in the temporary folder", "new files", "open('/tmp/cadre-attack', 'w').write('BREACH')"),
    Attack("fork", "fork", "attack(os.fork)"),
    tried("kill a neighbour", "signals", "os.kill(@NEIGHBOUR@, 9)"),
    tried("TCP connection", "internet", "socket.create_connection(('127.0.0.1', @TCP@), 1)"),
]
# Attacks by many processes together, which at level `process` only a control group stops.
GROUP_PROBES = [
    Attack(
        "many processes",
        "fork",
        "import time\ndef go():\n    for _ in range(100):\n        if os.fork() == 0:\n            time.sleep(1)\n"
        "            os._exit(0)\nattack(go)",
    ),
    Attack(
        "memory of many processes",
        "fork",
        "import time\ndef hold():\n    kept = b'x' * (32 << 20)\n    time.sleep(1)\n    os._exit(0)\n"
        "def go():\n    for _ in range(8): os.fork() or hold()\n"
        "    if any(os.wait()[1] for _ in range(8)): raise ChildProcessError(10, 'one was killed')\nattack(go)",
        (),
        Limits(wall_s=5.0, memory_mb=128),
    ),
]


FORBIDDEN = ("/tmp/cadre-attack", "/dev/shm/cadre-attack")


class World:
    """A context manager. What it plants belongs to this process's own user, as a trainer's files do.

    Make it before the sandbox that is to be tried: one secret is an environment variable, another a descriptor that
    child processes inherit.
    """

    def __enter__(self) -> Self:
        self.folder = tempfile.mkdtemp(prefix="cadre-world-")
        self.secret = secrets.token_hex(16)
        self.secret_path = self._write("secret", self.secret)
        self.canary_path = self._write("canary", "untouched")
        self.link = os.path.join(self.folder, "link")
        os.symlink(self.secret_path, self.link)
        self.variable = f"CADRE_{secrets.token_hex(8)}"
        os.environ[self.variable] = self.secret
        self.descriptor = os.open(self.secret_path, os.O_RDONLY)
        os.set_inheritable(self.descriptor, True)
        self.neighbour = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"])
        self._listen()
        library = sysconfig.get_path("stdlib")
        self.library = library
        # Where the host is called as programs are told, nothing can be given away.
        self.host = socket.gethostname() if socket.gethostname() != NAME else "no-such-host"
        self.library_file = os.path.join(library, "this.py")
        self.before = self._state()
        return self

    def _write(self, name: str, text: str) -> str:
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def _listen(self) -> None:
        """Listeners that nobody but an attack would speak to."""
        self.unix_path = os.path.join(self.folder, "listener")
        self.datagram_path = os.path.join(self.folder, "datagrams")
        self.abstract = f"cadre-{secrets.token_hex(8)}"
        self.listeners = [
            self._bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            self._bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            self._bound(socket.AF_UNIX, socket.SOCK_STREAM, self.unix_path),
            self._bound(socket.AF_UNIX, socket.SOCK_DGRAM, self.datagram_path),
            self._bound(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + self.abstract),
        ]

    @staticmethod
    def _bound(family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
        listener = socket.socket(family, kind)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        return listener

    def names(self) -> dict[str, str]:
        """What replaces the @NAMES@ in an attack."""
        return {
            "SECRET": self.secret_path,
            "CANARY": self.canary_path,
            "LINK": self.link,
            "FOLDER": self.folder,
            "LIBRARY": self.library,
            "NAME": self.variable,
            "TRAINER": str(os.getpid()),
            "NEIGHBOUR": str(self.neighbour.pid),
            "TCP": str(self.listeners[0].getsockname()[1]),
            "UDP": str(self.listeners[1].getsockname()[1]),
            "UNIX": self.unix_path,
            "DATAGRAM": self.datagram_path,
            "ABSTRACT": self.abstract,
            "HOST": self.host,
        }

    def _state(self) -> tuple[object, ...]:
        """Everything about the planted files that an attack could change."""
        texts = [Path(path).read_text(encoding="utf-8") for path in (self.canary_path, self.secret_path)]
        canary, library = os.stat(self.canary_path), os.stat(self.library_file)
        attributes = tuple(os.listxattr(self.canary_path))
        return (
            *texts,
            attributes,
            (canary.st_mode, canary.st_mtime_ns, canary.st_nlink),
            (library.st_mode, library.st_size),
            tuple(sorted(os.listdir(self.folder))),
        )

    def damage(self) -> str:
        """What an attack has done out here, or an empty string."""
        if self.neighbour.poll() is not None:
            return "the neighbour was killed"
        if not os.path.exists(self.canary_path) or not os.path.exists(self.secret_path) or self._state() != self.before:
            return "a file was changed"
        for path in (*FORBIDDEN, os.path.join(self.library, "cadre_attack.py")):
            if os.path.exists(path):
                return f"{path} was written"
        return self._heard()

    def _heard(self) -> str:
        for listener in self.listeners:
            with contextlib.suppress(BlockingIOError):
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()
                else:
                    listener.recv(1)
                return f"somebody spoke to {listener.getsockname()!r}"
        return ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del os.environ[self.variable]
        os.close(self.descriptor)
        for listener in self.listeners:
            listener.close()
        self.neighbour.kill()
        self.neighbour.wait()
        shutil.rmtree(self.folder)


# What each attack program starts with.
PRELUDE = """
import ctypes, fcntl, mmap, os, resource, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def by_machine(x86, arm):
    return x86 if os.uname().machine == 'x86_64' else arm
def buffer(content):
    return ctypes.create_string_buffer(content)
def raw(x86, arm, *arguments):  # a call that the kernel looks at at all has got through, whatever it says
    number = by_machine(x86, arm)
    if number is None:
        raise OSError(38, 'no such call here')
    ctypes.set_errno(0)
    returned, code = libc.syscall(number, *arguments), ctypes.get_errno()
    if returned == -1 and code in (1, 13, 38):
        raise OSError(code, 'native')
    return returned
def call(function, *arguments):
    returned = function(*arguments)
    if returned == -1:
        raise OSError(ctypes.get_errno(), 'native')
    return returned
def attack(function):
    try:
        function()
    except OSError as error:
        print('STOPPED', error.errno)
    except BaseException as error:
        print('STOPPED', type(error).__name__)
    else:
        print('BREACH')
"""
HEALTH = """
import json, math, os
print(sorted([3, 1, 2]), json.dumps({'a': math.floor(2.5)}), len(os.environ))
"""
HEALTHY = '[1, 2, 3] {"a": 2} 0\n'
# What stopped an attack, by the errno or the exception that it met.
LAYER_OF_REASON = {
    "1": "seccomp", "38": "seccomp", "-3": "seccomp", "13": "landlock", "2": "not there", "3": "not there",
    "30": "namespaces", "10": "cgroup", "11": "cgroup", "12": "rlimits", "24": "rlimits", "27": "rlimits",
    "28": "folder", "9": "kernel", "ValueError": "rlimits", "MemoryError": "rlimits", "OperationalError": "landlock",
}  # fmt: skip
LAYER_OF_STATUS = {"timeout": "clock", "wall": "clock", "oom": "rlimits", "flood": "rlimits"}
REASON = re.compile(r"STOPPED (\S+)|\[Errno (\d+)\]")
RAN_ON = "it ran for"
SLOW_MACHINE_S = 5.0  # a busy machine may take so long to kill a run whose time is up
MISTAKES = ("NameError", "AttributeError", "TypeError", "SyntaxError", "ImportError", "ModuleNotFoundError")


async def assault(sandbox: Runner, world: World, attacks: list[Attack]) -> list[Outcome]:
    """Try the attacks one after another, each followed by a look at the world and a run that must be as ever."""
    return [await try_attack(sandbox, world, one) for one in attacks]


async def try_attack(sandbox: Runner, world: World, one: Attack) -> Outcome:
    """Let one attack loose. One after which nothing can be run any more has got through."""
    try:
        result = await sandbox.run(program_of(one, world), limits=one.limits)
        after = await sandbox.run(HEALTH)
    except SandboxUnavailable as error:
        return Outcome(one.name, one.kind, "killed", f"it ended the sandbox: {error}", "", 0.0)
    breach = breach_of(one, result, world)
    slow = breach.startswith(RAN_ON)
    if not breach and (after.status, after.stdout) != ("ok", HEALTHY):
        breach = f"the next run came out as {after.status}: {after.stdout}{after.stderr}"
        slow = after.status in ("timeout", "wall")
    return Outcome(one.name, one.kind, result.status, breach, layer_of(one, result), result.wall_s, slow)


def program_of(one: Attack, world: World) -> str:
    """The source text, with the world's names put in."""
    text = one.program
    for name, value in world.names().items():
        text = text.replace(f"@{name}@", value)
    return PRELUDE + text


def breach_of(one: Attack, result: Result, world: World) -> str:
    """What got through, or an empty string."""
    if "BREACH" in result.stdout:
        return f"it says so itself: {result.stdout[:200]}"
    if any(f"STOPPED {mistake}" in result.stdout for mistake in MISTAKES):
        return f"the attack itself is at fault: {result.stdout[:200]}"
    if world.secret in result.stdout + result.stderr:
        return "it printed a secret"
    if max(len(result.stdout), len(result.stderr)) > one.limits.output_bytes:
        return "its output was not bounded"
    if result.wall_s > one.limits.clock_s + SLOW_MACHINE_S:
        return f"{RAN_ON} {result.wall_s:.1f} s"
    if one.ends and result.status not in (*one.ends, "timeout", "wall"):
        return f"it ended as {result.status}: {result.stderr[-200:]}"
    return world.damage()


def layer_of(one: Attack, result: Result) -> str:
    """What stopped the attack, as far as its own words and its end tell."""
    if one.layer or result.status in LAYER_OF_STATUS:
        return one.layer or LAYER_OF_STATUS[result.status]
    found = REASON.search(result.stdout + result.stderr)
    reason = (found[1] or found[2]) if found else result.status
    return LAYER_OF_REASON.get(reason, reason)
