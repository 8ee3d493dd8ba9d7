"""Thin wrappers of libc functions that raise OSError on failure, for calls that `os` and `resource` do not have."""

import contextlib
import ctypes
import os
import struct
import sys

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 24, 22, 38, 47
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT_CLEAR_ALL, SECCOMP_MODE_FILTER = 4, 2
LINUX_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
# Resolved once, before the first fork, so that children inherit it. Without argtypes ctypes would pass 32-bit ints, and
# the upper halves of the unsigned longs that prctl reads would be undefined.
if sys.platform == "linux":
    _libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    _libc.capset.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
# The header (version, this process) and two empty struct cap_data of three 32-bit sets each; see capset(2).
NO_CAPABILITIES = (struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0), bytes(24))


def checked(name: str, *arguments: object) -> int:
    """Call the libc function `name`; raise OSError with its errno when it returns -1."""
    returned = int(getattr(_libc, name)(*arguments))
    if returned == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return returned


def prctl(option: int, *arguments: int) -> int:
    """Call prctl(2), with zero for missing arguments: some options require that unused ones are zero."""
    return checked("prctl", option, *(*arguments, 0, 0, 0, 0)[:4])


def drop_bounding_set() -> None:
    """Drop all capabilities that an execve could give back to this process or its children."""
    # EINVAL ends the loop past the last capability that the kernel knows; an ordinary user gets EPERM and has none.
    with contextlib.suppress(OSError):
        for capability in range(64):
            prctl(PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    """Empty the ambient, inheritable, permitted and effective capability sets of this process."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    checked("capset", *NO_CAPABILITIES)


def die_with_parent(signal: int) -> None:
    """Have the kernel send `signal` when the parent dies. Does nothing outside Linux, which has nothing like it."""
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, signal)


def unsigned_long(value: int) -> ctypes.c_ulong:
    return ctypes.c_ulong(value)
