"""What all harnesses share: a git repository of their own with a failing test, and the variables that they are given.

An instance starts in an empty folder of its own. Here it gets `repository`, where the agent works, and `home`.
The user's environment stays outside. With `LIBFAKETIME: PATH` in the recipe's `environment`, the clock of children that
are no Python stands still.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

PERSONALITY_WITHOUT_RANDOM_ADDRESSES = 0x0040000
# What Cadre sets so that Python children keep its clock.
PASSED_ON = "PYTHONPATH PYTHONHASHSEED CADRE_CLOCK CADRE_SEED CADRE_STEADY_SECRETS TMPDIR".split()
DATE = "2026-01-01 12:00:00"
GIT = {"NAME": "agent", "EMAIL": "agent@example.org", "DATE": f"{DATE} +0000"}


def prepare(task):
    """Return (folder of the repository, variables of the agent) for a task with `files` and `issue`."""
    work = Path.cwd()
    home, folder = work / "home", work / "repository"
    home.mkdir()
    for name, text in task["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    # Addresses of objects, which Python prints, are the same in every process from here on.
    ctypes.CDLL(None).personality(PERSONALITY_WITHOUT_RANDOM_ADDRESSES)
    variables = {
        "HOME": str(home),
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in GIT.items()},
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
    }
    if library := os.environ.get("LIBFAKETIME"):
        variables |= {"LD_PRELOAD": library, "FAKETIME": DATE, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "Start"]):
        subprocess.run(["git", *command], cwd=folder, env=variables, check=True)
    start = 1767268800  # DATE
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (start, start))
    return folder, variables


def collect(folder):
    """Return the text files of the repository that the agent leaves, for the judge."""
    paths = [path for path in folder.rglob("*.py") if ".git" not in path.parts and not path.is_symlink()]
    texts = {str(path.relative_to(folder)): path.read_bytes()[:20_000].decode(errors="replace") for path in paths[:50]}
    return {"files": texts}


def run(command, folder, variables):
    """Run a harness's command line to its end; what it prints is the program's own output. Raises if it fails."""
    subprocess.run(command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, check=True)
