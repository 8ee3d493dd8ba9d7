"""The machine that a process runs on: its memory as control groups limit it, and scratch folders on it.

In a scratch folder a process passes files to others, weights above all. Its maker removes it, or `remove_all_scratch`
does, also where a process ends without the interpreter's own exit handlers. The next process that makes one removes
what a killed process left: the folder's name holds the owner. Imports nothing but the standard library.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_LIMIT = 1 << 62
# Memory that all processes of a machine read as files; elsewhere the temporary folder is used.
SHARED_MEMORY = Path("/dev/shm")
PROC = Path("/proc")
SCRATCH_NAME = re.compile(r"cadre-[a-z]+-(?P<owner>[0-9a-f]{16}-\d{1,9}-\d+)-[^-]+")
ERASE_ATTEMPTS = 5

# The scratch folders of this process with the id of the process that made each: a fork inherits the table.
_scratch_owners: dict[Path, int] = {}
_swept_folders: set[Path] = set()


def total_memory() -> int:
    """Return the bytes of memory that the processes of this machine or container may take."""
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), cgroup_limit())


def cgroup_limit(process_file: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the smallest memory limit of the process's control group and its parents; NO_LIMIT without one."""
    limits = [NO_LIMIT]
    for line in process_file.read_text().splitlines() if process_file.is_file() else []:
        _, controllers, path = line.split(":", 2)
        group = Path(path.lstrip("/"))
        for parent in (group, *group.parents):
            if not controllers:  # version 2
                file = mount / parent / "memory.max"
            elif "memory" in controllers.split(","):  # version 1
                file = mount / "memory" / parent / "memory.limit_in_bytes"
            else:
                continue
            if file.is_file() and (text := file.read_text().strip()).isdecimal():
                limits.append(int(text))
    return min(limits)


def swap_memory() -> int:
    """Return the bytes of Linux's swap space; 0 on other systems."""
    return _read_meminfo("SwapTotal") or 0


def available_memory(path: Path = Path("/proc/meminfo")) -> int | None:
    """Return the bytes that Linux could give without swapping; None on other systems."""
    return _read_meminfo("MemAvailable", path)


def _read_meminfo(name: str, path: Path = Path("/proc/meminfo")) -> int | None:
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), None)


def shared_folder() -> Path:
    """Return the folder in which processes of this machine exchange files, in memory if possible."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


def make_scratch(kind: str, parent: Path | None = None) -> Path:
    """Make a scratch folder, in the temporary folder unless `parent` is given. `kind` is a word for people."""
    for folder in (shared_folder(), Path(tempfile.gettempdir())):
        if folder not in _swept_folders:
            _swept_folders.add(folder)
            sweep_scratch(folder)
    namespace = process_namespace()
    owner = f"{namespace}-{os.getpid()}-{start_time(os.getpid())}-" if namespace else ""
    scratch = Path(tempfile.mkdtemp(prefix=f"cadre-{kind}-{owner}", dir=parent))
    _scratch_owners[scratch] = os.getpid()
    return scratch


@contextmanager
def temporary_scratch(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a scratch folder that is removed at the end of the block."""
    scratch = make_scratch(kind, parent)
    try:
        yield scratch
    finally:
        remove_scratch(scratch)


def remove_scratch(folder: Path) -> None:
    """Remove a scratch folder of this process; may be called again. Does nothing in a fork of its maker."""
    if _scratch_owners.get(folder) == os.getpid():
        erase(folder)
        _scratch_owners.pop(folder, None)


@atexit.register
def remove_all_scratch() -> None:
    """Remove every scratch folder that this process made and has not removed yet."""
    for folder in list(_scratch_owners):
        remove_scratch(folder)


def erase(folder: Path) -> None:
    """Remove a folder. Another process may still write into it, so that is tried several times."""
    for _ in range(ERASE_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def sweep_scratch(parent: Path) -> None:
    """Remove the scratch folders below `parent` whose makers, of this user, machine and container, have ended."""
    try:
        entries = list(os.scandir(parent))
    except PermissionError:
        return
    for entry in entries:
        match = SCRATCH_NAME.fullmatch(entry.name)
        if match is None:
            continue
        try:
            owned = entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
        except FileNotFoundError:  # another process sweeps too and was faster
            continue
        if owned and _has_ended(*match["owner"].split("-")):
            erase(Path(entry.path))


def process_namespace() -> str:
    """Return 16 digits that name the scope of process ids: this boot and the container. "" if unknown."""
    try:
        links = [
            os.readlink(PROC / "self/ns" / kind) for kind in os.listdir(PROC / "self/ns") if kind in ("pid", "time")
        ]
        identity = (PROC / "sys/kernel/random/boot_id").read_text(), PROC.stat().st_dev, sorted(links)
        # A /proc of another container would show this process under another id.
        is_own_proc = int((PROC / "self/stat").read_text().split()[0]) == os.getpid()
    except OSError:
        return ""
    return hashlib.blake2b(repr(identity).encode(), digest_size=8).hexdigest() if is_own_proc else ""


def start_time(pid: int) -> str:
    """Return when a process began, in clock ticks since boot, which tells processes of a reused id apart. "" if
    unknown."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _has_ended(namespace: str, pid: str, started: str) -> bool:
    """Return True if the process belonged to this namespace and has ended. An unknown process has not."""
    if namespace != process_namespace():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # the id belongs to another user's process now
        pass
    return start_time(int(pid)) not in ("", started)
