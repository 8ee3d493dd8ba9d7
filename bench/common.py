"""Result lines: one JSON object a measurement, appended to results/NAME.jsonl and never edited."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# What is measured is this checkout, and a bench may take from its tests what they have made.
sys.path.insert(0, str(Path(__file__).parent.parent))
from cadre.runs.folder import describe_machine

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def record(
    file: str,
    name: str,
    values: Sequence[float],
    unit: str,
    command: str,
    n: int,
    seeds: Sequence[int] = (),
    measured: str = "",
) -> dict[str, Any]:
    """Append one measurement: the median of the values, and the lowest and highest of them.

    `measured` is the commit that was measured, where that is not the present one.
    """
    line = measurement(name, values, unit, command, n, seeds, measured)
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{file}.jsonl").open("a") as out:
        out.write(json.dumps(line) + "\n")
    return line


def measurement(
    name: str,
    values: Sequence[float],
    unit: str,
    command: str,
    n: int,
    seeds: Sequence[int] = (),
    measured: str = "",
) -> dict[str, Any]:
    """Return the line of one measurement, as `record` appends it."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return {
        "name": name,
        "value": float(f"{median:.6g}"),
        "low": float(f"{ordered[0]:.6g}"),
        "high": float(f"{ordered[-1]:.6g}"),
        "unit": unit,
        "n": n,
        "seeds": list(seeds),
        "command": command,
        "commit": measured or commit(),
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
    }


def commit() -> str:
    """The commit that is measured, with a plus where tracked files differ from it; "unknown" where there is no git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "cadre", "bench")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"


def latest() -> dict[str, dict[str, Any]]:
    """The newest line of every name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            found[one["name"]] = one
    return found
