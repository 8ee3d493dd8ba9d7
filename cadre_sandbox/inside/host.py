"""The machine's own name, which no program needs: every program is told `NAME` instead.

At level `isolated` a UTS namespace holds the name, so the kernel itself answers with it. At `confined` the filter
refuses the system call and at every level Python's functions answer without it, as `prepare` leaves them. The kernel's
release and the architecture are not hidden.
"""

import _socket
import os
import posix
import socket
from typing import Any

from . import kernel

NAME, DOMAIN = "sandbox", "(none)"


def rename() -> None:
    """Give the UTS namespace that this process has just entered the name. Raises OSError."""
    for call, text in (("sethostname", NAME), ("setdomainname", DOMAIN)):
        kernel.checked(call, text.encode(), len(text))


def prepare() -> None:
    """Replace what tells the name in this process, before any package can have asked for it. `platform` asks these."""
    told: Any = os.uname()
    known = type(told)((told.sysname, NAME, told.release, told.version, told.machine))

    def uname() -> Any:
        return known

    def gethostname() -> str:
        return NAME

    os.uname = posix.uname = uname
    socket.gethostname = _socket.gethostname = gethostname
