"""`cadre bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from cadre.errors import RunError


def bench(context: typer.Context) -> None:
    """Measure speed on this machine against other trainers; `cadre bench --help` lists the parts and options."""
    script = Path(__file__).parents[2] / "bench" / "speed.py"
    if not script.exists():
        raise RunError(
            f"bench: got no {script}; expected a checkout of the repository, as the benchmarks are not in the package. "
            "Clone it and install it with pip install -e ."
        )
    sys.exit(subprocess.run([sys.executable, str(script), *context.args], check=False).returncode)
