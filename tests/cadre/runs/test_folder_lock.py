"""A run has one writer; its lock goes with it."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cadre.errors import RunError
from cadre.runs import folder as folder_module
from cadre.runs import progress
from cadre.runs.folder import RunLock

HOLD = "import sys, time; from pathlib import Path; from cadre.runs.folder import RunLock\n"
HOLD += "with RunLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


def without_locks(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def local_locks(descriptor: int, operation: int) -> None:
    """Locks of another host are not seen."""


def test_a_second_holder_is_refused_and_a_later_one_is_not(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(RunError, match="written by another process"), RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        pass


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RunError, match=str(holder.pid)), RunLock(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize(("flock", "here"), [(local_locks, "n2"), (without_locks, "n2"), (without_locks, "n1")])
def test_an_owner_on_another_host_or_without_locks_is_seen_by_its_touches(
    flock: Callable[[int, int], None], here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mistake: on Lustre or NFS with local locks two jobs train in one folder, and mix their logs and checkpoints."""
    monkeypatch.setattr(folder_module.fcntl, "flock", flock)
    monkeypatch.setattr(folder_module, "TOUCH_SECONDS", 0.05)
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    with RunLock(tmp_path):
        monkeypatch.setattr(socket, "gethostname", lambda: here)
        with pytest.raises(RunError, match=rf"written by another process \({os.getpid()} on n1\)"), RunLock(tmp_path):
            pass
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()} on n1"
    assert (tmp_path / ".lock").read_text() == ""  # an owner that left in order is not waited for
    (tmp_path / ".lock").write_text("17 on n3")  # one that was killed is, and then replaced
    began = time.monotonic()
    with RunLock(tmp_path):
        assert time.monotonic() - began > 0.1
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()} on {here}"


def test_the_status_of_a_run_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.fcntl, "flock", without_locks)
    with RunLock(tmp_path):
        assert progress._is_locked(tmp_path / ".lock")
    assert not progress._is_locked(tmp_path / ".lock")
