"""Control groups (cgroup v2), where a part of their tree is ours to divide: found, made, and cleaned up after a crash.

A group of ours lies directly below the one that was delegated and is called `cadre-NAMESPACE-PID-START-NUMBER`, after
the process that made it; when that process is gone, the next start kills what is left in the group and removes it.
See https://docs.kernel.org/admin-guide/cgroup-v2.html, "Delegation" and "No Internal Process Constraint". Leaves out
cgroup v1, whose controllers cannot be delegated safely.
"""

import contextlib
import functools
import itertools
import logging
import os
import re
import select
from dataclasses import dataclass

log = logging.getLogger("cadre_sandbox")

NEEDED = ("memory", "pids")
WANTED = (*NEEDED, "cpu")
MARKS = ("user.delegate", "trusted.delegate")  # what systemd puts on a group with Delegate=yes
EMPTY_MS = 1000
NAME = re.compile(r"cadre-(\d+)-(\d+)-(\d+)-\d+")

_numbers = itertools.count()


class NotDelegated(Exception):
    """No control group in which we may make others; the text says why."""


@dataclass(frozen=True)
class Delegation:
    """A group below which we may make others, for example `Delegation("/sys/fs/cgroup/job", ("memory", "pids"))`.

    controllers   those of `WANTED` that it passes on to the groups below
    leave         this process is alone in it, and must move into a group of its own before it can pass any on
    """

    folder: str
    controllers: tuple[str, ...]
    leave: bool = False

    @property
    def described(self) -> str:
        return f"{', '.join(self.controllers)} in {self.folder}"


def find(process: str = "/proc/self") -> Delegation:
    """The nearest group, from this process's own upwards, that was delegated to us. Raises NotDelegated."""
    own, top = own_group(process)
    reasons = []
    for folder in upwards(own, top):
        found = delegation_of(folder, folder == own, folder == top)
        if isinstance(found, Delegation):
            return found
        reasons.append(f"{folder} {found}")
    raise NotDelegated("; ".join(reasons))


def own_group(process: str) -> tuple[str, str]:
    """The folder of this process's group, and the uppermost one that is mounted. Raises NotDelegated."""
    groups = [line.removeprefix("0::") for line in read_lines(f"{process}/cgroup") if line.startswith("0::")]
    mounts = [mount for line in read_lines(f"{process}/mountinfo") if (mount := unified_mount(line))]
    for root, point in mounts:
        for group in groups:
            if ".." not in group and (group == root or group.startswith(root.rstrip("/") + "/")):
                return os.path.normpath(f"{point}/{os.path.relpath(group, root)}"), point
    raise NotDelegated("no cgroup v2 hierarchy is mounted that holds this process")


def unified_mount(line: str) -> tuple[str, str] | None:
    """(root, mount point) of a line of mountinfo (proc_pid_mountinfo(5)) that is a mount of cgroup v2."""
    before, _, after = line.partition(" - ")
    if after.split(" ")[0] != "cgroup2":
        return None
    root, point = (re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), part) for part in before.split(" ")[3:5])
    return root, point


def upwards(folder: str, top: str) -> list[str]:
    """The folder and those above it, up to `top`."""
    return [folder] if folder == top else [folder, *upwards(os.path.dirname(folder), top)]


def delegation_of(folder: str, own: bool, top: bool) -> Delegation | str:
    """What the group gives us, or why it gives nothing."""
    if not writable(folder):
        return "is not ours to write"
    if os.geteuid() == 0 and not top and not marked(folder):
        return "is root's like any other, and not marked as delegated"
    passed = controllers_in(f"{folder}/cgroup.subtree_control")
    if set(NEEDED) <= set(passed):
        return Delegation(folder, passed)
    present = controllers_in(f"{folder}/cgroup.controllers")
    if not set(NEEDED) <= set(present):
        return f"has no controllers {' and '.join(name for name in NEEDED if name not in present)}"
    others = [pid for pid in read_lines(f"{folder}/cgroup.procs") if pid != str(os.getpid())]
    if own and not others and os.path.exists(f"{folder}/cgroup.type"):  # the root of all groups has no type
        return Delegation(folder, present, leave=True)
    return f"passes no memory and pids on to groups below, and holds {len(others)} other processes"


def writable(folder: str) -> bool:
    paths = (folder, f"{folder}/cgroup.procs", f"{folder}/cgroup.subtree_control")
    return all(os.access(path, os.W_OK, effective_ids=True) for path in paths)


def marked(folder: str) -> bool:
    for name in MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def controllers_in(path: str) -> tuple[str, ...]:
    words = " ".join(read_lines(path)).split()
    return tuple(name for name in WANTED if name in words)


def settle(found: Delegation) -> None:
    """Make the delegated group ready: without what dead processes left, and passing its controllers on."""
    clean_up(found.folder)
    if found.leave:
        write(f"{make(found)}/cgroup.procs", str(os.getpid()))
        write(f"{found.folder}/cgroup.subtree_control", " ".join(f"+{name}" for name in found.controllers))


def make(found: Delegation) -> str:
    """The folder of a new group. Raises OSError."""
    pid = os.getpid()
    folder = f"{found.folder}/cadre-{pid_namespace()}-{pid}-{start_of(pid)}-{next(_numbers)}"
    os.mkdir(folder)
    return folder


def clean_up(folder: str) -> None:
    """Remove the groups of processes that are gone. Those of other users and process namespaces are left alone."""
    for name in os.listdir(folder):
        path = f"{folder}/{name}"
        if is_left_over(name) and os.stat(path).st_uid == os.geteuid():
            remove(path)


def is_left_over(name: str) -> bool:
    """Whether a group has the name of a process of ours that is gone."""
    parts = NAME.fullmatch(name)
    return parts is not None and int(parts[1]) == pid_namespace() and start_of(int(parts[2])) != int(parts[3])


def remove(folder: str) -> None:
    """Kill what is in a group of ours and take it away; what cannot go is logged, and tried again at the next start."""
    try:
        with contextlib.suppress(FileNotFoundError):
            write(f"{folder}/cgroup.kill", "1")
            wait_until_empty(folder)
        os.rmdir(folder)
    except FileNotFoundError:
        return  # somebody else was faster
    except OSError as error:
        log.warning("the control group %s is left over: %s", folder, error)


def wait_until_empty(folder: str) -> None:
    """Wait until no process is left in the group, a second at most."""
    with open(f"{folder}/cgroup.events", "rb", buffering=0) as events:
        poller = select.poll()
        poller.register(events, select.POLLPRI)
        while b"populated 1" in os.pread(events.fileno(), 4096, 0):
            if not poller.poll(EMPTY_MS):
                return


@functools.cache
def pid_namespace() -> int:
    """The number of the namespace in which process ids mean what they mean here."""
    return os.stat("/proc/self/ns/pid").st_ino


def start_of(pid: int) -> int:
    """When a process started, in clock ticks since boot (proc_pid_stat(5)); 0 when there is none, or a zombie."""
    _, _, fields = "\n".join(read_lines(f"/proc/{pid}/stat")).rpartition(") ")
    return int(fields.split()[19]) if fields and fields[0] not in "ZX" else 0


def read_lines(path: str) -> list[str]:
    """The lines of a file; none where there is no such file, or no such process any more."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []


def write(path: str, text: str) -> None:
    """Write to a file that exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)
