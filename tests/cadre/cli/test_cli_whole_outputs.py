"""Outputs under a name of the user's are complete or absent, on a full disk and after a kill."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cadre.cli.bad_calls import plain_recipe
from tests.cadre.cli.calling import call
from tests.helpers import forked
from tests.helpers.slow import few_of

OUTPUTS = {
    "export": ["export", "RUN", "shared", "OUT"],
    "fork": ["fork", "RUN", "--at", "1", "--run", "OUT"],
    "view": ["view", "RUN", "--export", "OUT"],
    "report": ["report", "RUN", "--out", "OUT"],
    "trees": ["trees", "RUN", "--out", "OUT"],
    "episodes": ["eval", "RUN", "--tasks", "2", "--episodes", "OUT"],
    "preference-pairs": ["preference-pairs", "RECIPE", "algorithm.k=4", "--tasks", "8", "--out", "OUT"],
    "warm-start": ["warm-start", "RECIPE", "--on", "ANSWERS", "--steps", "1", "--run", "OUT"],
}


@pytest.fixture(scope="module")
def prepared(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a recipe and answers."""
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "RECIPE").write_text(plain_recipe(speaker))
    (folder / "ANSWERS").write_text(json.dumps({"role": "left", "prompt": "1", "answer": "2"}) + "\n")
    assert call("train", str(folder / "RECIPE"), "--run", str(folder / "RUN")).code == 0
    return folder


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """Limit the size of files to so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def words_of(name: str) -> list[str]:
    """The call of an output; skipped where it needs a package that is not here."""
    if package := {"report": "matplotlib", "trees": "pyarrow"}.get(name):
        pytest.importorskip(package)
    return OUTPUTS[name]


@pytest.fixture
def workdir(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(prepared)
    yield prepared
    for path in prepared.glob("*OUT*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("name", "size"),
    few_of(
        [(name, size) for name in OUTPUTS for size in (0, 1000)],
        [*((name, 0) for name in OUTPUTS), ("export", 1000), ("view", 1000), ("warm-start", 1000)],
    ),
)
def test_on_a_full_disk_it_is_one_sentence_and_a_second_try_works(name: str, size: int, workdir: Path) -> None:
    with full_at(size):
        result = call(*words_of(name))
    if result.code == 0:  # what is written is smaller than that
        assert size > 0
        return
    assert result.code == 2
    output = [line for line in result.err.splitlines() if not line.startswith("imports ")]
    if name == "episodes":  # what was played before has its progress there
        assert result.err.count("error: ") == 1
        output = output[-1:]
    assert [line[:7] for line in output] == ["error: "]
    assert "File too large" in result.err
    assert not (workdir / "OUT").exists()
    again = call(*words_of(name))
    assert again.code == 0, again.err
    assert (workdir / "OUT").exists()


def run(words: list[str], folder: Path, code: str) -> tuple[int, str]:
    """Return the exit code of a program that imports no torch, and what it wrote."""
    command = [sys.executable, "-c", code, *words]
    result = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return result.returncode, result.stdout


@pytest.mark.parametrize("name", few_of(["export", "fork", "view", "episodes", "warm-start"], ["fork"]))
def test_killed_before_it_has_its_name_a_second_try_works(name: str, workdir: Path) -> None:
    code = (
        "import os, signal\nfrom cadre import files\nfrom cadre.cli import main\n"
        "files._give_name = lambda built, out: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main()\n"
    )
    ended, printed = (run if name == "fork" else forked.run)(words_of(name), workdir, code)
    assert ended == -signal.SIGKILL, printed
    assert not (workdir / "OUT").exists()
    again = call(*words_of(name))
    assert again.code == 0, again.err
    assert (workdir / "OUT").exists()
    assert not (workdir / ".partial-OUT").exists()


def test_a_fork_that_was_killed_is_no_run(workdir: Path) -> None:
    code = (
        "import os, signal\nfrom cadre.runs import resume\nfrom cadre.cli import main\n"
        "resume._copy_history = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main()\n"
    )
    assert run(OUTPUTS["fork"], workdir, code)[0] == -signal.SIGKILL
    resumed = call("train", "--run", "OUT", "--resume")
    assert resumed.code == 2
    assert "holds no config.yaml" in resumed.err
    assert call(*OUTPUTS["fork"]).code == 0
    assert call("train", "train.steps=2", "--run", "OUT", "--resume").code == 0
    assert [json.loads(line)["step"] for line in (workdir / "OUT" / "metrics.jsonl").read_text().splitlines()] == [0, 1]


def test_a_fork_without_its_checkpoint_never_begins_anew(workdir: Path) -> None:
    assert call(*OUTPUTS["fork"]).code == 0
    shutil.rmtree(workdir / "OUT" / "checkpoints")
    resumed = call("train", "--run", "OUT", "--resume")
    assert resumed.code == 2
    assert "has made steps and holds no checkpoint" in resumed.err
