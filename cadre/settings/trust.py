"""Whose code may run: reading a run folder runs none, and files that lie in one run only where the user says so.

A run folder may be a stranger's. What its configuration names as code (an environment, a function, a program) is that
stranger's choice. This module decides; `cadre.settings.user_code` and the commands ask it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import PathFinder
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cadre.errors import ConfigError, one_line
from cadre.settings.user_imports import OWN

FLAG = "--trust"
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_only_reading: ContextVar[bool] = ContextVar("only_reading", default=False)
# Run folders whose own code was not trusted in this process, for imports that come later and from any thread.
_distrusted: set[Path] = set()


@contextmanager
def only_reading() -> Iterator[None]:
    """Within it no code that a configuration names is run: `check_code` refuses it."""
    before = _only_reading.set(True)
    try:
        yield
    finally:
        _only_reading.reset(before)


def check_code(setting: str, path: Path) -> None:
    """Raises ConfigError where the file must not be run: while a run is only read, or in a folder not trusted."""
    if _only_reading.get():
        raise ConfigError(
            f"{setting}: names {path}, code that reading a run does not run; expected a configuration that stands by "
            "itself. Write out team.roles, or use a command that plays."
        )
    for folder in _distrusted:
        if lies_in(path, folder):
            raise ConfigError(refused([f"{path} ({setting})"], folder))
    tell_imports()  # before anything of the user's runs, which may end the process


def lies_in(path: Path, folder: Path) -> bool:
    """Return whether a path leads into a folder, by its name or by what its links come to."""
    if "\0" in str(path):
        return False
    named = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))
    return named or Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


@dataclass(frozen=True)
class Code:
    """Code that a configuration would run: the setting that says so, and the file, or what it is in words."""

    setting: str
    what: str
    file: Path | None = None


# The files that the configuration of a run imports, until they are named.
_unnamed_imports: list[Code] = []


def note_imports(files: Sequence[Code]) -> None:
    """Keep the files that the configuration of a run imports, to be named before the first of them runs."""
    _unnamed_imports[:] = files


def tell_imports() -> None:
    """Name the kept files on stderr, once. Called by `check_code`, and where a run begins without an import."""
    for code in _unnamed_imports:
        sys.stderr.write(f"imports {one_line(code.what)} ({one_line(code.setting)})\n")
    _unnamed_imports.clear()


def code_of(raw: Any, setting: str = "") -> Iterator[Code]:
    """Every file of Python that a configuration names, in any setting."""
    if isinstance(raw, Mapping):
        for name, value in raw.items():
            yield from code_of(value, f"{setting}.{name}" if setting else str(name))
    elif isinstance(raw, list | tuple):
        for value in raw:
            yield from code_of(value, setting)
    elif isinstance(raw, str) and not setting.startswith("team.prompts"):
        file = file_of(raw) or (module_file_of(raw) if setting == "env" else None)
        if file is not None:
            yield Code(setting, str(file), file)


def file_of(reference: str) -> Path | None:
    """Return the file behind `FILE.py` or `FILE.py:NAME`, where there is one."""
    for name in (reference, reference.rpartition(":")[0]):
        if name.endswith(".py") and "\0" not in name and os.path.isfile(path := os.path.expanduser(name)):
            return Path(path)
    return None


def module_file_of(reference: str) -> Path | None:
    """Return the file behind `module:NAME` where the module is not Cadre's own."""
    module, colon, _ = reference.rpartition(":")
    if not colon or not MODULE.fullmatch(module) or module.partition(".")[0] in OWN:
        return None
    return _file_of_module(module)


def _file_of_module(module: str) -> Path | None:
    """The file of a module beside the working folder or on Python's path; nothing is imported to find it."""
    beside = Path(*module.split("."))
    for path in (beside.with_suffix(".py"), beside / "__init__.py"):
        if path.is_file():
            return path
    found = PathFinder.find_spec(module.partition(".")[0])
    return Path(found.origin) if found is not None and found.origin and Path(found.origin).is_file() else None


def reaches_of(raw: Mapping[str, Any]) -> Iterator[Code]:
    """What else a configuration would start or reach: commands, code of checkpoints, other machines, a weak sandbox."""
    for section in ("settings", "evaluate.settings"):
        settings: Any = raw
        for name in section.split("."):
            settings = settings.get(name) if isinstance(settings, Mapping) else None
        for name in ("run", "python") if isinstance(settings, Mapping) else ():
            value = settings.get(name)
            if isinstance(value, list) or (name == "python" and value):
                words = shlex.join(map(str, value)) if isinstance(value, list) else str(value)
                yield Code(f"{section}.{name}", f"the command {words!r}")
    yield from _of_policies(raw)
    cluster = raw.get("cluster")
    address = cluster.get("address") if isinstance(cluster, Mapping) else None
    if address and address != "auto" and not _is_here(str(address)):
        yield Code("cluster.address", f"the Ray cluster at {address}")
    sandbox = raw.get("sandbox")
    if isinstance(sandbox, Mapping) and sandbox.get("level") == "process":
        yield Code("sandbox.level", "programs that models write, confined by rlimits only")


def _of_policies(raw: Mapping[str, Any]) -> Iterator[Code]:
    team = raw.get("team")
    policies = team.get("policies") if isinstance(team, Mapping) else None
    algorithm = raw.get("algorithm")
    critic = algorithm.get("critic") if isinstance(algorithm, Mapping) else None
    found = dict(policies) if isinstance(policies, Mapping) else {}
    if isinstance(critic, Mapping) and "policy" in critic:
        found["critic"] = critic["policy"]
    for name, policy in found.items():
        if not isinstance(policy, Mapping):
            continue
        if policy.get("trust_remote_code"):
            yield Code(f"team.policies.{name}.trust_remote_code", f"the code that ships with {policy.get('model')!r}")
        if (url := policy.get("url")) and not _is_here(str(url)):
            key = policy.get("key_variable", "OPENAI_API_KEY")
            yield Code(f"team.policies.{name}.url", f"calls of {url} with the key in ${key}")


def _is_here(url: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def refused(what: list[str], folder: Path) -> str:
    """What is said of code that a run folder brings and that is not trusted."""
    return (
        f"{folder}: got {'; '.join(what)}, which this run folder brings or asks for; expected code of your own outside "
        f"of it. Where you know who made the folder, read that, and add {FLAG} to let it run."
    )


def admit(folder: Path, raw: Mapping[str, Any], trust: bool, own: Mapping[str, Any] | None = None) -> list[Code]:
    """Return the files that playing with the configuration of a run would import.

    `own` is what the user says beside the run: a recipe that is named, and changes. Raises ConfigError where files lie
    in the run folder, or where its configuration asks for more than files, none of which is `own`, nor the run begun
    here with it (`note_begun`), and the user does not `trust` it.
    """
    files = list({code.file: code for code in code_of(raw)}.values())
    if trust:
        _distrusted.discard(folder.absolute())
        return files
    brought = [code for code in files if code.file and lies_in(code.file, folder)]
    said = list(reaches_of(own or {}))
    for code in reaches_of(raw):
        if _brings_file(code, raw, folder) or (code not in said and not _note(folder, folder, code).is_file()):
            brought.append(code)
    if brought:
        raise ConfigError(refused([f"{code.what[:200]} ({code.setting})" for code in brought], folder))
    _distrusted.add(folder.absolute())
    return files


def _brings_file(code: Code, raw: Mapping[str, Any], folder: Path) -> bool:
    """Whether a command starts with a word, or a policy with a model, that lies in the run folder."""
    value: Any = raw
    for name in code.setting.removesuffix(".trust_remote_code").split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get("model")
    words = value if isinstance(value, list) else [value]
    return any(isinstance(word, str) and os.path.exists(word) and lies_in(Path(word), folder) for word in words)


def note_begun(built: Path, folder: Path, raw: Mapping[str, Any]) -> None:
    """Note outside of a run, which lies at `built` for now and at `folder` when it is whole, what its configuration
    reaches: the user begins it on this machine. Without a folder for notes the user is asked again."""
    for code in reaches_of(raw):
        with suppress(OSError):
            path = _note(built, folder, code)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def _note(built: Path, folder: Path, code: Code) -> Path:
    """Return the file, outside of all runs, that is there where a run was begun on this machine with what it reaches.

    It is named after the folder's path and inode and after all of the command or address, so that no folder that is
    unpacked or put in the run's place, and no other command, has it.
    """
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    known = [os.path.realpath(folder), os.stat(built).st_ino, code.setting, code.what]
    return Path(state, "cadre", "begun", hashlib.sha256(json.dumps(known).encode(errors="replace")).hexdigest())
