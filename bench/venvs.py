"""The rivals' virtual environments: made once, kept, each with the same torch and transformers as ours."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from rich.console import Console

RIVALS = {"trl": "trl==1.16.0", "comlrl": "comlrl==1.4.3"}
MARK = "requirements.txt"

console = Console(soft_wrap=True)


def requirements(rival: str) -> list[str]:
    """Return the packages of an environment. Torch is first and exact, so that pip takes a CPU build."""
    same = (f"{package}=={importlib.metadata.version(package).split('+')[0]}" for package in ("torch", "transformers"))
    return [*same, RIVALS[rival]]


def interpreter(rival: str, folder: Path) -> Path:
    """The Python of a rival's environment under `folder`, made now unless it is there with the same versions."""
    home = folder / rival
    python, mark, pins = home / "bin" / "python", home / MARK, requirements(rival)
    if not (mark.exists() and mark.read_text().split() == pins):
        console.print(f"making {home} with {', '.join(pins)}; this takes some minutes", highlight=False)
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        torch, *packages = pins
        for group in ([torch], [torch, *packages]):
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *group], check=True)
        mark.write_text("\n".join(pins) + "\n")
    return python
