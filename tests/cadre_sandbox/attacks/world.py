"""The targets of the catalogue: those of the probes, and files, descriptors, variables and sockets beside them."""

import os
import secrets
import socket
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from cadre_sandbox import probes
from cadre_sandbox.inside.host import NAME


class World(probes.World):
    """Enter it before the sandbox is created: one secret is an environment variable, another an inheritable
    descriptor."""

    prelude: ClassVar[str] = (
        """
import ctypes, fcntl, mmap, resource, signal, os
libc = ctypes.CDLL(None, use_errno=True)
def by_machine(x86, arm):
    return x86 if os.uname().machine == 'x86_64' else arm
def buffer(content):
    return ctypes.create_string_buffer(content)
def raw(x86, arm, *arguments):  # a call that the kernel looks at at all has got through, whatever it says
    number = by_machine(x86, arm)
    if number is None:
        raise OSError(38, 'no such call here')
    ctypes.set_errno(0)
    returned, code = libc.syscall(number, *arguments), ctypes.get_errno()
    if returned == -1 and code in (1, 13, 38):
        raise OSError(code, 'native')
    return returned
def call(function, *arguments):
    returned = function(*arguments)
    if returned == -1:
        raise OSError(ctypes.get_errno(), 'native')
    return returned
"""
        + probes.PRELUDE
    )

    def __enter__(self) -> Self:
        super().__enter__()
        self.canary_path = self.write("canary", "untouched")
        self.link = os.path.join(self.folder, "link")
        os.symlink(self.secret_path, self.link)
        self.variable = f"CADRE_{secrets.token_hex(8)}"
        os.environ[self.variable] = self.secret
        self.descriptor = os.open(self.secret_path, os.O_RDONLY)
        os.set_inheritable(self.descriptor, True)
        self.unix_path = os.path.join(self.folder, "listener")
        self.datagram_path = os.path.join(self.folder, "datagrams")
        self.abstract = f"cadre-{secrets.token_hex(8)}"
        self.listeners += [
            self.listen_at(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            self.listen_at(socket.AF_UNIX, socket.SOCK_STREAM, self.unix_path),
            self.listen_at(socket.AF_UNIX, socket.SOCK_DGRAM, self.datagram_path),
            self.listen_at(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + self.abstract),
        ]
        self.library = sysconfig.get_path("stdlib")
        # If the host really has the name that programs are given, its name cannot leak.
        self.host = socket.gethostname() if socket.gethostname() != NAME else "no-such-host"
        self.library_file = os.path.join(self.library, "this.py")
        self.initial_state = self._read_state()
        return self

    def names(self) -> dict[str, str]:
        return {
            **super().names(),
            "CANARY": self.canary_path,
            "LINK": self.link,
            "FOLDER": self.folder,
            "LIBRARY": self.library,
            "NAME": self.variable,
            "TRAINER": str(os.getpid()),
            "UDP": str(self.listeners[1].getsockname()[1]),
            "UNIX": self.unix_path,
            "DATAGRAM": self.datagram_path,
            "ABSTRACT": self.abstract,
            "HOST": self.host,
        }

    def _read_state(self) -> tuple[object, ...]:
        """Return everything about the planted files that an attack could change."""
        texts = [Path(path).read_text(encoding="utf-8") for path in (self.canary_path, self.secret_path)]
        canary, library = os.stat(self.canary_path), os.stat(self.library_file)
        attributes = tuple(os.listxattr(self.canary_path))
        return (
            *texts,
            attributes,
            (canary.st_mode, canary.st_mtime_ns, canary.st_nlink),
            (library.st_mode, library.st_size),
            tuple(sorted(os.listdir(self.folder))),
        )

    def damage(self) -> str:
        if damage := super().damage():
            return damage
        if not os.path.exists(self.canary_path) or self._read_state() != self.initial_state:
            return "a file was changed"
        for path in ("/dev/shm/cadre-attack", os.path.join(self.library, "cadre_attack.py")):
            if os.path.exists(path):
                return f"{path} was written"
        return ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del os.environ[self.variable]
        os.close(self.descriptor)
        super().__exit__(kind, error, trace)
