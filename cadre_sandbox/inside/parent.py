"""The warm parent: started by exec, it forks a child for each run, enforces its limits, and reports how it ended.

It trusts only the trainer. It never reads a job, an input or an output: those pass through it as descriptors. It ends
when the trainer does, and its children end with it.
"""

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from . import addresses, groups, kernel, layers, namespaces, watch, wire
from .child import run_child

# Seconds between two checks of the children's CPU time and threads.
TICK_S = 0.02
SIGKILLED = -9


class TrainerGone(Exception):
    """The trainer closed its end in the middle of a run; the children must be killed."""


@dataclass
class Child:
    """A running child. Owned by one request; `reap` ends it."""

    pid: int
    handle: int  # a pidfd
    channel: socket.socket
    armed: list[str]
    error: str = ""
    killed: str = ""  # the limit for which the parent killed it, if it did
    ended: bool = False  # True if it ended before the parent had reason to end it
    reaped: tuple[int, resource.struct_rusage] | None = None  # status and times, where only reaping tells that it ended


@dataclass(frozen=True)
class Nursery:
    """The settings with which children are forked: their armour, a descriptor of /proc, and their control group."""

    armour: layers.Armour
    proc: int | None
    group: groups.Group | None = None

    def fork(self) -> Child:
        """Return a new child that is armed and waits for a job. Its `armed` is empty if a layer failed."""
        parent_end, child_end = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            parent_end.close()
            run_child(child_end, self.armour)
        child_end.close()
        # The child joins the group before it is sent a job: until then it runs no foreign code that could escape.
        if self.group is not None:
            self.group.join(pid)
        handle = os.pidfd_open(pid) if sys.platform == "linux" else -1
        received = wire.receive(parent_end)
        if received is None:
            return Child(pid, handle, parent_end, [], "the child died while it armed its layers")
        armed = received[0]["layers"]
        group_layers = [layers.GROUP_LAYER] if armed and self.group is not None else []
        return Child(pid, handle, parent_end, armed + group_layers, received[0]["error"])


def wait_for_end(running: list[Child], control: socket.socket, seconds: float) -> list[Child]:
    """Wait until a child ends, at most `seconds`, and return those that ended. Raises TrainerGone."""
    if sys.platform != "linux":  # no pidfd
        time.sleep(min(seconds, 0.005))
        return [child for child in running if has_ended(child)]
    poller = select.poll()
    poller.register(control, select.POLLRDHUP)
    for child in running:
        poller.register(child.handle, select.POLLIN)
    ready = {descriptor for descriptor, _ in poller.poll(max(seconds, 0) * 1000)}
    if control.fileno() in ready:
        raise TrainerGone
    return [child for child in running if child.handle in ready]


def has_ended(child: Child) -> bool:
    """Return True if a child has ended, without reaping it where the system can: macOS cannot before Python 3.13."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    child.reaped = (status, usage) if pid else None
    return child.reaped is not None


def supervise(nursery: Nursery, running: list[Child], request: dict[str, Any], control: socket.socket) -> None:
    """Wait until the first child ends, and kill children that pass a limit."""
    # The first child decides: the program, or the tester of a pair. None is reaped here: until `reap` waits for a dead
    # child, its times can be read and its process id is not used again.
    started = time.monotonic()
    main = running[0]
    alive = list(running)
    while main in alive:
        elapsed = time.monotonic() - started
        for child in wait_for_end(alive, control, min(TICK_S, request["wall_s"] - elapsed)):
            alive.remove(child)
            child.ended = True
        pids, elapsed = [child.pid for child in running], time.monotonic() - started
        out_of_time = main in alive and watch.out_of_time(nursery.proc, pids, request, elapsed)
        for child in alive:
            child.killed = (
                child.killed or watch.excess(nursery.proc, child.pid, request) or ("wall" if out_of_time else "")
            )
            if child.killed:
                os.kill(child.pid, signal.SIGKILL)


def reap(child: Child, level: str, started: float) -> dict[str, Any]:
    """Kill a child that may still run, wait for it, and return how it ended, times in seconds."""
    if child.reaped is None:
        os.kill(child.pid, signal.SIGKILL)
        _, status, usage = os.wait4(child.pid, 0)
    else:
        status, usage = child.reaped
    if level == "process":
        kill_session(child.pid)
    child.channel.close()
    if child.handle >= 0:
        os.close(child.handle)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "killed": child.killed,
        "ended": child.ended,
        "wall_s": time.monotonic() - started,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "layers": child.armed,
        "error": child.error,
    }


def kill_session(leader: int) -> None:
    """Kill the processes that a child left in its process group; only level `process` allows any."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def run(
    nursery: Nursery, spare: Child | None, request: dict[str, Any], descriptors: list[int], control: socket.socket
) -> list[dict[str, Any]]:
    """Run the children of one request, with the spare child as the first, and return how each ended."""
    count = request["children"]
    children = [spare] if spare else []
    children += [nursery.fork() for _ in range(count - len(children))]
    started = time.monotonic()
    try:
        if all(child.armed for child in children):
            peers = socket.socketpair() if len(children) == 2 else ()
            if nursery.group is not None:
                nursery.group.limit(request)
            for index, child in enumerate(children):
                layers.tighten(child.pid, request)
                own_peer = [peer.fileno() for peer in peers[index : index + 1]]
                wire.send(child.channel, request, descriptors[4 * index : 4 * index + 4] + own_peer)
            for peer in peers:
                peer.close()
            supervise(nursery, children, request, control)
    finally:
        endings = end_children(nursery, children, started)
    return endings


def end_children(nursery: Nursery, children: list[Child], started: float) -> list[dict[str, Any]]:
    """End the children and all processes that they started, and return how each child ended."""
    # The first may have ended because the other one did, which then is exiting and has not been killed.
    for child in children:
        child.ended = child.ended or watch.is_exiting(nursery.proc, child.pid)
    if nursery.group is not None:
        nursery.group.kill()
    endings = [reap(child, nursery.armour.profile.level, started) for child in children]
    if nursery.group is None:
        return endings
    nursery.group.wait_until_empty()
    with contextlib.suppress(ChildProcessError):
        while nursery.armour.profile.level == "process" and os.waitpid(-1, os.WNOHANG)[0]:
            pass
    out_of_memory = nursery.group.ran_out_of_memory()
    for ending in endings:
        # A child that got SIGKILL, but not from its parent for passing a limit.
        if out_of_memory and ending["code"] == SIGKILLED and not ending["killed"]:
            ending["killed"] = "memory"
    return endings


def serve(control: socket.socket, profile: layers.Profile, folder: str, keep_spare: bool) -> None:
    """Report the armed layers, then answer requests until the trainer closes its end; leave no process behind."""
    # /proc and the control group are opened before the namespaces are entered, from which neither can be reached.
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY) if sys.platform == "linux" else None
    group = open_group(folder) if folder else None
    init_pid = (
        namespaces.enter(layers.visible_paths(profile.packages, profile.executables))
        if profile.level == "isolated"
        else None
    )
    nursery = Nursery(layers.make_armour(profile), proc, group)
    layers.arm_parent(profile.level)
    # Everything is loaded by now: fix the layout of the memory that the children inherit.
    addresses.fill_holes()
    # A collection would write to every object that it visits, and copy pages that parent and children share.
    gc.freeze()
    gc.disable()  # a child turns it on again
    spare: Child | None = nursery.fork()
    if keep_spare and spare is not None:
        watch.rehearse(proc, spare.pid)
    try:
        wire.send(control, {"layers": spare.armed, "error": spare.error} if spare else {})
        while wait_for_request(control):
            handed, spare = [spare], None
            if not answer_request(nursery, handed, control):
                break
            # Forked only now: nothing of the request is left in memory.
            spare = nursery.fork() if keep_spare else None
    except (TrainerGone, BrokenPipeError):
        pass  # nobody is left to answer; or a waiting child died, and the trainer tries again on a new parent
    finally:
        if spare is not None:
            reap(spare, profile.level, 0.0)
        if init_pid is not None:
            os.kill(init_pid, signal.SIGKILL)
            # Process 1 ends only after all others of its namespace, and those of an aborted run are this process's
            # children: wait for them too.
            while os.wait()[0] != init_pid:
                pass


def open_group(folder: str) -> groups.Group:
    """Open the children's control group, and become the reaper of the processes that they leave behind."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    return groups.open_group(folder)


def answer_request(nursery: Nursery, handed: list[Child | None], control: socket.socket) -> bool:
    """Run one request and send how its children ended; return False if the trainer has closed its end.

    `handed` holds the spare child, if any, which is used unless the request needs a folder.
    """
    # Popped from a list, so that the caller keeps no reference to the child while the next one is forked.
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
    """Run the children of one request with a writable tmpfs of limited size, and remove it afterwards."""
    # Landlock rules name open folders, so each new tmpfs needs a rule set of its own, and the spare child has another.
    namespaces.mount_folder(request["folder_mb"])
    armour = layers.make_armour(replace(nursery.armour.profile, folder=namespaces.FOLDER))
    assert armour.ruleset is not None
    try:
        return run(replace(nursery, armour=armour), None, request, descriptors, control)
    finally:
        os.close(armour.ruleset)
        namespaces.unmount_folder()


def wait_for_request(control: socket.socket) -> bool:
    """Wait until there is something to read; return False if the trainer has died."""
    # Another process that was forked from the trainer may hold its end of the socket open, so look at the parent's id.
    trainer = os.getppid()
    while not select.select([control], [], [], 1.0)[0]:
        if os.getppid() != trainer:
            return False
    return True
