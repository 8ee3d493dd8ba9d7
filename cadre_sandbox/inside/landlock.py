"""Landlock: limits the files that a process may open, and denies TCP ports and signals to processes outside.

A rule set is an allow-list of folders, created once by the warm parent and enforced by each child on itself. Landlock
does not check metadata (stat, chmod, chdir); the seccomp list lacks the calls that change metadata.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Sequence

from . import kernel

# libc has no wrappers for these calls; their numbers are the same on every architecture.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
# The bits of LANDLOCK_ACCESS_FS_* in linux/landlock.h.
WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
IOCTL_DEV, EXECUTE = 1 << 15, 1 << 0
# To make character devices, sockets, fifos, block devices and symbolic links.
SPECIAL_FILES = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12
# A rule on a file that is no folder may name only these; the kernel answers EINVAL to others.
FILE_RIGHTS = WRITE_FILE | READ_FILE | EXECUTE | TRUNCATE | IOCTL_DEV

NEWEST = 99  # later than any
# How many file rights each version of the kernel's interface knows (index 0 is version 1).
FILE_RIGHTS_BY_VERSION = (13, 14, 15, 15, 16)


def version() -> int:
    """Return the kernel's Landlock version, 0 if it is missing or switched off."""
    try:
        # A null pointer, size 0 and the flag LANDLOCK_CREATE_RULESET_VERSION (1) ask for the version alone.
        return kernel.checked("syscall", CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def ruleset(
    readable: list[str],
    listable: list[str],
    folder: str | None,
    newest: int = NEWEST,
    executables: Sequence[str] = (),
) -> int:
    """Create a rule set and return its descriptor. Raises OSError if the kernel has no Landlock.

    It allows to read below `readable`, to list below `listable`, to do anything below `folder`, and to execute the
    files `executables`, of which ordinary programs have none. With `newest` it uses at most that version of the
    interface, which shows what an older kernel would enforce.
    """
    abi = min(version(), newest)
    if abi == 0:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    # A rule set denies only the rights that it handles, so it handles every right that this version knows. An older
    # kernel rejects bits that it does not know (EINVAL), and a longer struct with bits in its unknown part (E2BIG).
    rights = (1 << FILE_RIGHTS_BY_VERSION[min(abi, len(FILE_RIGHTS_BY_VERSION)) - 1]) - 1
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
    """Add a rule for `path` and everything below it; does nothing if the path does not exist."""
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            rights &= FILE_RIGHTS
        # Type 1 is LANDLOCK_RULE_PATH_BENEATH with a packed struct: 64 bits of rights, 32 bits of descriptor.
        kernel.checked("syscall", ADD_RULE, descriptor, 1, struct.pack("=Qi", rights, target), 0)
    finally:
        os.close(target)


def restrict(descriptor: int) -> None:
    """Enforce the rule set on this process for good. Needs no_new_privs."""
    kernel.checked("syscall", RESTRICT_SELF, descriptor, 0)
