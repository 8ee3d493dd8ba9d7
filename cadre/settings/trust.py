"""Decide whose code may run: reading a run folder runs none, playing it runs the folder's own code with --trust only.

A run folder may be a stranger's. The code that its configuration names (an environment, a function, a program) is that
stranger's choice, and so are the commands it starts and the machines it reaches.
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
from cadre.settings.user_imports import OWN_PACKAGES

FLAG = "--trust"
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_only_reading: ContextVar[bool] = ContextVar("only_reading", default=False)
# Run folders whose own code is not trusted in this process. Not a context variable: imports may come from any thread.
_untrusted_folders: set[Path] = set()


@dataclass(frozen=True)
class CodeReference:
    """Code that a configuration would run: the setting that names it, a description, and the file if it is one."""

    setting: str
    description: str
    file: Path | None = None


# Files that the configuration of a run imports, until the user has been told.
_pending_notice: list[CodeReference] = []


# ---- Before code runs


@contextmanager
def only_reading() -> Iterator[None]:
    """Run no code that a configuration names within this context: `check_code` raises."""
    token = _only_reading.set(True)
    try:
        yield
    finally:
        _only_reading.reset(token)


def check_code(setting: str, path: Path) -> None:
    """Raise ConfigError if a file must not run: while a run is only read, or in a folder that is not trusted."""
    if _only_reading.get():
        raise ConfigError(
            f"{setting}: names {path}, code that reading a run does not run; expected a configuration that stands by "
            "itself. Write out team.roles, or use a command that plays."
        )
    for folder in _untrusted_folders:
        if is_inside(path, folder):
            raise ConfigError(untrusted_code_message([f"{path} ({setting})"], folder))
    print_import_notice()  # first, since the user's code may end the process


def queue_import_notice(files: Sequence[CodeReference]) -> None:
    """Keep the files that the configuration of a run imports, to name them before the first of them runs."""
    _pending_notice[:] = files


def print_import_notice() -> None:
    """Name the queued files on stderr, once. Called by `check_code`, and where a run begins without an import."""
    for code in _pending_notice:
        sys.stderr.write(f"imports {one_line(code.description)} ({one_line(code.setting)})\n")
    _pending_notice.clear()


# ---- Decide about a run folder


def check_trusted(
    folder: Path, raw: Mapping[str, Any], trust: bool, user_settings: Mapping[str, Any] | None = None
) -> list[CodeReference]:
    """Return the files that playing with the configuration `raw` of a run folder imports.

    `user_settings` come from the user beside the run: a recipe they name, and changes. Unless the user does `trust` the
    folder, raises ConfigError for files inside of it, and for commands, addresses and the like that are neither in
    `user_settings` nor those of a run that was begun on this machine (`record_begun_run`).
    """
    files = list({code.file: code for code in find_code_files(raw)}.values())
    if trust:
        _untrusted_folders.discard(folder.absolute())
        return files
    untrusted = [code for code in files if code.file and is_inside(code.file, folder)]
    user_codes = list(find_external_access(user_settings or {}))
    for code in find_external_access(raw):
        is_known = code in user_codes or _begun_record(folder, folder, code).is_file()
        if not is_known or _uses_file_inside(code, raw, folder):
            untrusted.append(code)
    if untrusted:
        described = [f"{code.description[:200]} ({code.setting})" for code in untrusted]
        raise ConfigError(untrusted_code_message(described, folder))
    _untrusted_folders.add(folder.absolute())
    return files


def untrusted_code_message(codes: list[str], folder: Path) -> str:
    """Return the error message for code that a run folder brings and that is not trusted."""
    return (
        f"{folder}: got {'; '.join(codes)}, which this run folder brings or asks for; expected code of your own "
        f"outside of it. Where you know who made the folder, read that, and add {FLAG} to let it run."
    )


def record_begun_run(built: Path, folder: Path, raw: Mapping[str, Any]) -> None:
    """Record, outside of all runs, that the user begins a run with these commands and addresses on this machine.

    The run lies at `built` while it is made and at `folder` afterwards. If the record cannot be written, the user is
    asked for --trust later.
    """
    for code in find_external_access(raw):
        with suppress(OSError):
            path = _begun_record(built, folder, code)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def _begun_record(built: Path, folder: Path, code: CodeReference) -> Path:
    """Return the path of the empty file that exists if a run was begun on this machine with this command or address.

    Its name is a hash of the folder's path and inode and of the whole command or address, so that it vouches neither
    for a folder that is unpacked or put in the run's place, nor for another command.
    """
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    identity = [os.path.realpath(folder), os.stat(built).st_ino, code.setting, code.description]
    return Path(state, "cadre", "begun", hashlib.sha256(json.dumps(identity).encode(errors="replace")).hexdigest())


def _uses_file_inside(code: CodeReference, raw: Mapping[str, Any], folder: Path) -> bool:
    """Return True if a word of the command, or the policy's model, is a path inside of the run folder."""
    value: Any = raw
    for name in code.setting.removesuffix(".trust_remote_code").split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get("model")
    words = value if isinstance(value, list) else [value]
    return any(isinstance(word, str) and os.path.exists(word) and is_inside(Path(word), folder) for word in words)


def is_inside(path: Path, folder: Path) -> bool:
    """Return True if a path leads into a folder, either as it is written or with its links resolved."""
    if "\0" in str(path):
        return False
    by_name = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))
    return by_name or Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


# ---- Find the code in a configuration


def find_code_files(raw: Any, setting: str = "") -> Iterator[CodeReference]:
    """Yield every Python file that a configuration names, in any setting."""
    if isinstance(raw, Mapping):
        for name, value in raw.items():
            yield from find_code_files(value, f"{setting}.{name}" if setting else str(name))
    elif isinstance(raw, list | tuple):
        for value in raw:
            yield from find_code_files(value, setting)
    elif isinstance(raw, str) and not setting.startswith("team.prompts"):
        file = find_code_file(raw) or (find_module_file(raw) if setting == "env" else None)
        if file is not None:
            yield CodeReference(setting, str(file), file)


def find_code_file(reference: str) -> Path | None:
    """Return the file behind `FILE.py` or `FILE.py:NAME`, if it exists."""
    for name in (reference, reference.rpartition(":")[0]):
        if name.endswith(".py") and "\0" not in name and os.path.isfile(path := os.path.expanduser(name)):
            return Path(path)
    return None


def find_module_file(reference: str) -> Path | None:
    """Return the file behind `module:NAME`, in the working folder or on Python's path, unless it is Cadre's own.

    Nothing is imported to find it.
    """
    module, colon, _ = reference.rpartition(":")
    if not colon or not MODULE.fullmatch(module) or module.partition(".")[0] in OWN_PACKAGES:
        return None
    path = Path(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    spec = PathFinder.find_spec(module.partition(".")[0])
    return Path(spec.origin) if spec is not None and spec.origin and Path(spec.origin).is_file() else None


def find_external_access(raw: Mapping[str, Any]) -> Iterator[CodeReference]:
    """Yield what a configuration starts or reaches beside Python files.

    These are commands of the environment, code that ships with checkpoints, endpoints and clusters on other machines,
    and a sandbox of the weakest level. `raw` is any YAML: nothing about its types is taken for granted.
    """

    def section(*names: str) -> Mapping[str, Any]:
        value: Any = raw
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    for names in (("settings",), ("evaluate", "settings")):
        for name in ("run", "python"):
            value = section(*names).get(name)
            if isinstance(value, list) or (name == "python" and value):
                words = shlex.join(map(str, value)) if isinstance(value, list) else str(value)
                yield CodeReference(".".join((*names, name)), f"the command {words!r}")

    policies = {f"team.policies.{name}": policy for name, policy in section("team", "policies").items()}
    policies["algorithm.critic.policy"] = section("algorithm", "critic").get("policy")
    policies["teacher.model"] = section("teacher").get("model")
    for setting, policy in policies.items():
        if not isinstance(policy, Mapping):
            continue
        if policy.get("trust_remote_code"):
            model = policy.get("model")
            yield CodeReference(f"{setting}.trust_remote_code", f"the code that ships with {model!r}")
        if (url := policy.get("url")) and not _is_local_address(str(url)):
            key = policy.get("key_variable", "OPENAI_API_KEY")
            yield CodeReference(f"{setting}.url", f"calls of {url} with the key in ${key}")

    address = section("cluster").get("address")
    if address and address != "auto" and not _is_local_address(str(address)):
        yield CodeReference("cluster.address", f"the Ray cluster at {address}")
    if section("sandbox").get("level") == "process":
        yield CodeReference("sandbox.level", "programs that models write, confined by rlimits only")


def _is_local_address(url: str) -> bool:
    """Return True if the address is this machine's own."""
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
