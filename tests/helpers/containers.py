"""A fake container runtime on the PATH, and a fresh memory of what was found there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    """Put a fake of these names alone before the PATH; yield the folder of its containers."""
    bin_folder, state = folder / "bin", folder / "bin" / "state"
    state.mkdir(parents=True)
    for name in names:
        (bin_folder / name).write_text(FAKE.read_text().replace("/usr/bin/python3", sys.executable, 1))
        (bin_folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
        forget()
        yield state
    forget()
