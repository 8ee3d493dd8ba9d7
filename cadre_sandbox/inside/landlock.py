"""Landlock: which files a process may open, and that it may open no TCP port and signal nobody outside.

A rule set is an allow-list of folders, made once by the warm parent and put on by each child. Landlock does not see
metadata (stat, chmod, chdir); the calls that change metadata are missing from the seccomp list.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Sequence

from . import kernel

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
IOCTL_DEV, EXECUTE = 1 << 15, 1 << 0
SPECIAL_FILES = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12  # devices, sockets, fifos, symlinks
FILE_RIGHTS = WRITE_FILE | READ_FILE | EXECUTE | TRUNCATE | IOCTL_DEV  # what a rule on a plain file may name

NEWEST = 99  # later than any
# How many file rights each version of the kernel's interface knows (index 0 is version 1).
FILE_RIGHTS_BY_VERSION = (13, 14, 15, 15, 16)


def version() -> int:
    """The kernel's Landlock version, 0 when it is missing or switched off."""
    try:
        return kernel.checked("syscall", CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def all_rights(abi: int) -> int:
    return (1 << FILE_RIGHTS_BY_VERSION[min(abi, len(FILE_RIGHTS_BY_VERSION)) - 1]) - 1


def ruleset(
    readable: list[str],
    listable: list[str],
    folder: str | None,
    newest: int = NEWEST,
    executables: Sequence[str] = (),
) -> int:
    """A descriptor of a rule set: read below `readable`, list below `listable`, do as it likes below `folder`, and
    execute the files `executables`, of which ordinary programs have none. It uses no more of the kernel than version
    `newest` of its interface has: what a kernel that is older would enforce.

    Raises OSError when the kernel has no Landlock.
    """
    abi = min(version(), newest)
    if abi == 0:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    rights = all_rights(abi)
    network = 3 if abi >= 4 else 0  # bind and connect over TCP
    scoped = 3 if abi >= 6 else 0  # abstract unix sockets, and signals, to processes outside
    attributes = struct.pack("QQQ", rights, network, scoped)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    descriptor = kernel.checked("syscall", CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    for path in readable:
        allow(descriptor, path, READ_FILE | READ_DIR)
    for path in listable:
        allow(descriptor, path, READ_DIR)
    for path in executables:
        allow(descriptor, path, READ_FILE | EXECUTE)
    allow(descriptor, "/dev/null", (READ_FILE | WRITE_FILE | TRUNCATE) & rights)
    if folder is not None:
        allow(descriptor, folder, rights & ~(EXECUTE | SPECIAL_FILES | IOCTL_DEV))
    return descriptor


def allow(descriptor: int, path: str, rights: int) -> None:
    """Add a rule for `path` and what lies below it; a path that does not exist needs no rule."""
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            rights &= FILE_RIGHTS
        kernel.checked("syscall", ADD_RULE, descriptor, 1, struct.pack("=Qi", rights, target), 0)
    finally:
        os.close(target)


def restrict(descriptor: int) -> None:
    """Put the rule set on this process for good. Needs no_new_privs."""
    kernel.checked("syscall", RESTRICT_SELF, descriptor, 0)
