"""Thin calls into libc that raise OSError on failure. Leaves out everything that `os` and `resource` already have."""

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
if sys.platform == "linux":  # found once, before the first fork
    _libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    _libc.capset.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
NO_CAPABILITIES = (struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0), bytes(24))


def checked(name: str, *arguments: object) -> int:
    """Call the libc function `name`; raise OSError with its errno when it returns -1."""
    returned = int(getattr(_libc, name)(*arguments))
    if returned == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return returned


def prctl(option: int, *arguments: int) -> int:
    """prctl(2), each argument an unsigned long, the missing ones zero."""
    return checked("prctl", option, *(*arguments, 0, 0, 0, 0)[:4])


def drop_bounding_set() -> None:
    """Give up for good what this process's children could regain; an ordinary user has nothing to give up."""
    with contextlib.suppress(OSError):  # past the last capability the kernel knows, or an ordinary user
        for capability in range(64):
            prctl(PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    """Empty the ambient, inheritable, permitted and effective sets of this process."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    checked("capset", *NO_CAPABILITIES)


def die_with_parent(signal: int) -> None:
    """Ask the kernel for `signal` when the parent dies. A no-op outside Linux, where nothing like it exists."""
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, signal)


def unsigned_long(value: int) -> ctypes.c_ulong:
    return ctypes.c_ulong(value)
