"""Folders of one process in which it hands files to others, weights above all; removed with it, however it ends.

Their maker removes them, or `remove_all`, also where a process ends without the interpreter's own end. What one that
was killed leaves is removed by the next that makes a folder: its name says whose it is.
Nothing but the standard library is imported here.
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

# Memory that all processes of a machine read as files; elsewhere the temporary folder.
IN_MEMORY = Path("/dev/shm")
PROC = Path("/proc")
NAME = re.compile(r"cadre-[a-z]+-(?P<owner>[0-9a-f]{16}-\d{1,9}-\d+)-[^-]+")
# What is written meanwhile may keep a folder from being removed.
TRIES = 5

_mine: dict[Path, int] = {}
_swept: set[Path] = set()


def in_memory() -> Path:
    """Where files are handed over within a machine."""
    return IN_MEMORY if IN_MEMORY.is_dir() else Path(tempfile.gettempdir())


def make(kind: str, parent: Path | None = None) -> Path:
    """A new folder for the caller to `remove`, in the temporary folder unless a parent is named. `kind` is a word that
    people read."""
    for place in (in_memory(), Path(tempfile.gettempdir())):
        if place not in _swept:
            _swept.add(place)
            sweep(place)
    where = here()
    owner = f"{where}-{os.getpid()}-{begun(os.getpid())}-" if where else ""
    made = Path(tempfile.mkdtemp(prefix=f"cadre-{kind}-{owner}", dir=parent))
    _mine[made] = os.getpid()
    return made


@contextmanager
def lent(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """A folder that is there within it."""
    made = make(kind, parent)
    try:
        yield made
    finally:
        remove(made)


def remove(folder: Path) -> None:
    """The folder is needed no more. Does nothing in a process that was forked from its maker; may be called again."""
    if _mine.get(folder) == os.getpid():
        erase(folder)
        _mine.pop(folder, None)


@atexit.register
def remove_all() -> None:
    """Remove what this process made and has not removed yet."""
    for folder in list(_mine):
        remove(folder)


def erase(folder: Path) -> None:
    """Remove a folder, also where somebody still writes to it."""
    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def sweep(place: Path) -> None:
    """Remove the folders here that processes of this user, machine and container made which are no more."""
    try:
        entries = list(os.scandir(place))
    except PermissionError:
        return
    for entry in entries:
        named = NAME.fullmatch(entry.name)
        if named is not None and _own(entry) and _gone(*named["owner"].split("-")):
            erase(Path(entry.path))


def here() -> str:
    """Where numbers of processes mean what they do to this one, as 16 digits: this machine since its start, and the
    container. "" where that cannot be told."""
    try:
        names = [
            os.readlink(PROC / "self/ns" / kind) for kind in os.listdir(PROC / "self/ns") if kind in ("pid", "time")
        ]
        told = (PROC / "sys/kernel/random/boot_id").read_text(), PROC.stat().st_dev, sorted(names)
        known = int((PROC / "self/stat").read_text().split()[0]) == os.getpid()
    except OSError:
        return ""
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest() if known else ""


def begun(pid: int) -> str:
    """When a process began, in ticks of the machine, so that a number which is given again is told from this one. ""
    where that cannot be told."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _own(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:  # another that sweeps was faster
        return False


def _gone(where: str, pid: str, since: str) -> bool:
    """Whether the process was one of here, and is no more. One that cannot be told of is not."""
    if where != here():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is another user's
        pass
    return begun(int(pid)) not in ("", since)
