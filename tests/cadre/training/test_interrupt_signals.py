"""Real processes that train and get signals: what was begun is saved, whatever becomes of the terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cadre.config.experiment import dump
from cadre.training import interrupt as interrupt_module
from cadre.training.checkpoint import latest_checkpoint
from cadre.training.interrupt import Interrupt
from tests.helpers.forked import CADRE, Forked
from tests.helpers.slow import few_of
from tests.helpers.training import configured

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")

COMMAND = ["train", "digit.yaml", "--run", "out"]
# A save takes longer than a second, and writes a file when it has begun.
SLOW = """
import time
from cadre.training import checkpoint
save = checkpoint.write_with_manifest
def slow(final, fill):
    def filling(partial):
        open("saving", "a").write("begun ")
        time.sleep(1.6)
        fill(partial)
    return save(final, filling if final.name != "step-000000" else fill)
checkpoint.write_with_manifest = slow
"""


def begun(model: Path, folder: Path, code: str = CADRE, terminal: str | None = None) -> Forked:
    """A training without end, once it has made three steps."""
    chosen = configured(model, train={"steps": 100_000, "tasks_per_step": 4}, evaluate={"tasks": 0})
    (folder / "digit.yaml").write_text(dump(chosen))
    process = Forked(COMMAND, folder, code, terminal=terminal)
    until(lambda: steps_logged(folder) >= 3)
    return process


def until(true: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def steps_logged(folder: Path) -> int:
    metrics = folder / "out" / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def steps_saved(folder: Path) -> int:
    saved = latest_checkpoint(folder / "out" / "checkpoints")
    return int(json.loads((saved / "state.json").read_text())["step"])


@pytest.mark.parametrize("number", few_of([signal.SIGHUP, signal.SIGTERM, signal.SIGINT], [signal.SIGTERM]))
def test_every_signal_saves(number: signal.Signals, speaker: Path, tmp_path: Path) -> None:
    process = begun(speaker, tmp_path)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=90)
    assert process.returncode == 130, printed
    assert "Ctrl-C again" in printed
    assert "cadre train --run out --resume" in printed
    assert "Traceback" not in printed
    assert steps_saved(tmp_path) == steps_logged(tmp_path) >= 3


@pytest.mark.slow  # of the clock alone: test_signals_within_a_second_are_one_wish
def test_a_second_ctrl_c_within_a_second_loses_nothing(speaker: Path, tmp_path: Path) -> None:
    process = begun(speaker, tmp_path, SLOW + CADRE)
    process.send_signal(signal.SIGINT)
    until((tmp_path / "saving").exists)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=90)
    assert process.returncode == 130, printed
    assert steps_saved(tmp_path) == steps_logged(tmp_path) >= 3


def test_one_after_more_than_a_second_ends_at_once_and_keeps_the_last_save(speaker: Path, tmp_path: Path) -> None:
    process = begun(speaker, tmp_path, SLOW + CADRE)
    process.send_signal(signal.SIGINT)
    until((tmp_path / "saving").exists)
    time.sleep(1.1)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=90)
    assert process.returncode == 130, printed
    assert (tmp_path / "saving").read_text() == "begun "
    assert steps_saved(tmp_path) == 0
    assert "Traceback" not in printed


@pytest.mark.slow  # of the clock alone: test_signals_within_a_second_are_one_wish
def test_a_second_sigterm_is_no_force(speaker: Path, tmp_path: Path) -> None:
    process = begun(speaker, tmp_path, SLOW + CADRE)
    process.send_signal(signal.SIGHUP)
    until((tmp_path / "saving").exists)
    time.sleep(1.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    assert steps_saved(tmp_path) == steps_logged(tmp_path) >= 3


def test_a_reader_that_is_gone_costs_nothing(speaker: Path, tmp_path: Path) -> None:
    """Ctrl-C ends the `tee` that the output is piped into, too."""
    process = begun(speaker, tmp_path)
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(timeout=90) == 130
    assert steps_saved(tmp_path) == steps_logged(tmp_path) >= 3


def test_a_terminal_that_hangs_up_costs_nothing(speaker: Path, tmp_path: Path) -> None:
    actual, reference = pty.openpty()
    process = begun(speaker, tmp_path, terminal=os.ttyname(reference))
    os.close(reference)
    os.close(actual)
    assert process.wait(timeout=90) == 130
    assert steps_saved(tmp_path) == steps_logged(tmp_path) >= 3


def test_a_hang_up_that_is_ignored_stays_so(speaker: Path, tmp_path: Path) -> None:
    """Nohup sets this up."""
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    process = begun(speaker, tmp_path, ignoring + CADRE)
    process.send_signal(signal.SIGHUP)
    present = steps_logged(tmp_path)
    until(lambda: steps_logged(tmp_path) > present + 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    assert steps_saved(tmp_path) == steps_logged(tmp_path)


def test_signals_within_a_second_are_one_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100.0, 100.2, 100.9, 102.0))  # SIGTERM asks no clock
    # The module's clock alone: other threads of the test process ask theirs.
    monkeypatch.setattr(interrupt_module, "time", SimpleNamespace(monotonic=lambda: next(times)))
    interrupt = Interrupt()
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        interrupt(number)
    assert not interrupt.forced
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGINT)
    assert interrupt.forced
