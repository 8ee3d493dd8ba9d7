"""Attacks on the sandbox by another user, in a process of their own."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from cadre_sandbox.inside.landlock import NEWEST as NEWEST

ROOT = Path(__file__).parents[1]


NOBODY = 65_534


INTERPRETERS = (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/bin/python3.11", "/usr/bin/python3.12")


def works_for_nobody(python: str) -> bool:
    """Return True if an ordinary user can start the interpreter, and it is recent enough."""
    try:
        check = "import sys; sys.exit(sys.version_info < (3, 11))"
        return not subprocess.run([python, "-I", "-c", check], user=NOBODY, group=NOBODY, extra_groups=[]).returncode
    except OSError:
        return False


@cache
def project() -> Path:
    """The project, or a copy that lasts as long as the tests where an ordinary user may not look into its folder."""
    if all(folder.stat().st_mode & 0o001 for folder in (ROOT, *ROOT.parents)):
        return ROOT
    copy = Path(tempfile.mkdtemp(prefix="cadre-project-"))
    atexit.register(shutil.rmtree, copy)
    copy.chmod(0o755)
    for part in ("cadre_sandbox", "tests"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def assault(
    level: str, user: str, abi: int = NEWEST, kinds: Sequence[str] = (), per_kind: int = 0
) -> list[dict[str, str]]:
    """Run `assault.py` as the user; the outcomes of every attack, or of so many of each kind."""
    if user == "root" and os.getuid() != 0:
        pytest.skip("not root")
    script = str(project() / "tests" / "cadre_sandbox" / "assault.py")
    python, identity = sys.executable, {}
    if user == "ordinary" and os.getuid() == 0:
        reachable = [path for path in INTERPRETERS if os.path.exists(path) and works_for_nobody(path)]
        if not reachable:
            pytest.skip("no Python 3.11 or later that an ordinary user can start")
        python, identity = reachable[0], {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    environment = {"PYTHONPATH": str(project()), "PATH": "/usr/bin:/bin"}
    command = [python, "-B", script, level, str(abi), str(per_kind), *kinds]
    completed = subprocess.run(
        command, env=environment, cwd="/", capture_output=True, text=True, timeout=600, **identity
    )
    assert completed.returncode == 0, completed.stderr
    report = json.loads(completed.stdout)
    assert (report["uid"] == 0) == (user == "root")
    return report["outcomes"]
