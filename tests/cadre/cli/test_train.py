"""The last lines of `cadre train`: where to look, or how to resume."""

import json
import tempfile
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from cadre.team import Team
from cadre.training import loop
from tests.cadre.cli.bad_calls import plain_recipe
from tests.cadre.cli.calling import call


def recipe(folder: Path, model: Path) -> str:
    path = folder / "plain.yaml"
    path.write_text(plain_recipe(model))
    return str(path)


def test_a_run_ends_with_where_to_look(speaker: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = call("train", recipe(tmp_path, speaker), "evaluate.tasks=2", "--run", str(run))
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith(f"run {run}: ")
    assert lines[0].endswith("games.py:Pair, grpo, independent(2), 1 policy, 4 tasks, 4 held out")
    assert lines[-5].startswith("success on 2 held-out tasks: ")
    assert lines[-4] == f"The run is in {run}. Next:"
    assert [line.split()[0] for line in lines[-3:]] == ["cadre"] * 3
    assert lines[-1].split()[1] == "view"


@pytest.mark.slow
def test_ranks_leave_nothing_among_the_temporary_files(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    run = tmp_path / "run"
    result = call("train", recipe(tmp_path, speaker), "evaluate.tasks=2", "learner.ranks=2", "--run", str(run))
    assert result.code == 0, result.err
    assert not list((tmp_path / "temporary").glob("cadre-*"))


@pytest.mark.slow
def test_a_run_of_four_ranks_goes_on_with_two_and_with_one_as_if_it_had_always_had_one(
    speaker: Path, tmp_path: Path
) -> None:
    path, runs = recipe(tmp_path, speaker), [tmp_path / "in-parts", tmp_path / "at-once"]
    common = ["evaluate.tasks=0", "learner.learning_rate=1.0e-3", "train.tasks_per_step=4"]
    result = call("train", path, *common, "learner.ranks=4", "train.steps=2", "--run", str(runs[0]))
    assert result.code == 0, result.err
    for ranks, steps in ((2, 4), (1, 6)):
        changes = [f"learner.ranks={ranks}", f"train.steps={steps}"]
        refused = call("train", "--run", str(runs[0]), "--resume", *changes)
        assert refused.code != 0
        assert "--force" in refused.err
        result = call("train", "--run", str(runs[0]), "--resume", "--force", *changes)
        assert result.code == 0, result.err
    assert call("train", path, *common, "train.steps=6", "--run", str(runs[1])).code == 0
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in runs]
    assert len(lines[0]) == 6
    for in_parts, at_once in zip(*lines, strict=True):
        same = {key: value for key, value in at_once.items() if "time/" not in key and "_per_s" not in key}
        assert {key: in_parts[key] for key in same} == pytest.approx(same, rel=1e-4, abs=1e-5)


def test_a_run_that_was_stopped_says_how_to_go_on(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "run_training", lambda *arguments: (Team({}, {}, {}), 0))
    plain, run = recipe(tmp_path, speaker), tmp_path / "run"
    result = call("train", plain, "--run", str(run))
    assert result.code == 130
    assert result.out.splitlines()[-2:] == [
        "Stopped after 0 of 1 steps; saved. Go on with:",
        f"  cadre train --run {run} --resume",
    ]


def test_what_was_changed_when_a_run_went_on_stays_so(speaker: Path, tmp_path: Path) -> None:
    """Mistake: the command that is printed takes the recipe, and with it what the run was begun with."""
    run = tmp_path / "run"
    assert call("train", recipe(tmp_path, speaker), "evaluate.tasks=2", "--run", str(run)).code == 0
    assert call("train", "--run", str(run), "--resume", "train.steps=2").code == 0
    more = call("train", "train.steps=3", "--run", str(run), "--resume")
    assert (more.code, "No step was trained" in more.out) == (0, False)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    ended = call("train", "--run", str(run), "--resume", "train.steps=2")
    assert "No step was trained: the run has made 3, and train.steps=2 ends it." in ended.out


def test_one_command_begins_a_run_and_goes_on_with_it(speaker: Path, tmp_path: Path) -> None:
    """As in the script of a job that a scheduler starts again. A file in the folder is no run."""
    run = tmp_path / "run"
    job = ["train", recipe(tmp_path, speaker), "evaluate.tasks=2", "--run", str(run), "--resume-if-exists"]
    assert call(*job).code == 0
    first = (run / "metrics.jsonl").read_text()
    again = call(*job, "train.steps=2")
    assert again.code == 0, again.err
    assert (run / "metrics.jsonl").read_text().startswith(first)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert "No step was trained: the run has made 2" in call(*job, "train.steps=2").out
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    taken = call(*job[:-2], str(tmp_path / "other"), "--resume-if-exists")
    assert (taken.code, "exists and is not empty" in taken.err) == (2, True)


def test_one_that_was_stopped_in_its_last_evaluation_is_not_done(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as stopped:
        stopped.setattr(loop, "evaluate_step", AsyncMock())
        result = call("train", recipe(tmp_path, speaker), "evaluate.tasks=2", "--run", str(run))
    assert result.code == 130
    assert "Stopped in the evaluation after 1 steps; saved. Go on with:" in result.out
    result = call("train", "--run", str(run), "--resume")
    assert result.code == 0, result.err
    assert "held-out tasks:" not in result.out  # there is one report
    more = call("train", "--run", str(run), "--resume", "train.steps=2")
    assert "after 1 steps, " in more.out.splitlines()[-5]


def test_nothing_is_asked_of_held_out_tasks_that_are_not_played(speaker: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from tests.helpers.games import Digit\n\n\nclass Mine(Digit):\n    @classmethod\n    def tasks(cls, split):\n"
        "        if split == 'test':\n            raise FileNotFoundError('no held-out tasks')\n"
        "        return Digit.tasks(split)\n"
    )
    chosen = [f"env={file}:Mine", "team.roles={speaker: shared}", "evaluate.tasks=0"]
    result = call("train", recipe(tmp_path, speaker), *chosen, "--run", str(tmp_path / "run"))
    assert result.code == 0, result.err
    assert "cadre eval" not in result.out


def test_a_dry_run_writes_nothing(speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = recipe(tmp_path, speaker)
    result = call("train", plain, "--dry-run")
    assert result.code == 0, result.err
    assert "4 training and 0 held-out tasks" in result.out  # as evaluate.tasks is 0
    assert "4 training and 4 held-out tasks" in call("train", plain, "--dry-run", "evaluate.tasks=2").out
    assert [path.name for path in tmp_path.iterdir()] == ["plain.yaml"]
    assert json.loads(Path(plain).read_text())["train"]["steps"] == 1
