"""Find a delegated control group (cgroup v2), create groups below it, and remove those that a crash left behind.

The groups created here lie directly below the delegated one and are called `cadre-NAMESPACE-PID-START-NUMBER` after
the process that created them. When that process is gone, the next start kills what is left in the group and removes it.
See https://docs.kernel.org/admin-guide/cgroup-v2.html, "Delegation" and "No Internal Process Constraint". cgroup v1 is
not supported: its controllers cannot be delegated safely.
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
# Extended attributes that systemd sets on a group with Delegate=yes.
MARKS = ("user.delegate", "trusted.delegate")
EMPTY_MS = 1000
NAME = re.compile(r"cadre-(\d+)-(\d+)-(\d+)-\d+")

_numbers = itertools.count()


class NotDelegated(Exception):
    """No control group in which this process may create others; the message says why."""


@dataclass(frozen=True)
class Delegation:
    """A group below which this process may create others: `Delegation("/sys/fs/cgroup/job", ("memory", "pids"))`.

    controllers   those of `WANTED` that the group enables, or can enable, for the groups below it
    leave         this process is the only one in the group and must move into a new child group first
    """

    folder: str
    controllers: tuple[str, ...]
    leave: bool = False

    @property
    def described(self) -> str:
        return f"{', '.join(self.controllers)} in {self.folder}"


def find(process: str = "/proc/self") -> Delegation:
    """Return the nearest delegated group, from this process's own group upwards. Raises NotDelegated."""
    own_folder, mount_point = own_group(process)
    reasons = []
    for folder in upwards(own_folder, mount_point):
        delegation = delegation_of(folder, folder == own_folder, folder == mount_point)
        if isinstance(delegation, Delegation):
            return delegation
        reasons.append(f"{folder} {delegation}")
    raise NotDelegated("; ".join(reasons))


def own_group(process: str) -> tuple[str, str]:
    """Return the folder of this process's group and the mount point of its hierarchy. Raises NotDelegated."""
    groups = [line.removeprefix("0::") for line in read_lines(f"{process}/cgroup") if line.startswith("0::")]
    mounts = [mount for line in read_lines(f"{process}/mountinfo") if (mount := unified_mount(line))]
    # A container may mount only a part of the hierarchy: `root` is the group that is mounted at `point`.
    for root, point in mounts:
        for group in groups:
            if ".." not in group and (group == root or group.startswith(root.rstrip("/") + "/")):
                return os.path.normpath(f"{point}/{os.path.relpath(group, root)}"), point
    raise NotDelegated("no cgroup v2 hierarchy is mounted that holds this process")


def unified_mount(line: str) -> tuple[str, str] | None:
    """Return (root, mount point) if a line of mountinfo (proc_pid_mountinfo(5)) is a mount of cgroup v2, else None."""
    mount_fields, _, file_system_fields = line.partition(" - ")
    if file_system_fields.split(" ")[0] != "cgroup2":
        return None
    # mountinfo writes spaces and backslashes of paths as octal escapes such as \040.
    root, point = (
        re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), part) for part in mount_fields.split(" ")[3:5]
    )
    return root, point


def upwards(folder: str, top: str) -> list[str]:
    """Return the folder and its parents up to `top`, innermost first."""
    return [folder] if folder == top else [folder, *upwards(os.path.dirname(folder), top)]


def delegation_of(folder: str, is_own: bool, is_top: bool) -> Delegation | str:
    """Return the delegation that a group offers, or the reason why it offers none."""
    if not writable(folder):
        return "is not ours to write"
    # Root may write every group, so write access shows no delegation: root needs systemd's mark, or the mounted root.
    if os.geteuid() == 0 and not is_top and not marked(folder):
        return "is root's like any other, and not marked as delegated"
    delegated = controllers_in(f"{folder}/cgroup.subtree_control")
    if set(NEEDED) <= set(delegated):
        return Delegation(folder, delegated)
    available = controllers_in(f"{folder}/cgroup.controllers")
    if not set(NEEDED) <= set(available):
        return f"has no controllers {' and '.join(name for name in NEEDED if name not in available)}"
    other_pids = [pid for pid in read_lines(f"{folder}/cgroup.procs") if pid != str(os.getpid())]
    # "No internal processes": a group that enables controllers for its children may hold no process, so this one must
    # be alone in it and leave. The root of all groups has no cgroup.type; it cannot be left in this way.
    if is_own and not other_pids and os.path.exists(f"{folder}/cgroup.type"):
        return Delegation(folder, available, leave=True)
    return f"passes no memory and pids on to groups below, and holds {len(other_pids)} other processes"


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


def settle(delegation: Delegation) -> None:
    """Remove what dead processes left in the delegated group, and enable its controllers for new child groups."""
    clean_up(delegation.folder)
    if delegation.leave:
        # Move out first: the kernel answers EBUSY to a group that holds processes and enables controllers.
        write(f"{make(delegation)}/cgroup.procs", str(os.getpid()))
        write(f"{delegation.folder}/cgroup.subtree_control", " ".join(f"+{name}" for name in delegation.controllers))


def make(delegation: Delegation) -> str:
    """Create a group and return its folder. Raises OSError."""
    pid = os.getpid()
    folder = f"{delegation.folder}/cadre-{pid_namespace()}-{pid}-{start_of(pid)}-{next(_numbers)}"
    os.mkdir(folder)
    return folder


def clean_up(folder: str) -> None:
    """Remove the groups of processes that are gone; groups of other users and process namespaces stay."""
    for name in os.listdir(folder):
        path = f"{folder}/{name}"
        if is_left_over(name) and os.stat(path).st_uid == os.geteuid():
            remove(path)


def is_left_over(name: str) -> bool:
    """Return True if the group is named after a process of this PID namespace that no longer runs."""
    # The start time tells a process from a later one with the same id.
    parts = NAME.fullmatch(name)
    return parts is not None and int(parts[1]) == pid_namespace() and start_of(int(parts[2])) != int(parts[3])


def remove(folder: str) -> None:
    """Kill all processes of a group and remove it. A failure is logged; the next start tries again."""
    try:
        with contextlib.suppress(FileNotFoundError):
            write(f"{folder}/cgroup.kill", "1")
            wait_until_empty(folder)
        os.rmdir(folder)
    except FileNotFoundError:
        return  # another process removed it first
    except OSError as error:
        log.warning("the control group %s is left over: %s", folder, error)


def wait_until_empty(folder: str) -> None:
    """Wait until no process is left in the group, at most EMPTY_MS milliseconds."""
    # The kernel reports a change of cgroup.events as POLLPRI; rmdir answers EBUSY while the group is populated.
    with open(f"{folder}/cgroup.events", "rb", buffering=0) as events:
        poller = select.poll()
        poller.register(events, select.POLLPRI)
        while b"populated 1" in os.pread(events.fileno(), 4096, 0):
            if not poller.poll(EMPTY_MS):
                return


@functools.cache
def pid_namespace() -> int:
    """Return the inode number of this process's PID namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def start_of(pid: int) -> int:
    """Return when a process started, in clock ticks since boot (proc_pid_stat(5)); 0 if it is gone or a zombie."""
    # The second field is the command name in brackets, which may itself hold spaces and brackets: split after the last.
    _, _, fields = "\n".join(read_lines(f"/proc/{pid}/stat")).rpartition(") ")
    return int(fields.split()[19]) if fields and fields[0] not in "ZX" else 0


def read_lines(path: str) -> list[str]:
    """Return the lines of a file, or none if the file or its process does not exist."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []


def write(path: str, text: str) -> None:
    """Write to an existing file in one system call, as the kernel's control files require."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)
