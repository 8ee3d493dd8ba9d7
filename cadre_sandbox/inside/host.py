"""Hide the name of the machine from programs: they get `NAME` instead.

At level `isolated` a UTS namespace has this name, so the kernel itself returns it. At `confined` the filter denies the
system call, and at every level `prepare` replaces Python's functions, which then need no call. The kernel's release
and the architecture are not hidden.
"""

import _socket
import os
import posix
import socket
from typing import Any

from . import kernel

NAME, DOMAIN = "sandbox", "(none)"


def rename() -> None:
    """Name the UTS namespace that this process has just entered. Raises OSError."""
    for call, text in (("sethostname", NAME), ("setdomainname", DOMAIN)):
        kernel.checked(call, text.encode(), len(text))


def prepare() -> None:
    """Replace the functions that return the machine's name, also for `platform`, before any package calls them."""
    system: Any = os.uname()
    renamed = type(system)((system.sysname, NAME, system.release, system.version, system.machine))

    def uname() -> Any:
        return renamed

    def gethostname() -> str:
        return NAME

    os.uname = posix.uname = uname
    socket.gethostname = _socket.gethostname = gethostname
