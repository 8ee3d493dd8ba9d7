"""Result lines: one JSON object a measurement, appended to results/NAME.jsonl and never edited."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

# What is measured is this checkout.
sys.path.insert(0, str(Path(__file__).parent.parent))
from cadre.runs.folder import describe_machine

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
CADRE = [sys.executable, "-m", "cadre"]


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

    `measured` is the commit that was measured, where that is not the present one. Raises ValueError, with the figure in
    its message, for a commit that nobody can check out (`validate_commit`).
    """
    line = measurement(name, values, unit, command, n, seeds, measured)
    append_line(file, line)
    return line


def append_line(file: str, line: Mapping[str, Any]) -> None:
    """Append a line to results/FILE.jsonl. Raises ValueError as `record` does."""
    try:
        validate_commit(str(line["commit"]))
    except ValueError as error:
        raise ValueError(f"{error} Not recorded: {json.dumps(line)}") from None
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{file}.jsonl").open("a") as out:
        out.write(json.dumps(line) + "\n")


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


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of a run without the metrics that say how long something took."""
    return {name: value for name, value in line.items() if not name.startswith("time/") and not name.endswith("_per_s")}


SHIPPED = ("cadre", "cadre_analysis", "cadre_programs", "cadre_ray", "cadre_sandbox", "cadre_tasks", "cadre_tinker")
MEASURED_CODE = (*SHIPPED, "bench", "lab")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a folder; remove it at the end."""
    _git("worktree", "add", "--quiet", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def commit() -> str:
    """Return the commit that is measured, with a plus where tracked code differs from it.

    Where there is no git it is $BENCH_COMMIT, or "unknown".
    """
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED_CODE)
        return _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return os.environ.get("BENCH_COMMIT", "unknown")


def validate_commit(commits: str) -> None:
    """Raise ValueError unless all commits, parted by commas, can be checked out from the present history.

    Where there is no git, a hash is taken as it is.
    """
    for revision in re.split(r",\s*", commits):
        if re.fullmatch("[0-9a-f]{7,40}[+]", revision):
            raise ValueError(
                f"Got the commit {revision}: code differed from it when it was measured. Commit, measure again."
            )
        if not re.fullmatch("[0-9a-f]{7,40}", revision):
            raise ValueError(
                f"Got the commit {revision!r}; expected a hash. Where there is no git, set BENCH_COMMIT to it."
            )
        try:
            _git("rev-parse", "--git-dir")
        except (FileNotFoundError, subprocess.CalledProcessError):
            continue
        try:
            _git("merge-base", "--is-ancestor", revision, "HEAD")
        except subprocess.CalledProcessError:
            expected = "Measure a commit of HEAD's history."
            raise ValueError(f"Got the commit {revision}, which HEAD does not descend from. {expected}") from None


def latest() -> dict[str, dict[str, Any]]:
    """The newest line of every name."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        newest.update(_newest_lines(path, path.stat().st_mtime_ns))
    return newest


@cache
def _newest_lines(path: Path, changed: int) -> dict[str, dict[str, Any]]:
    """Return the newest line of every name in a file, which is read again only when it has changed."""
    return {line["name"]: line for line in map(json.loads, path.read_text().splitlines())}
