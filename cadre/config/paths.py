"""Relative paths in a configuration: those in a YAML file start from its folder, all others from the current folder.

A run stores absolute paths, so that it can be resumed from any folder. It also stores the folder that it was started in
(`root`) and its own path from there, so that it can be resumed after both were moved.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadre.errors import RunError
from cadre.files import OpenRecord, Text, read_record
from cadre.plugins import embedded_models, environments
from cadre.settings.user_code import file_of_module

log = logging.getLogger(__name__)


FILE_AND_NAME = re.compile(r"[^:\s][^:\n]*\.py:\w+")


MODULE_AND_NAME = re.compile(r"[^\W\d][\w.]*:\w+")


# Settings of an environment are any text: what has a folder or an ending may be a file's name.
FILE_LIKE = re.compile(r"[~.]?[^\n]*/[^\n]*|[^\n/]*[^\n/.]\.[A-Za-z]\w{0,7}")


Key = tuple[str, ...]


def resolve_from_file(raw: Mapping[str, Any], recipe: Path) -> dict[str, Any]:
    """Return what a YAML file says with whole paths of the files that it names from its own folder.

    What lies in the current folder alone is what it meant once: it is still taken, with a warning.
    """
    here = recipe.absolute().parent.resolve()

    def find(key: Key, name: str) -> str | None:
        beside, before = _existing_path(key, name, here), _existing_path(key, name, Path.cwd())
        if before is not None and not _is_same_path(beside, before):
            also = f"; {before} is not meant any more" if beside else ""
            where = "" if beside else ", where it is not, but in the current folder"
            log.warning(
                "%s: %s: %s is meant from the folder of the file%s%s. Write it from there, or as a whole path.",
                recipe,
                ".".join(key),
                name,
                where,
                also,
            )
        return (
            beside or before or (str(here / name) if FILE_AND_NAME.fullmatch(name) and not _is_absolute(name) else None)
        )

    return {name: _walk(value, (str(name),), find) for name, value in raw.items()}


def resolve_from_cwd(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with whole paths of what lies in the current folder."""
    return {
        name: _walk(value, (str(name),), lambda key, text: _existing_path(key, text, Path.cwd()))
        for name, value in raw.items()
    }


def resolve_from_folder(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a configuration with whole paths of what lies in a folder."""
    return {
        name: _walk(value, (str(name),), lambda key, text: _existing_path(key, text, folder))
        for name, value in raw.items()
    }


def describe_root(run: Path) -> dict[str, str]:
    """Return what a run that is begun here notes of where that is."""
    here, place = Path.cwd().resolve(), run.absolute().parent.resolve() / run.name
    return {"root": str(here), "run": os.path.relpath(place, here)}


def find_roots(run: Path) -> tuple[Path, Path] | None:
    """Return the folder that a run was begun in, and where that is now: moved as the run was, if that has the same
    place in it still. None where the run notes none."""
    try:
        begun = read_record(run / "command.json", RootRecord)
    except RunError:
        return None
    before, place = Path(begun.root), Path(begun.run)
    now = run.resolve()
    inside = place.parts and ".." not in place.parts and not place.is_absolute()
    if inside and now.parts[-len(place.parts) :] == place.parts:
        return before, Path(*now.parts[: -len(place.parts)])
    return before, before


def relocate(raw: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Return the configuration of a run with the paths of what was moved together with it: of each that is not there
    any more, and that lies at the same place below the folder that the run was begun in."""
    roots = find_roots(run)
    if roots is None or roots[0] == roots[1]:
        return dict(raw)
    before, now = roots

    def find(key: Key, name: str) -> str | None:
        if _existing_path(key, name, now) is not None or not name.startswith(f"{before}/"):
            return None
        return _existing_path(key, f"{now}/{name.removeprefix(f'{before}/')}", now)

    return {name: _walk(value, (str(name),), find) for name, value in raw.items()}


def _walk(value: Any, key: Key, find: Any) -> Any:
    if isinstance(value, Mapping):
        is_remote = key[:2] == ("team", "policies") and len(key) == 3 and value.get("url") is not None
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
    """The whole path of what the name says from a folder, if something lies there."""
    if key == ("env",) and not FILE_AND_NAME.fullmatch(name):
        return file_of_module(name, folder)
    file, colon, attribute = name.rpartition(":") if FILE_AND_NAME.fullmatch(name) else (name, "", "")
    path = Path(folder, Path(file).expanduser())
    if key[:1] == ("settings",) and key[-1] == "[]" and not path.is_file():
        return None  # a word of a command, such as the program `python`, is no folder
    try:
        return f"{path.absolute()}{colon}{attribute}" if file and path.exists() else None
    except OSError:
        return None  # too long for a name


def _is_absolute(name: str) -> bool:
    return name.startswith(("/", "~"))


def _is_same_path(beside: str | None, before: str) -> bool:
    def plain(name: str) -> Path:
        return Path(name.rpartition(":")[0] if FILE_AND_NAME.fullmatch(name) else name).resolve()

    return beside is not None and plain(beside) == plain(before)


class RootRecord(OpenRecord):
    """Where a run was begun, in `command.json`: a folder, and the run's place in it."""

    root: Text
    run: Text
