"""Tinker's own client, where it is installed: the program of docs/tinker.md as it is printed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cadre_tinker.served import KEY, Served
from tests.docs.blocks import blocks

pytest.importorskip("tinker", reason="Tinker's client is not installed")


def test_the_program_of_the_page_trains(served: Served) -> None:
    (program,) = [block.text for block in blocks("py") if block.page == "docs/tinker.md"]
    address = {"TINKER_BASE_URL": f"http://127.0.0.1:{served.port}", "TINKER_API_KEY": KEY}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env={**os.environ, **address}, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    losses = [float(line.partition("'loss:sum': ")[2].partition("}")[0]) for line in result.stdout.splitlines()[:5]]
    assert losses == sorted(losses, reverse=True)
