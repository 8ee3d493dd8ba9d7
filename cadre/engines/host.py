"""The machine that a process runs on: its memory as control groups limit it, and scratch folders on it.

In a scratch folder a process passes files to others, weights above all. Its maker removes it, or `remove_all_scratch`
does, also where a process ends without the interpreter's own exit handlers. The next process that makes one removes
what a killed process left, whose lock on the folder is gone with it. Imports nothing but the standard library.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NO_LIMIT = 1 << 62
# Memory that all processes of a machine read as files; elsewhere the temporary folder is used.
SHARED_MEMORY = Path("/dev/shm")
SCRATCH_NAME = re.compile(r"cadre-[a-z]+-[^-]+")
LOCK = ".lock"
ERASE_ATTEMPTS = 5

# The scratch folders of this process: the id of the process that made each (a fork inherits the table), and the file
# descriptor of its lock.
_scratch_owners: dict[Path, tuple[int, int]] = {}
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
        # Version 2 names no controllers, version 1 has a tree of groups for each.
        top, name = (mount / "memory", "memory.limit_in_bytes") if controllers else (mount, "memory.max")
        for parent in (group, *group.parents) if "memory" in (controllers or "memory").split(",") else ():
            file = top / parent / name
            if file.is_file() and (text := file.read_text().strip()).isdecimal():
                limits.append(int(text))
    return min(limits)


def read_meminfo(name: str, path: Path = Path("/proc/meminfo")) -> int | None:
    """Return the bytes of `MemAvailable`, which Linux could give without swapping, `SwapTotal` and the like; None on
    other systems."""
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
    scratch = Path(tempfile.mkdtemp(prefix=f"cadre-{kind}-", dir=parent))
    # The system lets go of the lock when the process and its forks have ended. Who sweeps sees the file only once it is
    # locked. Where files cannot be locked the folder is never swept.
    lock = os.open(scratch / f"{LOCK}.new", os.O_CREAT | os.O_RDWR)
    _scratch_owners[scratch] = os.getpid(), lock
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX)
        (scratch / f"{LOCK}.new").rename(scratch / LOCK)
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
    owner, lock = _scratch_owners.get(folder, (None, -1))
    if owner == os.getpid():
        erase(folder)
        if _scratch_owners.pop(folder, None) is not None:
            os.close(lock)


@atexit.register
def remove_all_scratch() -> None:
    """Remove every scratch folder that this process made and has not removed yet."""
    for folder in list(_scratch_owners):
        remove_scratch(folder)


def erase(folder: Path) -> None:
    """Remove a folder. Another process may still write into it, so that is tried several times."""
    for _ in range(ERASE_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)


def sweep_scratch(parent: Path) -> None:
    """Remove this user's scratch folders below `parent` whose makers have ended."""
    try:
        entries = list(os.scandir(parent))
    except PermissionError:
        return
    for entry in entries:
        if not SCRATCH_NAME.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            lock = os.open(Path(entry.path) / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # it has no lock, or another process sweeps too and was faster
            continue
        with suppress(BlockingIOError):  # its maker lives
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            erase(Path(entry.path))
        os.close(lock)
