"""A run has one writer; its lock goes with it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cadre.errors import RunError
from cadre.runs.folder import RunLock

HOLD = "import sys, time; from pathlib import Path; from cadre.runs.folder import RunLock\n"
HOLD += "with RunLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


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
