"""Runs that begin in the same moment have folders of their own, and a run that was moved goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cadre.config.experiment import Config, load
from cadre.errors import TakenError
from cadre.runs.folder import Run, create_in_free_folder, distinct_names
from cadre.training.checkpoint import checkpoint_steps
from tests.cadre.cli.calling import call
from tests.helpers.training import HERE, configured

# Forks of a process that has no threads: a fork beside threads may wait for ever for what one of them held.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])
NUMBER = 6


def at_once(work: Callable[..., object], *arguments: object) -> list[Any]:
    """Return the results of work(number, *arguments) in so many processes that begin it together."""
    barrier, results = SERVER.Barrier(NUMBER), SERVER.Queue()
    processes = [
        SERVER.Process(target=_begin, args=(barrier, results, work, number, arguments)) for number in range(NUMBER)
    ]
    for process in processes:
        process.start()
    result = dict(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    return [result[number] for number in range(NUMBER)]


def _begin(barrier: Any, results: Any, work: Callable[..., object], number: int, arguments: tuple[object, ...]) -> None:
    barrier.wait()
    results.put((number, work(number, *arguments)))


def begin_anywhere(number: int, chosen: Sequence[Config]) -> tuple[str, int]:
    def create(folder: Path) -> Run:
        return Run.create(folder, chosen[number], "digit", [f"train.steps={number + 1}"])

    run = create_in_free_folder(None, "digit.yaml", create)
    return str(run.folder), Run.open(run.folder).config.train.steps


def begin_in(number: int, folder: Path, chosen: Sequence[Config]) -> str:
    try:
        Run.create(folder, chosen[number])
    except TakenError as error:
        return str(error)
    return "mine"


def test_runs_that_begin_together_never_share_a_folder(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = [configured(speaker, train={"steps": number + 1}) for number in range(NUMBER)]
    result = at_once(begin_anywhere, chosen)
    folders = [folder for folder, _ in result]
    assert len(set(folders)) == NUMBER
    assert sorted(path.name for path in Path("runs").iterdir()) == sorted(Path(folder).name for folder in folders)
    for number, (folder, steps) in enumerate(result):
        assert steps == number + 1
        assert Run.open(Path(folder)).config == chosen[number]
        assert Run.open(Path(folder)).command() == ("digit", [f"train.steps={number + 1}"])


def test_of_those_that_name_the_same_folder_one_has_it_and_the_others_are_told(speaker: Path, tmp_path: Path) -> None:
    chosen = [configured(speaker, train={"steps": number + 1}) for number in range(NUMBER)]
    message = at_once(begin_in, tmp_path / "run", chosen)
    assert message.count("mine") == 1
    assert Run.open(tmp_path / "run").config == chosen[message.index("mine")]
    assert all("run" in words and "expected" in words for words in message if words != "mine")


@pytest.fixture
def project(speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an environment, its data, a model and a recipe that names them as they lie beside it; and a run of
    two steps that was begun there, with changes that name files of it."""
    folder = tmp_path / "project"
    folder.mkdir()
    game = (HERE / "helpers" / "games.py").read_text()
    game = game.replace("class Relay(", READING + "\n\nclass Relay(")
    (folder / "games.py").write_text(game)
    (folder / "digits.json").write_text("[1, 2, 3]")
    shutil.copytree(speaker, folder / "speaker")
    (folder / "digit.yaml").write_text(
        "env: games.py:Read\n"
        "team: {policies: {shared: ./speaker}, roles: {speaker: shared}}\n"
        "algorithm: {name: at_grpo, k: 2}\n"
        "sampling: {max_tokens: 2}\n"
        "train: {steps: 2, tasks_per_step: 2}\n"
        "evaluate: {tasks: 2}\n"
        "trackers: {names: []}\n"
    )
    monkeypatch.chdir(folder)
    result = call("train", "digit.yaml", "settings.source=digits.json", "--run", "runs/a")
    assert result.code == 0, result.err
    return folder


READING = """
class Read(Digit):
    def __init__(self, task: Task, source: str = "") -> None:
        super().__init__(task)

    @classmethod
    def tasks(cls, split, source=""):
        import json, pathlib
        digits = json.loads(pathlib.Path(source).read_text())
        return [Task(f"{split}-{n}", {"digit": n, "split": split}) for n in digits]
"""


@pytest.mark.parametrize("named", ["nothing", "the-recipe", "the-configuration", "a-link"])
def test_a_run_that_was_moved_goes_on_from_wherever_it_is_called(
    named: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "elsewhere"
    (away / "deep").mkdir(parents=True)
    shutil.move(project / "runs" / "a", away / "b")
    monkeypatch.chdir(away / "deep")
    os.symlink(away / "b", away / "link")
    recipe = {"the-recipe": [str(project / "digit.yaml")], "the-configuration": ["../b/config.yaml"]}.get(named, [])
    run = "../link" if named == "a-link" else "../b"
    result = call("train", *recipe, "--run", run, "--resume", "train.steps=3")
    assert result.code == 0, result.err
    assert checkpoint_steps(away / "b" / "checkpoints")[-1] == 3
    assert json.loads((away / "b" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 2
    assert not list((away / "b").glob("config-*.yaml"))


@pytest.mark.parametrize("recipe", [[], ["digit.yaml"]])
def test_a_run_that_was_moved_with_all_of_its_project_goes_on_once_it_is_trusted(
    recipe: list[str], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "moved"
    project.rename(moved)
    monkeypatch.chdir(moved)
    resume = ("train", *recipe, "--run", "runs/a", "--resume", "train.steps=3")
    requests = call(*resume)  # a stranger's project looks the same
    assert (requests.code, "games.py" in requests.err or "digits.json" in requests.err) == (2, True)
    result = call(*resume, "--trust")
    assert result.code == 0, result.err
    assert call("eval", "runs/a", "--tasks", "1", "--trust").code == 0
    assert load("runs/a/config.yaml").train.steps == 3


def test_runs_of_one_name_in_folders_of_one_name_are_told_apart() -> None:
    """As those of two machines: the page of the second showed the trees of the first."""
    folders = [Path("/a/runs/x-001"), Path("/b/runs/x-001"), Path("/b/old/x-001"), Path("/b/runs/x-002")]
    assert distinct_names(folders) == ["a/runs/x-001", "b/runs/x-001", "old/x-001", "x-002"]
    assert distinct_names([Path("/x-001"), Path("/a/x-001")]) == ["/x-001", "a/x-001"]
