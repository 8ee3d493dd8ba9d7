"""Folders that are whole or not there: written aside, checksummed, flushed to the disk, and only then given their name.

A sealed folder holds `manifest.json`: the size and SHA-256 of every other file. `damage` says what is wrong with one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from cadre.data.atomic import flush
from cadre.errors import RunError
from cadre.experiment.records import Manifest, read_record
from cadre.experiment.to_disk import writing

MANIFEST = "manifest.json"


def write(final: Path, fill: Callable[[Path], None]) -> Path:
    """Let `fill` write into a folder aside, seal it and move it to `final`.

    Whatever goes wrong (a full disk, say), `final` does not come to be and what was written aside is removed.
    Raises RunError where the disk refuses.
    """
    partial = final.with_name(f".partial-{final.name}")
    shutil.rmtree(partial, ignore_errors=True)
    with writing(final):
        partial.mkdir(parents=True)
        try:
            fill(partial)
            _seal(partial)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        flush(final.parent)
    return final


def damage(folder: Path) -> str | None:
    """What is wrong with a sealed folder, in words, or None where every file is as it was written."""
    if not folder.is_dir() or folder.is_symlink():
        return "it is a link" if folder.is_symlink() else "it is no folder"
    try:
        expected = read_record(folder / MANIFEST, Manifest).files
    except RunError:
        return f"{MANIFEST} is missing or broken"
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    for name, path in found.items():
        if path.is_symlink():
            return f"{name} is a link, which is not followed"
        if path.is_file() and name != MANIFEST and name not in expected and not path.name.startswith("."):
            return f"{name} is not among what was written"
    for name, entry in expected.items():
        if name not in found or not found[name].is_file():
            return f"{name} is missing"
        size = found[name].stat().st_size
        if size != entry.bytes:
            return f"{name} has {size:,} bytes in place of {entry.bytes:,}"
        if _sha256(found[name]) != entry.sha256:
            return f"{name} is not what was written (its checksum differs)"
    return None


def _seal(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in files}
    (folder / MANIFEST).write_text(json.dumps({"files": entries}, indent=1) + "\n")
    for path in folder.rglob("*"):
        flush(path)
    flush(folder)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
