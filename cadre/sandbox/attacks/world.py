"""The world that attacks are let loose on: secrets, a neighbour, listeners and a file, all watched from outside."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from cadre.sandbox.inside.host import NAME

FORBIDDEN = ("/tmp/cadre-attack", "/dev/shm/cadre-attack")


class World:
    """A context manager. What it plants belongs to this process's own user, as a trainer's files do.

    Make it before the sandbox that is to be tried: one secret is an environment variable, another a descriptor that
    child processes inherit.
    """

    def __enter__(self) -> Self:
        self.folder = tempfile.mkdtemp(prefix="cadre-world-")
        self.secret = secrets.token_hex(16)
        self.secret_path = self._write("secret", self.secret)
        self.canary_path = self._write("canary", "untouched")
        self.link = os.path.join(self.folder, "link")
        os.symlink(self.secret_path, self.link)
        self.variable = f"CADRE_{secrets.token_hex(8)}"
        os.environ[self.variable] = self.secret
        self.descriptor = os.open(self.secret_path, os.O_RDONLY)
        os.set_inheritable(self.descriptor, True)
        self.neighbour = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"])
        self._listen()
        library = sysconfig.get_path("stdlib")
        self.library = library
        # Where the host is called as programs are told, nothing can be given away.
        self.host = socket.gethostname() if socket.gethostname() != NAME else "no-such-host"
        self.library_file = os.path.join(library, "this.py")
        self.before = self._state()
        return self

    def _write(self, name: str, text: str) -> str:
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def _listen(self) -> None:
        """Listeners that nobody but an attack would speak to."""
        self.unix_path = os.path.join(self.folder, "listener")
        self.datagram_path = os.path.join(self.folder, "datagrams")
        self.abstract = f"cadre-{secrets.token_hex(8)}"
        self.listeners = [
            self._bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            self._bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            self._bound(socket.AF_UNIX, socket.SOCK_STREAM, self.unix_path),
            self._bound(socket.AF_UNIX, socket.SOCK_DGRAM, self.datagram_path),
            self._bound(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + self.abstract),
        ]

    @staticmethod
    def _bound(family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
        listener = socket.socket(family, kind)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        return listener

    def names(self) -> dict[str, str]:
        """What replaces the @NAMES@ in an attack."""
        return {
            "SECRET": self.secret_path,
            "CANARY": self.canary_path,
            "LINK": self.link,
            "FOLDER": self.folder,
            "LIBRARY": self.library,
            "NAME": self.variable,
            "TRAINER": str(os.getpid()),
            "NEIGHBOUR": str(self.neighbour.pid),
            "TCP": str(self.listeners[0].getsockname()[1]),
            "UDP": str(self.listeners[1].getsockname()[1]),
            "UNIX": self.unix_path,
            "DATAGRAM": self.datagram_path,
            "ABSTRACT": self.abstract,
            "HOST": self.host,
        }

    def _state(self) -> tuple[object, ...]:
        """Everything about the planted files that an attack could change."""
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
        """What an attack has done out here, or an empty string."""
        if self.neighbour.poll() is not None:
            return "the neighbour was killed"
        if not os.path.exists(self.canary_path) or not os.path.exists(self.secret_path) or self._state() != self.before:
            return "a file was changed"
        for path in (*FORBIDDEN, os.path.join(self.library, "cadre_attack.py")):
            if os.path.exists(path):
                return f"{path} was written"
        return self._heard()

    def _heard(self) -> str:
        for listener in self.listeners:
            with contextlib.suppress(BlockingIOError):
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()
                else:
                    listener.recv(1)
                return f"somebody spoke to {listener.getsockname()!r}"
        return ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del os.environ[self.variable]
        os.close(self.descriptor)
        for listener in self.listeners:
            listener.close()
        self.neighbour.kill()
        self.neighbour.wait()
        shutil.rmtree(self.folder)
