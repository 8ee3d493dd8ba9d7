"""Folders that are whole or not there: written aside, checksummed, flushed to the disk, and only then given their name.

A sealed folder holds `manifest.json`: the size and SHA-256 of every other file. `damage` says what is wrong with one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cadre.data.atomic import flush
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
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        expected: dict[str, dict[str, Any]] = manifest["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST} is missing or broken"
    for name, entry in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["bytes"]:
            return f"{name} has {path.stat().st_size:,} bytes in place of {entry['bytes']:,}"
        if _sha256(path) != entry["sha256"]:
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
