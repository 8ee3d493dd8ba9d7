"""Folders go with the process that made them, however it ends, and nobody else's do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cadre.engines import host
from tests.helpers import forked

PROC = pytest.mark.skipif(not host.process_namespace(), reason="processes cannot be told apart here")


def run(code: str) -> tuple[int, str]:
    """Return the exit code of a program, and the first line that it printed."""
    ended, printed = forked.run([], Path("/"), code)
    return ended, printed.partition("\n")[0]


def named(folder: Path, where: str, pid: int, since: str) -> Path:
    created = folder / f"cadre-weights-{where}-{pid}-{since}-abcdefgh"
    (created / "planner").mkdir(parents=True)
    return created


def test_a_folder_is_there_while_it_is_lent(tmp_path: Path) -> None:
    with host.temporary_scratch("weights", tmp_path) as folder:
        (folder / "v0").mkdir()
        assert folder.parent == tmp_path
        assert folder.name.startswith("cadre-weights-")
        host.sweep_scratch(tmp_path)
        assert (folder / "v0").exists()
    assert not folder.exists()


@PROC
def test_folders_of_processes_that_are_no_more_are_swept(tmp_path: Path) -> None:
    where, pid, since = host.process_namespace(), os.getpid(), host.start_time(os.getpid())
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    missing = named(tmp_path, where, dead.pid, since)
    initial = named(tmp_path, where, pid, "1")  # the number is another process's now
    alive = named(tmp_path, where, pid, since)
    elsewhere = named(tmp_path, "0" * 16, dead.pid, since)
    rest = [tmp_path / name for name in ("cadre-weights-abcdefgh", f"cadre-weights-{where}-{dead.pid}-x")]
    for second in rest:
        second.mkdir()
    link = tmp_path / f"cadre-weights-{where}-{dead.pid}-{since}-linked"
    link.symlink_to(rest[0], target_is_directory=True)
    host.sweep_scratch(tmp_path)
    assert not missing.exists()
    assert not initial.exists()
    assert all(path.exists() for path in (alive, elsewhere, link, *rest))


@PROC
def test_anothers_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned = named(tmp_path, host.process_namespace(), os.getpid(), "1")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    host.sweep_scratch(tmp_path)
    assert owned.exists()


def test_nothing_is_swept_where_processes_cannot_be_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = named(tmp_path, "0" * 16, 1, "1")
    monkeypatch.setattr(host, "PROC", tmp_path / "none")
    scratch = host.make_scratch("weights", tmp_path)
    host.sweep_scratch(tmp_path)
    assert old.exists()
    assert scratch.exists()
    host.remove_scratch(scratch)
    assert not scratch.exists()


@PROC
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
