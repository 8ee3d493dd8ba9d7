"""Which commits a run was made with."""

from __future__ import annotations

import subprocess
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def commits() -> dict[str, str]:
    """Of Cadre where it runs from a checkout, and of the folder `here` where the run was begun, if these are in git."""
    known = {"cadre": commit_of(PACKAGE), "here": commit_of(Path())}
    return {name: commit for name, commit in known.items() if commit}


def commit_of(folder: Path) -> str:
    """`629b2570a1b2`, with a plus where tracked files differ from it; nothing where there is no git."""
    head = _git(folder, "rev-parse", "--short=12", "HEAD")
    return head + ("+" if head and _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
