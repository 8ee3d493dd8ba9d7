"""One signal ends a command in order, from its first import on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from cadre import cli


def stopped(arguments: list[str], final: float, number: signal.Signals, folder: Path) -> tuple[int, str]:
    """The exit code of a command that gets the signal so many seconds after it has begun, and what it told."""
    # The marker is there once Python itself is up; what it does before is its own.
    begun = folder / "begun"
    code = f"import sys; open({str(begun)!r}, 'w').close(); from cadre.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while not begun.exists():
        time.sleep(0.005)
    time.sleep(final)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@pytest.mark.parametrize("final", [0.1, 0.6])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_first_second_leaves_no_traceback(
    final: float, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    got, message = stopped(["train", "plan-path", "--run", "out"], final, number, tmp_path)
    assert got in (code, 130), message  # a training that has begun saves, and then ends with 130
    assert "Traceback" not in message


def test_a_signal_that_an_import_ignored_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    class App(ModuleType):
        @property
        def main(self) -> object:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            return lambda: pytest.fail("the command ran")

    def end(number: int) -> None:
        raise SystemExit(128 + number)

    monkeypatch.setitem(sys.modules, "cadre.cli.app", App("app"))
    monkeypatch.setattr(cli, "_end_process", end)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 128 + signal.SIGTERM
