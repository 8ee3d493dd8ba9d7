"""The namespaces of level `isolated`: entered once by the warm parent, and used by all of its children.

The new root is an empty tmpfs with the libraries bound into it read-only: no home, no trainer, no network, and in /proc
nothing but the program itself.
"""

import os
import signal
import time
from dataclasses import dataclass

from . import host, kernel

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE, MS_RELATIME, MNT_DETACH = 1 << 14, 1 << 18, 1 << 21, 2
ST_RELATIME = 4096
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NEW_ROOT = "/tmp"
FOLDER = "/run/folder"
STREAMS = ("stdin", "stdout", "stderr")
DEVICES = ("/dev/null", "/dev/urandom")
LINKS = {"/dev/fd": "/proc/self/fd", **{f"/dev/{name}": f"/proc/self/fd/{n}" for n, name in enumerate(STREAMS)}}


def enter(paths: list[str]) -> int:
    """Enter new namespaces whose file system holds `paths` alone.

    Returns the id of the namespace's process 1, which the caller has to kill. Raises OSError.
    """
    # Read before: in the new user namespace the ids are unmapped (65534) until uid_map and gid_map are written.
    user, group = os.getuid(), os.getgid()
    namespaces = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
    kernel.checked("unshare", CLONE_NEWUSER | namespaces)
    # An ordinary user may write gid_map only after setgroups is denied (user_namespaces(7)).
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{user} {user} 1")
    write("/proc/self/gid_map", f"{group} {group} 1")
    host.rename()
    # CLONE_NEWPID moves children, not this process: the first child becomes process 1, and later ones need it alive.
    init_pid = start_first_process()
    change_root(paths)
    return init_pid


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def start_first_process() -> int:
    """Fork the namespace's process 1, which only sleeps; when it dies, the kernel kills all others."""
    pid = os.fork()
    if pid:
        return pid
    kernel.die_with_parent(signal.SIGKILL)
    os.closerange(0, 65_536)
    while True:
        time.sleep(3600)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    kernel.checked("mount", texts[0], texts[1], texts[2], kernel.unsigned_long(flags), texts[3])


@dataclass(frozen=True)
class Source:
    """A path to show under the new root: the text of a symbolic link, or an open descriptor of a file or folder."""

    path: str
    link: str | None
    descriptor: int
    folder: bool


def hold(path: str) -> Source:
    """Open `path` before the new root is mounted, which may hide it."""
    if os.path.islink(path):
        return Source(path, os.readlink(path), -1, False)
    return Source(path, None, os.open(path, os.O_PATH | os.O_CLOEXEC), os.path.isdir(path))


def change_root(paths: list[str]) -> None:
    """Replace the root by a read-only tmpfs with `paths` and a few devices, and detach the old root."""
    # Private: no mount propagates between this namespace and the machine's.
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    sources = [hold(path) for path in (*paths, *DEVICES) if os.path.lexists(path)]
    mount("tmpfs", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=4096,mode=755")
    for source in sources:
        bind(source)
    os.makedirs(NEW_ROOT + FOLDER)
    if mount_proc():
        for name, target in LINKS.items():
            os.symlink(target, NEW_ROOT + name)
    # pivot_root(".", ".") puts the old root on top of the new one (see its manual page); unmounting "." detaches it.
    os.chdir(NEW_ROOT)
    kernel.checked("syscall", PIVOT_ROOT[os.uname().machine], b".", b".")
    kernel.checked("umount2", b".", MNT_DETACH)
    # Read-only last: until here folders and links were created in it.
    mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir("/")


def mount_proc() -> bool:
    """Mount /proc with the processes of the new namespace alone; return False if the kernel does not permit it.

    It serves /dev/stdin and the like; Landlock denies the rest of it. The kernel refuses if parts of the surrounding
    /proc are hidden, as in many containers.
    """
    os.makedirs(NEW_ROOT + "/proc")
    # A proc mount shows the PID namespace of the process that mounts it, and this process is not in the new one.
    pid = os.fork()
    if pid == 0:
        try:
            flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
            mount("proc", NEW_ROOT + "/proc", "proc", flags, "subset=pid,hidepid=ptraceable")
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def bind(source: Source) -> None:
    """Mount a source read-only at the same path under the new root; a symbolic link is created again."""
    target = NEW_ROOT + source.path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if source.link is not None:
        os.symlink(source.link, target)
        return
    if source.folder:
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    # MS_BIND ignores MS_RDONLY, so the mount is made read-only by a second call.
    mount(f"/proc/self/fd/{source.descriptor}", target, None, MS_BIND | MS_REC)
    os.close(source.descriptor)
    # A remount in a user namespace must repeat the flags of the original mount (mount_namespaces(7)).
    flags = os.statvfs(target).f_flag
    locked = flags & (MS_NOSUID | MS_NODEV | MS_NOEXEC) | (MS_RELATIME if flags & ST_RELATIME else 0)
    mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | locked)


def mount_folder(megabytes: int) -> None:
    """Mount an empty tmpfs at FOLDER, of `megabytes` MiB and one file per 4 KiB of it, at least 64."""
    options = f"size={megabytes}m,nr_inodes={max(64, megabytes * 256)},mode=700"
    mount("tmpfs", FOLDER, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)


def unmount_folder() -> None:
    """Unmount the tmpfs, which deletes its content."""
    kernel.checked("umount2", FOLDER.encode(), MNT_DETACH)
