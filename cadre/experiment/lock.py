"""One process at a time writes a run directory. The lock goes with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self

from cadre.errors import RunError
from cadre.experiment.to_disk import writing


class RunLock:
    """Holds `FOLDER/.lock` from `__enter__` to `__exit__`; a second holder is refused. kill -9 releases it too."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        with writing(self.path):  # a link would lead to a file of somebody else, which is written here
            descriptor = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise RunError(
                f"run: {self.path.parent} is being written by another process ({holder}); expected one at a time. Wait "
                "for it, stop it, or name another folder."
            ) from None
        self._descriptor = descriptor
        try:
            with writing(self.path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
        except RunError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._descriptor is not None
        os.close(self._descriptor)
        self._descriptor = None
