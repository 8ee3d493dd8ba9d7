"""Folders go with the process that made them, however it ends, and nobody else's do."""

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from cadre.engines import host
from tests.helpers import forked


def run(code: str) -> tuple[int, str]:
    """Return the exit code of a program, and the first line that it printed."""
    ended, printed = forked.run([], Path("/"), code)
    return ended, printed.partition("\n")[0]


def left_behind(folder: Path, name: str) -> Path:
    """A scratch folder whose maker has ended."""
    (folder / name / "planner").mkdir(parents=True)
    (folder / name / host.LOCK).touch()
    return folder / name


def test_a_folder_is_there_while_it_is_lent(tmp_path: Path) -> None:
    with host.temporary_scratch("weights", tmp_path) as folder:
        (folder / "v0").mkdir()
        assert folder.parent == tmp_path
        assert folder.name.startswith("cadre-weights-")
        host.sweep_scratch(tmp_path)
        assert (folder / "v0").exists()
    assert not folder.exists()


def test_folders_of_processes_that_are_no_more_are_swept(tmp_path: Path) -> None:
    gone = left_behind(tmp_path, "cadre-weights-abcdefgh")
    alive = left_behind(tmp_path, "cadre-weights-bcdefghi")
    others = [left_behind(tmp_path, "cadre-x"), tmp_path / "cadre-weights-cdefghij"]  # no scratch, and no lock
    others[1].mkdir()
    link = tmp_path / "cadre-weights-linked"
    link.symlink_to(others[0], target_is_directory=True)
    with (alive / host.LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        host.sweep_scratch(tmp_path)
    assert not gone.exists()
    assert all(path.exists() for path in (alive, link, *others))


def test_anothers_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned = left_behind(tmp_path, "cadre-weights-abcdefgh")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    host.sweep_scratch(tmp_path)
    assert owned.exists()


def test_what_a_killed_process_left_goes_when_the_next_makes_one() -> None:
    code = "from cadre.engines import host; print(host.make_scratch('weights', host.shared_folder()), flush=True)"
    _, remaining = run(f"{code}; import os; os.kill(os.getpid(), 9)")
    assert Path(remaining).exists()
    run(code)
    assert not Path(remaining).exists()


def test_a_fork_leaves_its_parents(tmp_path: Path) -> None:
    folder = host.make_scratch("weights", tmp_path)
    pid = os.fork()
    if not pid:
        host.remove_all_scratch()
        os._exit(0)
    os.waitpid(pid, 0)
    assert folder.exists()
    host.remove_scratch(folder)


def test_a_command_that_is_stopped_leaves_none() -> None:
    """Ctrl-C where nobody hears it but the command line, which does not wait for the interpreter's end."""
    code, remaining = run(
        "from cadre.cli import stoppable\n"
        "from cadre.engines.vllm.adapters import AdapterFiles\n"
        "with stoppable():\n"
        "    files = AdapterFiles('x')\n"
        "    (files._root / 'planner-v7').mkdir()\n"
        "    print(files._root, flush=True)\n"
        "    raise KeyboardInterrupt\n"
    )
    assert code == 130
    assert remaining.startswith(str(host.shared_folder()))
    assert not Path(remaining).exists()


KILLED = """
import os, signal, time
from multiprocessing import get_context
from pathlib import Path
from cadre.engines import host
from cadre.engines.torch.group import end_with_parent

def rank(folder, ready):
    end_with_parent(folder)
    (folder / "cadre-weights-x" / "p" / "v0").mkdir(parents=True)
    ready.send("")
    time.sleep(60)

folder = host.make_scratch("ranks")
mine, theirs = get_context("fork").Pipe()
get_context("fork").Process(target=rank, args=(folder, theirs), daemon=True).start()
mine.recv()
print(folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ranks_remove_what_a_killed_trainer_left(tmp_path: Path) -> None:
    trainer = forked.Forked([], tmp_path, KILLED)
    folder = Path(trainer.stdout.readline().strip())
    assert trainer.wait() == -signal.SIGKILL
    until = time.monotonic() + 20
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert folder.name.startswith("cadre-ranks-")
    assert not folder.exists()
