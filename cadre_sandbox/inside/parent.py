"""The warm parent: started by exec, it forks a child a run, keeps it to its limits, and reports how it ended.

It trusts the trainer and nobody else. It never reads a job, an input or an output: those pass through it as
descriptors. It ends when the trainer does, and its children end with it.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from . import addresses, child, groups, kernel, layers, namespaces, watch, wire

TICK_S = 0.02
SIGKILLED = -9


class TrainerGone(Exception):
    """The trainer closed its end in the middle of a run; the children are to be taken along."""


@dataclass
class Child:
    """A living child as its parent sees it. Owned by one request; `reap` ends it."""

    pid: int
    handle: int  # a pidfd
    channel: socket.socket
    armed: list[str]
    error: str = ""
    killed: str = ""  # why the parent killed it, if it did
    ended: bool = False  # before the parent had reason to end it


@dataclass(frozen=True)
class Nursery:
    """What every child is forked from: its armour, where /proc can be looked at, and its control group, if any."""

    armour: layers.Armour
    proc: int | None
    group: groups.Group | None = None

    def fork(self) -> Child:
        """A new child, armed and waiting. Its `armed` is empty when a layer failed."""
        here, there = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            here.close()
            child.live(there, self.armour)
        there.close()
        if self.group is not None:
            self.group.join(pid)
        handle = os.pidfd_open(pid) if sys.platform == "linux" else -1
        received = wire.receive(here)
        if received is None:
            return Child(pid, handle, here, [], "the child died while it armed its layers")
        armed = received[0]["layers"]
        more = [layers.GROUP_LAYER] if armed and self.group is not None else []
        return Child(pid, handle, here, armed + more, received[0]["error"])


def wait_for_one(running: list[Child], control: socket.socket, seconds: float) -> list[Child]:
    """Wait until a child ends, at most `seconds`; those that ended. Raises TrainerGone."""
    if sys.platform != "linux":
        time.sleep(min(seconds, 0.005))
        return [one for one in running if os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)]
    poller = select.poll()
    poller.register(control, select.POLLRDHUP)
    for one in running:
        poller.register(one.handle, select.POLLIN)
    ready = {descriptor for descriptor, _ in poller.poll(max(seconds, 0) * 1000)}
    if control.fileno() in ready:
        raise TrainerGone
    return [one for one in running if one.handle in ready]


def supervise(nursery: Nursery, running: list[Child], request: dict[str, Any], control: socket.socket) -> None:
    """Wait until the first child (the one that matters) ends, killing what passes a limit. None is reaped here."""
    started = time.monotonic()
    main = running[0]
    alive = list(running)
    while main in alive:
        elapsed = time.monotonic() - started
        for one in wait_for_one(alive, control, min(TICK_S, request["wall_s"] - elapsed)):
            alive.remove(one)
            one.ended = True
        pids, elapsed = [one.pid for one in running], time.monotonic() - started
        late = main in alive and watch.out_of_time(nursery.proc, pids, request, elapsed)
        for one in alive:
            one.killed = one.killed or watch.excess(nursery.proc, one.pid, request) or ("wall" if late else "")
            if one.killed:
                os.kill(one.pid, signal.SIGKILL)


def reap(one: Child, level: str, started: float) -> dict[str, Any]:
    """End a child that may still live, collect it, and say how it ended; times in seconds."""
    os.kill(one.pid, signal.SIGKILL)
    _, status, usage = os.wait4(one.pid, 0)
    if level == "process":
        kill_session(one.pid)
    one.channel.close()
    if one.handle >= 0:
        os.close(one.handle)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "killed": one.killed,
        "ended": one.ended,
        "wall_s": time.monotonic() - started,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "layers": one.armed,
        "error": one.error,
    }


def kill_session(leader: int) -> None:
    """Kill what a child left in its process group; it can leave something only at level `process`."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def run(
    nursery: Nursery, spare: Child | None, request: dict[str, Any], descriptors: list[int], control: socket.socket
) -> list[dict[str, Any]]:
    """One request from the first descriptor to the last child; how each child ended."""
    count = request["children"]
    children = [spare] if spare else []
    children += [nursery.fork() for _ in range(count - len(children))]
    started = time.monotonic()
    try:
        if all(one.armed for one in children):
            hand_out(nursery, children, request, descriptors)
            supervise(nursery, children, request, control)
    finally:
        endings = end(nursery, children, started)
    return endings


def end(nursery: Nursery, children: list[Child], started: float) -> list[dict[str, Any]]:
    """End the children and whatever they have started; how each child ended."""
    for one in children:  # the first may have ended because another did, which is on its way out
        one.ended = one.ended or watch.exiting(nursery.proc, one.pid)
    if nursery.group is not None:
        nursery.group.kill()
    endings = [reap(one, nursery.armour.profile.level, started) for one in children]
    if nursery.group is None:
        return endings
    nursery.group.wait_until_empty()
    collect_orphans(nursery.armour.profile.level)
    short = nursery.group.ran_out_of_memory()
    return [told | {"killed": "memory"} if short and is_unexplained(told) else told for told in endings]


def is_unexplained(told: dict[str, Any]) -> bool:
    """Whether a child was killed, and not by its parent for passing a limit."""
    return told["code"] == SIGKILLED and not told["killed"]


def collect_orphans(level: str) -> None:
    """Collect what dead children left behind; only at level `process` could they start anything."""
    with contextlib.suppress(ChildProcessError):
        while level == "process" and os.waitpid(-1, os.WNOHANG)[0]:
            pass


def hand_out(nursery: Nursery, children: list[Child], request: dict[str, Any], descriptors: list[int]) -> None:
    """Give each child its limits, then its four descriptors and, when there are two, its end of a socket."""
    peers = socket.socketpair() if len(children) == 2 else ()
    if nursery.group is not None:
        nursery.group.limit(request)
    for place, one in enumerate(children):
        layers.tighten(one.pid, request)
        own = descriptors[4 * place : 4 * place + 4] + [peer.fileno() for peer in peers[place : place + 1]]
        wire.send(one.channel, request, own)
    for peer in peers:
        peer.close()


def serve(control: socket.socket, profile: layers.Profile, folder: str, keep_spare: bool) -> None:
    """Say what holds, then answer requests until the trainer closes its end; leave no process behind."""
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY) if sys.platform == "linux" else None
    limited = open_group(folder) if folder else None
    first = (
        namespaces.enter(layers.visible_paths(profile.packages, profile.executables))
        if profile.level == "isolated"
        else None
    )
    nursery = Nursery(layers.make_armour(profile), proc, limited)
    layers.arm_parent(profile.level)
    addresses.fill_holes()
    gc.freeze()
    gc.disable()  # a child turns it on again
    spare: Child | None = nursery.fork()
    if keep_spare and spare is not None:
        watch.rehearse(proc, spare.pid)
    try:
        wire.send(control, {"layers": spare.armed, "error": spare.error} if spare else {})
        while wait_for_request(control):
            handed, spare = [spare], None
            if not answer(nursery, handed, control):
                break
            spare = nursery.fork() if keep_spare else None  # nothing of the request is left in memory by now
    except (TrainerGone, BrokenPipeError):
        pass  # nobody is left to answer; or a child died unasked, and the trainer tries again on a new parent
    finally:
        if spare is not None:
            reap(spare, profile.level, 0.0)
        if first is not None:
            os.kill(first, signal.SIGKILL)
            # It ends once all of its namespace are collected, and those of a run that was broken off are left to us.
            while os.wait()[0] != first:
                pass


def open_group(folder: str) -> groups.Group:
    """The children's control group; what they leave behind comes to this process, which can collect it."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    return groups.open_group(folder)


def answer(nursery: Nursery, handed: list[Child | None], control: socket.socket) -> bool:
    """Run one request, with the spare child that is handed over where it fits, and send how it ended; false when there
    is none to come.
    """
    spare, received = handed.pop(), wire.receive(control)
    if received is None:
        if spare is not None:
            reap(spare, nursery.armour.profile.level, 0.0)
        return False
    request, descriptors = received
    if request["folder_mb"]:
        if spare is not None:
            reap(spare, nursery.armour.profile.level, 0.0)
        endings = run_with_folder(nursery, request, descriptors, control)
    else:
        endings = run(nursery, spare, request, descriptors, control)
    for descriptor in descriptors:
        os.close(descriptor)
    wire.send(control, {"endings": endings})
    return True


def run_with_folder(
    nursery: Nursery, request: dict[str, Any], descriptors: list[int], control: socket.socket
) -> list[dict[str, Any]]:
    """One request whose children may write in a new tmpfs of limited size, gone afterwards."""
    namespaces.mount_folder(request["folder_mb"])
    armour = layers.make_armour(replace(nursery.armour.profile, folder=namespaces.FOLDER))
    assert armour.ruleset is not None
    try:
        return run(replace(nursery, armour=armour), None, request, descriptors, control)
    finally:
        os.close(armour.ruleset)
        namespaces.unmount_folder()


def wait_for_request(control: socket.socket) -> bool:
    """Wait until there is something to read; false when the trainer has died and left its end to another process."""
    trainer = os.getppid()
    while not select.select([control], [], [], 1.0)[0]:
        if os.getppid() != trainer:
            return False
    return True
