"""The folder of a sweep: its record, and the runs that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cadre.errors import RunError
from cadre.files import OpenRecord, read_record

# In the folder of a sweep: what all its runs have in common.
RECORD = "sweep.json"


class SweepRecord(OpenRecord):
    """What the runs of a sweep have in common, and what is set in each of them."""

    recipe: str
    overrides: list[str]
    runs: dict[str, list[str]] = {}


def expand_sweeps(folders: Sequence[Path]) -> list[Path]:
    """Return the folders with that of a sweep replaced by those of its runs that have begun, in the sweep's order."""
    expanded = []
    for folder in folders:
        if (folder / RECORD).is_file():
            # The record may be a stranger's: a run lies in the folder itself.
            names = [name for name in read_record(folder / RECORD, SweepRecord).runs if Path(name).name == name]
            begun = [folder / name for name in names if (folder / name / "config.yaml").is_file()]
            if not begun:
                raise RunError(f"{folder} holds a sweep without any run; expected one that has begun. Go on with it.")
            expanded += begun
        else:
            expanded.append(folder)
    return expanded
