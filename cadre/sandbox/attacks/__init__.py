"""Attacks that the sandbox must hold against: tried by `cadre check sandbox`, the tests and the benchmark."""

import re

from cadre.errors import SandboxUnavailable
from cadre.sandbox.attacks import endurance, files, kernel, network, processes, resources, spoils
from cadre.sandbox.attacks.records import Attack, Outcome, Runner
from cadre.sandbox.attacks.world import World
from cadre.sandbox.records import Result

__all__ = [
    "ATTACKS", "ON_FILES", "SLOW", "Attack", "Outcome", "Runner", "World", "assault", "of_many", "program_of", "sample",
    "suited", "try_attack",
]  # fmt: skip

ATTACKS: list[Attack] = [
    *endurance.ATTACKS, *resources.ATTACKS, *processes.ATTACKS, *files.ATTACKS,
    *network.ATTACKS, *kernel.ATTACKS, *spoils.ATTACKS,
]  # fmt: skip

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
# Kinds of attacks that take their time, or that may rightly end in more than one way.
SLOW = (
    "endless work", "waiting", "ignored signals", "threads", "allocation", "caught shortage", "flood", "disk", "crash",
)  # fmt: skip
# Kinds of attacks on files, which Landlock has to stop, whatever its version.
ON_FILES = (
    "secrets by path", "secrets by call", "listing", "new files", "overwriting", "emptying", "metadata", "tree",
    "locks", "devices",
)  # fmt: skip
RAN_ON = "it ran for"
SLOW_MACHINE_S = 5.0  # a busy machine may take so long to kill a run whose time is up
MISTAKES = ("NameError", "AttributeError", "TypeError", "SyntaxError", "ImportError", "ModuleNotFoundError")


def suited(sandbox: Runner) -> list[Attack]:
    """The attacks that can be tried at the sandbox's level: without a writable folder there is none to fill."""
    return [one for one in ATTACKS if sandbox.level == "isolated" or not one.limits.folder_mb]


def sample() -> list[Attack]:
    """A few attacks, one a layer, that take no time: what the choice of a level rests on."""
    chosen = ("secret by path", "file in the temporary folder", "fork", "kill a neighbour", "TCP connection")
    return [one for one in ATTACKS if one.name in chosen]


def of_many() -> list[Attack]:
    """The attacks by many processes together, which at level `process` only a control group stops."""
    return [one for one in ATTACKS if one.name in ("many processes", "memory of many processes")]


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
