"""Relative paths in a configuration: those in a YAML file start from its folder, all others from the current folder.

A run stores absolute paths, so that it can be resumed from any folder. It also stores the folder that it was started in
(`root`) and its own path from there, so that it can be resumed after both were moved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cadre.errors import RunError
from cadre.files import OpenRecord, Text, read_record
from cadre.plugins import embedded_models, environments
from cadre.settings.user_code import find_module_reference

FILE_AND_NAME = re.compile(r"[^:\s][^:\n]*\.py:\w+")
MODULE_AND_NAME = re.compile(r"[^\W\d][\w.]*:\w+")
# Settings of an environment are any text: what has a folder or an ending may be a file's name.
FILE_LIKE = re.compile(r"[~.]?[^\n]*/[^\n]*|[^\n/]*[^\n/.]\.[A-Za-z]\w{0,7}")
Key = tuple[str, ...]


def resolve_from_file(raw: Mapping[str, Any], recipe: Path) -> dict[str, Any]:
    """Return the content of a YAML file with absolute paths for the files that it names, relative to its own folder."""
    folder = recipe.absolute().parent.resolve()

    def find(key: Key, name: str) -> str | None:
        # A missing file of code is an error that should name where it was expected.
        is_relative = FILE_AND_NAME.fullmatch(name) and not name.startswith(("/", "~"))
        return _existing_path(key, name, folder) or (str(folder / name) if is_relative else None)

    return _replace_paths(raw, find)


def resolve_from_folder(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a configuration with absolute paths for what exists in a folder."""
    return _replace_paths(raw, lambda key, name: _existing_path(key, name, folder))


def describe_root(run: Path) -> dict[str, str]:
    """Return what a run that is started here stores about that: the current folder, and the run's path from there."""
    folder, path = Path.cwd().resolve(), run.absolute().parent.resolve() / run.name
    return {"root": str(folder), "run": os.path.relpath(path, folder)}


def find_roots(run: Path) -> tuple[Path, Path] | None:
    """Return the folder that a run was started in, and where that is now.

    They differ if the folder was moved together with the run, which then has the same path in it still. None if the run
    stores no root.
    """
    try:
        record = read_record(run / "command.json", RootRecord)
    except RunError:
        return None
    old, run_path = Path(record.root), Path(record.run)
    path = run.resolve()
    is_inside = run_path.parts and ".." not in run_path.parts and not run_path.is_absolute()
    if is_inside and path.parts[-len(run_path.parts) :] == run_path.parts:
        return old, Path(*path.parts[: -len(run_path.parts)])
    return old, old


def relocate(raw: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Return the configuration of a run with the new paths of files that were moved together with it: of each that no
    longer exists, and that exists at the same path below the new root."""
    roots = find_roots(run)
    if roots is None or roots[0] == roots[1]:
        return dict(raw)
    old, new = roots

    def find(key: Key, name: str) -> str | None:
        if _existing_path(key, name, new) is not None or not name.startswith(f"{old}/"):
            return None
        return _existing_path(key, f"{new}/{name.removeprefix(f'{old}/')}", new)

    return _replace_paths(raw, find)


def _replace_paths(raw: Mapping[str, Any], find: Callable[[Key, str], str | None]) -> dict[str, Any]:
    """Return a configuration with what `find` returns for each setting that may be a path, if that is not None."""
    return {name: _walk(value, (str(name),), find) for name, value in raw.items()}


def _walk(value: Any, key: Key, find: Callable[[Key, str], str | None]) -> Any:
    if isinstance(value, Mapping):
        is_policy = (key[:2] == ("team", "policies") and len(key) == 3) or key == ("teacher", "model")
        is_remote = is_policy and value.get("url") is not None
        return {
            name: inner if is_remote and name == "model" else _walk(inner, (*key, str(name)), find)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_walk(inner, (*key, "[]"), find) for inner in value]
    if isinstance(value, str) and _is_path_setting(key, value):
        return find(key, value) or value
    return value


def _is_path_setting(key: Key, value: str) -> bool:
    match key:
        case ("team", "prompts", *_):
            return False
        case ("env",):
            return value not in environments() and bool(
                FILE_AND_NAME.fullmatch(value) or MODULE_AND_NAME.fullmatch(value)
            )
        case ("team",) | ("team", "policies", _) | ("team", "policies", _, "model"):
            return value not in embedded_models()
        case ("algorithm", "critic", "policy") | ("algorithm", "critic", "policy", "model"):
            return value not in embedded_models()
        case ("teacher", "model") | ("teacher", "model", "model"):
            return value not in embedded_models()
        case (*_, "lora", "path" | "adapter") | ("algorithm", "reward_model"):
            return True
        case ("settings", "source") | ("evaluate", "settings", "source"):
            return value not in ("hub", "example")
        case ("settings", "run", "[]"):
            return True
        case ("settings", *_) | ("evaluate", "settings", *_):
            return bool(FILE_LIKE.fullmatch(value) or FILE_AND_NAME.fullmatch(value))
    return bool(FILE_AND_NAME.fullmatch(value))


def _existing_path(key: Key, name: str, folder: Path) -> str | None:
    """Return the absolute path of what `name` is from a folder, or None if nothing exists there."""
    if key == ("env",) and not FILE_AND_NAME.fullmatch(name):
        return find_module_reference(name, folder)
    file, colon, attribute = name.rpartition(":") if FILE_AND_NAME.fullmatch(name) else (name, "", "")
    path = Path(folder, Path(file).expanduser())
    if key[:1] == ("settings",) and key[-1] == "[]" and not path.is_file():
        return None  # a word of a command, such as the program `python`, is no folder
    try:
        return f"{path.absolute()}{colon}{attribute}" if file and path.exists() else None
    except OSError:
        return None  # too long for a name


class RootRecord(OpenRecord):
    """The folder that a run was started in and the run's path from there, in `command.json`."""

    root: Text
    run: Text
