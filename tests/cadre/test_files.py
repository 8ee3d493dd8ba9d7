"""Files and folders that appear whole or not at all, whatever stops their writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cadre.errors import RunError
from cadre.files import publish_atomically


def test_files_and_folders_appear_together_at_the_end(tmp_path: Path) -> None:
    item, two = tmp_path / "deep" / "one.txt", tmp_path / "deep" / "two"
    with publish_atomically(item, two) as (file, folder):
        file.write_text("1")
        folder.mkdir()
        (folder / "inner").write_text("2")
        assert not item.exists()
        assert not two.exists()
    assert (item.read_text(), (two / "inner").read_text()) == ("1", "2")
    assert sorted(path.name for path in item.parent.iterdir()) == ["one.txt", "two"]


def build(*outs: Path, then: Callable[[], object] = lambda: None) -> None:
    """Write `ours` to all of them, and do something before they appear."""
    with publish_atomically(*outs) as built:
        for path in built:
            path.write_text("ours")
        then()


def failing(error: Exception) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


def test_nothing_appears_where_building_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        build(tmp_path / "a", tmp_path / "b", then=failing(KeyError("b")))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_one_paragraph(tmp_path: Path) -> None:
    full = failing(Exception("Error while serializing: I/O error: No space left on device (os error 28)"))
    with pytest.raises(
        RunError, match=r"out: No space left on device; .*Nothing of it was left behind.* call it again"
    ):
        build(tmp_path / "out", then=full)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("selected", ["one.txt", "two.txt"])
def test_nothing_is_replaced_that_came_meanwhile(selected: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"{selected}: it exists by now"):
        build(
            *(tmp_path / name for name in ("one.txt", "two.txt")),
            then=lambda: (tmp_path / selected).write_text("theirs"),
        )
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(selected, "theirs")]


def test_no_folder_is_moved_into_one_that_holds_something(tmp_path: Path) -> None:
    def build_folder() -> None:
        with publish_atomically(tmp_path / "out") as (built,):
            built.mkdir()
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").write_text("1")

    with pytest.raises(RunError, match="exists by now"):
        build_folder()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]


def test_one_process_at_a_time_builds_it(tmp_path: Path) -> None:
    with publish_atomically(tmp_path / "out") as (built,):
        built.write_text("ours")
        with pytest.raises(RunError, match="another process is writing it"), publish_atomically(tmp_path / "out"):
            pass
    assert (tmp_path / "out").read_text() == "ours"


def killed(folder: Path, code: str) -> None:
    """Run code that kills itself."""
    head = "import os, signal\nfrom pathlib import Path\nfrom cadre import files\n"
    result = subprocess.run([sys.executable, "-c", head + code], cwd=folder, check=False)
    assert result.returncode == -signal.SIGKILL


KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def test_after_a_kill_half_way_a_second_try_works(tmp_path: Path) -> None:
    killed(
        tmp_path,
        f"with files.publish_atomically(Path('out')) as (built,):\n    built.mkdir(); (built / 'old').touch(); {KILL}",
    )
    assert not (tmp_path / "out").exists()
    with publish_atomically(tmp_path / "out") as (built,):
        assert not built.exists()
        built.write_text("again")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    os.symlink(tmp_path / "elsewhere", tmp_path / ".partial-out")
    with pytest.raises(RunError), publish_atomically(tmp_path / "out"):
        pass
    assert (tmp_path / "elsewhere" / "kept").exists()
