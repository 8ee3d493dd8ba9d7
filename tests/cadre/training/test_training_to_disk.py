"""A disk that refuses ends a run with a paragraph; what was written before is whole."""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadre.errors import RunError
from cadre.files import explain_disk_errors
from cadre.training.checkpoint import latest_checkpoint, read_state
from tests.cadre.cli.bad_calls import plain_recipe
from tests.cadre.cli.calling import call
from tests.helpers.slow import few_of


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        Exception("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_what_the_system_refuses_names_the_file(error: Exception) -> None:
    with (
        pytest.raises(RunError, match=r"x.jsonl: No space left on device; expected.*--resume"),
        explain_disk_errors(Path("x.jsonl")),
    ):
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(KeyError), explain_disk_errors(Path("x")):
        raise KeyError("x")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB; what earlier tests left to the garbage collector is not laid to who uses it."""
    gc.collect()
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False)
    if mounted.returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("remaining", few_of([120_000, 20_000, 4096], [20_000]))
@pytest.mark.filterwarnings("error")
def test_a_full_disk_stops_a_training_and_what_was_saved_is_whole(
    remaining: int, speaker: Path, small_disk: Path
) -> None:
    recipe, run = small_disk.parent / "plain.yaml", small_disk / "run"
    recipe.write_text(plain_recipe(speaker))
    assert call("train", str(recipe), "--run", str(run)).code == 0
    room = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(max(0, room.f_bavail * room.f_frsize - remaining)))
    result = call("train", str(recipe), "train.steps=30", "train.trees_kept=4", "--run", str(run), "--resume")
    assert result.code == 2, result.out
    notice, error = result.err.splitlines()
    assert notice.startswith("imports ")
    assert error.startswith("error: ")
    assert "No space left on device" in error
    assert read_state(latest_checkpoint(run / "checkpoints")).step >= 1
    for lines in run.glob("*.jsonl"):
        assert all(json.loads(line) for line in lines.read_text().splitlines())
    (small_disk / "filler").unlink()
    assert call("train", str(recipe), "train.steps=2", "--run", str(run), "--resume").code == 0
