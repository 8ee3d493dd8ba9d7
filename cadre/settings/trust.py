"""Decide whose code may run: reading a run folder runs none, playing it runs the folder's own code with --trust only.

A run folder may be a stranger's. The code that its configuration names (an environment, a function, a program) is that
stranger's choice, and so are the commands it starts and the machines it reaches: `cadre.config.trusted_runs` asks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from cadre.errors import ConfigError

FLAG = "--trust"
# The packages of this distribution: their modules are never taken for the user's.
OWN_PACKAGES = tuple(f"cadre{name}" for name in ("", "_analysis", "_programs", "_ray", "_sandbox", "_tasks", "_tinker"))
_only_reading: ContextVar[bool] = ContextVar("only_reading", default=False)
# Run folders whose own code is not trusted in this process. Not a context variable: imports may come from any thread.
UNTRUSTED_FOLDERS: set[Path] = set()


@dataclass(frozen=True)
class CodeReference:
    """What a setting names that may be code, a command, a file or another machine.

    words    parts of the description that may be paths
    file     the path that it is, if that exists
    is_code  the file is Python code, which is imported
    """

    setting: str
    description: str
    words: tuple[str, ...] = ()
    file: Path | None = None
    is_code: bool = False


# ---- Before code runs


@contextmanager
def only_reading() -> Iterator[None]:
    """Run no code that a configuration names within this context: `check_code` raises."""
    token = _only_reading.set(True)
    try:
        yield
    finally:
        _only_reading.reset(token)


def is_only_reading() -> bool:
    """Return True within `only_reading`."""
    return _only_reading.get()


def check_code(setting: str, path: Path) -> None:
    """Raise ConfigError if a file must not run: while a run is only read, or in a folder that is not trusted."""
    if _only_reading.get():
        raise ConfigError(
            f"{setting}: names {path}, code that reading a run does not run; expected a configuration that stands by "
            "itself. Write out team.roles, or use a command that plays."
        )
    for folder in UNTRUSTED_FOLDERS:
        if is_inside(path, folder):
            raise ConfigError(untrusted_code_message([f"{path} ({setting})"], folder))


def untrusted_code_message(codes: list[str], folder: Path) -> str:
    """Return the error message for what a run folder names and that is not trusted."""
    return (
        f"{folder}: got {'; '.join(codes)}, which this run folder brings or asks for; expected bundled tasks, models "
        "inside of it and plain settings, or what a run of yours on this machine began with. Name the setting beside "
        f"the run, as KEY=VALUE, or, where you know who made the folder, read that, and add {FLAG} to let it run."
    )


def is_inside(path: Path, folder: Path) -> bool:
    """Return True if a path leads into a folder, either as it is written or with its links resolved."""
    if "\0" in str(path):
        return False
    by_name = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))
    return by_name or Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def find_code_file(reference: str) -> Path | None:
    """Return the file behind `FILE.py` or `FILE.py:NAME`, if it exists."""
    for name in (reference, reference.rpartition(":")[0]):
        if name.endswith(".py") and "\0" not in name and os.path.isfile(path := os.path.expanduser(name)):
            return Path(path)
    return None


def find_module_reference(reference: str, folder: Path) -> str | None:
    """Return `package.module:Name` as `file.py:Name` for a module below a folder, None if there is no such file."""
    module, _, name = reference.rpartition(":")
    parts = module.split(".")
    if parts[0] in OWN_PACKAGES or not all(part.isidentifier() for part in parts):
        return None
    path = Path(folder, *parts).absolute()
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((f"{file}:{name}" for file in files if file.is_file()), None)


def find_module_file(reference: str) -> Path | None:
    """Return the file behind `module:NAME`, in the working folder or on Python's path, unless it is Cadre's own.
    Nothing is imported to find it."""
    package = reference.partition(":")[0].partition(".")[0]
    if ":" not in reference or not package.isidentifier() or package in OWN_PACKAGES:
        return None
    if local := find_module_reference(reference, Path.cwd()):
        return Path(local.rpartition(":")[0])
    spec = PathFinder.find_spec(package)
    return Path(spec.origin) if spec is not None and spec.origin and Path(spec.origin).is_file() else None
