"""A new task, its recipe and its test pass as they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cadre.config.experiment import load
from cadre.config.resolve import resolve
from tests.cli.calling import call


def test_what_is_written_passes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("init", "my_task")
    assert (done.code, done.err) == (0, "")
    assert resolve(load("my_task.yaml")).env_spec.roles == ("helper", "solver")
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_task.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert call("init", "my_task").code == 2


@pytest.mark.parametrize("name", ["My", "a-b", "1x", "../x", "class", "none", "task", "env", "json", "cadre"])
def test_other_names_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("init", name)
    assert done.code == 2
    assert "my_task" in done.err or f"my_{name}" in done.err
    assert list(tmp_path.iterdir()) == []
