"""Checkpoints are whole or not there; a damaged one is passed over."""

import errno
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cadre.errors import RunError
from cadre.files import find_damage
from cadre.team import Team
from cadre.training.checkpoint import (
    TrainingState,
    checkpoint_steps,
    latest_checkpoint,
    load_checkpoint,
    remove_old_checkpoints,
    save_checkpoint,
)


@dataclass
class Pen:
    """A learner whose whole state is a text; `full` makes the disk full once so many characters are written."""

    text: str = "one"
    full: int = 1000
    policies: tuple[str, ...] = field(default=("pen",))

    def save(self, folder: Path) -> None:
        (folder / "pen").mkdir()
        (folder / "pen" / "text").write_text(self.text[: self.full])
        if len(self.text) > self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def load(self, folder: Path) -> None:
        self.text = (folder / "pen" / "text").read_text()


def team_of(pen: Any) -> Team:
    return Team({}, {}, {}, [pen])


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    state = TrainingState(3, {"speaker": 0.5}, 2, 0.25)
    save_checkpoint(tmp_path, state, team_of(Pen("words")))
    pen = Pen()
    assert load_checkpoint(latest_checkpoint(tmp_path), team_of(pen)) == state
    assert pen.text == "words"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003"]


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove", "manifest", "half"])
def test_a_damaged_one_is_passed_over_with_a_warning(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, TrainingState(step), team_of(Pen(f"text {step}")))
    text = tmp_path / "step-000002" / "pen" / "text"
    if harm == "truncate":
        text.write_text("te")
    elif harm == "flip":
        text.write_text("tExt 2")
    elif harm == "remove":
        text.unlink()
    elif harm == "manifest":
        (tmp_path / "step-000002" / "manifest.json").write_text("{")
    else:
        (tmp_path / "step-000002").rename(tmp_path / ".partial-step-000002")
    with caplog.at_level(logging.WARNING):
        assert latest_checkpoint(tmp_path).name == "step-000001"
    assert ("damaged" in caplog.text) == (harm != "half")


def test_none_whole_is_an_error_that_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no whole checkpoint; expected"):
        latest_checkpoint(tmp_path)
    save_checkpoint(tmp_path, TrainingState(1), team_of(Pen()))
    (tmp_path / "step-000001" / "state.json").unlink()
    with pytest.raises(RunError, match=r"step-000001: state\.json is missing"):
        latest_checkpoint(tmp_path)


def test_a_full_disk_leaves_the_older_one_whole(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, TrainingState(1), team_of(Pen("one")))
    with pytest.raises(RunError, match="No space left"):
        save_checkpoint(tmp_path, TrainingState(2), team_of(Pen("two", full=1)))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert find_damage(tmp_path / "step-000001") is None


def test_a_damaged_one_of_the_same_step_is_written_again(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, TrainingState(1), team_of(Pen("one")))
    (tmp_path / "step-000001" / "pen" / "text").write_text("torn")
    save_checkpoint(tmp_path, TrainingState(1), team_of(Pen("one")))
    assert find_damage(tmp_path / "step-000001") is None


def test_the_last_the_best_and_every_so_many_are_kept(tmp_path: Path) -> None:
    for step in range(7):
        save_checkpoint(tmp_path, TrainingState(step), team_of(Pen()))
    remove_old_checkpoints(tmp_path, 6, keep=2, best=1, every=3)
    assert checkpoint_steps(tmp_path) == [0, 1, 3, 5, 6]
    assert latest_checkpoint(tmp_path, at_most=4).name == "step-000003"


def test_a_damaged_one_beyond_the_present_takes_nobodys_place(tmp_path: Path) -> None:
    """The run went on from step 4, as that of step 6 is damaged, and has come to step 5."""
    for step in (4, 6, 5):
        save_checkpoint(tmp_path, TrainingState(step), team_of(Pen()))
    (tmp_path / "step-000006" / "pen" / "text").write_text("torn")
    remove_old_checkpoints(tmp_path, 5, keep=1, best=None)
    assert checkpoint_steps(tmp_path) == [5]
    assert latest_checkpoint(tmp_path).name == "step-000005"
