"""A fake container runtime on the PATH, and a fresh memory of what was found there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cadre_programs import containers

FAKE = Path(__file__).with_name("container_runtime.py")


def forget() -> None:
    """Forget the runtimes and images that were found."""
    for cached in (containers.find_runtime, containers.is_podman, containers.require_image, containers.try_limits):
        cached.cache_clear()
    containers._swept.clear()


@contextmanager
def fake_runtime(folder: Path, *names: str) -> Iterator[Path]:
    """Put a fake of these names before the PATH, and hide real runtimes; yield the folder of its containers."""

    def which(name: str, *arguments: Any, **keywords: Any) -> str | None:
        if name in ("docker", "podman"):
            return real_which(name, path=str(bin_folder))
        return real_which(name, *arguments, **keywords)

    real_which = shutil.which
    bin_folder, state = folder / "bin", folder / "bin" / "state"
    state.mkdir(parents=True)
    for name in names:
        (bin_folder / name).write_text(FAKE.read_text().replace("/usr/bin/python3", sys.executable, 1))
        (bin_folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
        patch.setattr(shutil, "which", which)
        forget()
        yield state
    forget()
