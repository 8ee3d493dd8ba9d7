"""The tutorial as it is written, in a fresh environment: minutes, success, and how many blocks of all pages work.

    python bench/tutorial.py [--write] [--torch "torch==2.13.0"]

Every command of docs/tutorial.md is run in the order of the page, in a new folder with a new virtual environment.
`--torch` is what pip is asked for in place of the index that the page names. `cadre view` is ended once it has printed
its address; what walks with keys prints without a terminal.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, record
from tests.docs.blocks import Block, blocks_of, commands

PAGE = ROOT / "docs" / "tutorial.md"


def run(command: list[str], folder: Path) -> str:
    began = time.monotonic()
    path = f"{folder}/.venv/bin:{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env={**clean, "PATH": path}, capture_output=True, text=True, check=False)
    print(f"{time.monotonic() - began:6.1f} s  {shlex.join(command)[:100]}", flush=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def viewed(command: list[str], folder: Path) -> None:
    """Bring the page up until it says where it is."""
    path = f"{folder}/.venv/bin:{os.environ['PATH']}"
    server = subprocess.Popen(command, cwd=folder, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("http://127.0.0.1:")
    server.terminate()
    server.wait()


def set_up(block: Block, folder: Path, torch: str) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line.replace("/path/to/cadre", str(ROOT)))
        if "--index-url" in words and torch:
            words = [*words[: words.index("torch")], torch]
        if words[0] != "source":
            run(words, folder)


def follow(folder: Path, torch: str) -> tuple[int, list[str]]:
    """Do all that the page says; how many blocks that were, and what evaluations said."""
    done, said = 0, []
    for block in blocks_of(PAGE):
        if block.language in ("python", "yaml"):
            (folder / re.findall(r"[\w]+\.(?:py|yaml)", block.text)[0]).write_text(block.text)
        elif block.language == "bash":
            set_up(block, folder, torch)
        for words in commands(block):
            command = [str(folder / ".venv" / "bin" / "cadre"), *words]
            if words[0] == "view":
                viewed(command, folder)
            else:
                said += [line for line in run(command, folder).splitlines() if line.startswith("success on")]
        done += bool(block.language or commands(block))
    return done, said


def successes(said: list[str]) -> dict[str, float]:
    """Return held-out success before and after the page's two trainings, from the lines in which they report it."""
    names = ("tutorial.corridor", "tutorial.shared")
    return {
        f"{name}.{when}.success": float(percent) / 100
        for name, line in zip(names, said, strict=True)
        for percent, when in re.findall(r"([\d.]+)% (before|after)", line)
    }


def checked() -> int:
    """Return the number of blocks and commands of all pages that pass their tests."""
    tests = ["tests/docs/test_blocks.py", "tests/docs/test_commands.py"]
    chosen = "not of_every_kind and not no_shell"
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "-k", chosen, *tests]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert "failed" not in printed, printed
    return int(re.findall(r"(\d+) passed", printed)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="append to results/docs.jsonl")
    parser.add_argument("--torch", default="", help="what pip is asked for in place of the page's index")
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        followed, said = follow(Path(scratch), asked.torch)
    minutes = (time.monotonic() - began) / 60
    figures = {"tutorial.minutes": minutes, "tutorial.blocks": followed, "docs.blocks_run": checked()}
    figures |= successes(said)
    print(figures, f"load {os.getloadavg()}")
    if asked.write:
        for name, value in figures.items():
            unit = {"minutes": "min", "success": "share"}.get(name.rpartition(".")[2], "count")
            record("docs", name, [value], unit, "python bench/tutorial.py --write --torch torch==2.13.0", 1)


if __name__ == "__main__":
    main()
