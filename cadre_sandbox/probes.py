"""Probes: hostile programs that show whether a level of confinement holds on this machine.

An attack runs in the sandbox and prints BREACH if it succeeded. Its other effects are observed from outside, with a
`World` of a planted secret, a listener and a neighbouring process. The few attacks here are run whenever a level is
chosen; the full catalogue of some 470, with a larger world, is in the tests.
"""

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self

from cadre_sandbox.errors import SandboxUnavailable
from cadre_sandbox.records import Limits, Result, Status

QUICK = Limits(cpu_s=0.15)
ROOM = Limits(cpu_s=2.0)
FOLDER = Limits(cpu_s=2.0, folder_mb=2)


class Runner(Protocol):
    """The interface that attacks need: a `Sandbox`, or anything with its `run`."""

    level: str

    async def run(self, program: str, stdin: str = "", limits: Limits = ...) -> Result: ...


@dataclass(frozen=True)
class Attack:
    """A hostile program, in Python source text with @NAME@ where the world's names go.

    It calls `attack(function)`, which prints BREACH if the function succeeds and STOPPED with the reason if it raises.
    Other effects are observed from outside; see `World`.

    layer   the layer that stops it, if its result does not show that
    ends    the only statuses, besides `timeout` and `wall`, that count as held; any if empty
    limits  the limits of its run
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
    """Return an attack that is one expression; it succeeds if the expression raises nothing."""
    return Attack(name, kind, f"attack(lambda: {expression})", ends, limits, layer)


@dataclass(frozen=True)
class Outcome:
    """The result of an attack: `breach` describes what succeeded, empty if nothing did; `layer` is what stopped it.

    `slow` is True if the breach is only a run that took too long, which also happens on a busy machine.
    """

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


FORBIDDEN = "/tmp/cadre-attack"
PRELUDE = """
import os, socket
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


class World:
    """A context manager that plants targets for attacks, owned by this process's user like a trainer's files."""

    # Comes before each attack program.
    prelude: ClassVar[str] = PRELUDE

    def __enter__(self) -> Self:
        self.folder = tempfile.mkdtemp(prefix="cadre-world-")
        self.secret = secrets.token_hex(16)
        self.secret_path = self.write("secret", self.secret)
        self.neighbour = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"])
        # Listeners that only an attack would connect to.
        self.listeners = [self.listen_at(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))]
        return self

    def write(self, name: str, text: str) -> str:
        """Plant a file and return its path."""
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    @staticmethod
    def listen_at(family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
        listener = socket.socket(family, kind)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        return listener

    def names(self) -> dict[str, str]:
        """Return the values of the @NAMES@ in an attack."""
        return {
            "SECRET": self.secret_path,
            "NEIGHBOUR": str(self.neighbour.pid),
            "TCP": str(self.listeners[0].getsockname()[1]),
        }

    def damage(self) -> str:
        """Return a description of what an attack changed outside of the sandbox, or an empty string."""
        if self.neighbour.poll() is not None:
            return "the neighbour was killed"
        if not os.path.exists(self.secret_path) or Path(self.secret_path).read_text(encoding="utf-8") != self.secret:
            return "a file was changed"
        if os.path.exists(FORBIDDEN):
            return f"{FORBIDDEN} was written"
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
        for listener in self.listeners:
            listener.close()
        self.neighbour.kill()
        self.neighbour.wait()
        shutil.rmtree(self.folder)


HEALTH = """
import json, math, os
print(sorted([3, 1, 2]), json.dumps({'a': math.floor(2.5)}), len(os.environ))
"""
HEALTHY = '[1, 2, 3] {"a": 2} 0\n'
# The layer that stopped an attack, by the errno or the exception that the attack got.
LAYER_OF_REASON = {
    "1": "seccomp", "38": "seccomp", "-3": "seccomp", "13": "landlock", "2": "not there", "3": "not there",
    "30": "namespaces", "10": "cgroup", "11": "cgroup", "12": "rlimits", "24": "rlimits", "27": "rlimits",
    "28": "folder", "9": "kernel", "ValueError": "rlimits", "MemoryError": "rlimits", "OperationalError": "landlock",
}  # fmt: skip
LAYER_OF_STATUS = {"timeout": "clock", "wall": "clock", "oom": "rlimits", "flood": "rlimits"}
REASON = re.compile(r"STOPPED (\S+)|\[Errno (\d+)\]")
RAN_ON = "it ran for"
# A busy machine may take so long to kill a run whose time is up.
SLOW_MACHINE_S = 5.0
MISTAKES = ("NameError", "AttributeError", "TypeError", "SyntaxError", "ImportError", "ModuleNotFoundError")


async def assault(sandbox: Runner, world: World, attacks: list[Attack]) -> list[Outcome]:
    """Run the attacks one after another; after each one check the world, and that a harmless program still runs."""
    return [await try_attack(sandbox, world, attack) for attack in attacks]


async def try_attack(sandbox: Runner, world: World, attack: Attack) -> Outcome:
    """Run one attack. An attack after which nothing can be run any more has succeeded."""
    try:
        result = await sandbox.run(program_of(attack, world), limits=attack.limits)
        next_result = await sandbox.run(HEALTH)
    except SandboxUnavailable as error:
        return Outcome(attack.name, attack.kind, "killed", f"it ended the sandbox: {error}", "", 0.0)
    breach = breach_of(attack, result, world)
    slow = breach.startswith(RAN_ON)
    if not breach and (next_result.status, next_result.stdout) != ("ok", HEALTHY):
        breach = f"the next run came out as {next_result.status}: {next_result.stdout}{next_result.stderr}"
        slow = next_result.status in ("timeout", "wall")
    return Outcome(attack.name, attack.kind, result.status, breach, layer_of(attack, result), result.wall_s, slow)


def program_of(attack: Attack, world: World) -> str:
    """Return the source text of an attack with the world's names filled in."""
    text = attack.program
    for name, value in world.names().items():
        text = text.replace(f"@{name}@", value)
    return world.prelude + text


def breach_of(attack: Attack, result: Result, world: World) -> str:
    """Return a description of what the attack achieved, or an empty string."""
    if "BREACH" in result.stdout:
        return f"it says so itself: {result.stdout[:200]}"
    if any(f"STOPPED {mistake}" in result.stdout for mistake in MISTAKES):
        return f"the attack itself is at fault: {result.stdout[:200]}"
    if world.secret in result.stdout + result.stderr:
        return "it printed a secret"
    if max(len(result.stdout), len(result.stderr)) > attack.limits.output_bytes:
        return "its output was not bounded"
    if result.wall_s > attack.limits.clock_s + SLOW_MACHINE_S:
        return f"{RAN_ON} {result.wall_s:.1f} s"
    if attack.ends and result.status not in (*attack.ends, "timeout", "wall"):
        return f"it ended as {result.status}: {result.stderr[-200:]}"
    return world.damage()


def layer_of(attack: Attack, result: Result) -> str:
    """Return the layer that stopped the attack, as far as its output and status show."""
    if attack.layer or result.status in LAYER_OF_STATUS:
        return attack.layer or LAYER_OF_STATUS[result.status]
    match = REASON.search(result.stdout + result.stderr)
    reason = (match[1] or match[2]) if match else result.status
    return LAYER_OF_REASON.get(reason, reason)
