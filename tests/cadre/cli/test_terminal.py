"""Completion as shells ask for it, and changes without an effect."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cadre.cli.terminal import complete_recipe, complete_run, shorten_path
from tests.cadre.cli.calling import call, get_command
from tests.helpers import forked


def told(folder: Path, *arguments: str, **environment: str) -> str:
    """Return the output of `cadre` in a folder, run under its own name."""
    code = "import sys; sys.argv[0] = 'cadre'; from cadre.cli import main; main()"
    _, printed = forked.run(arguments, folder, code, environment)
    return printed


def asked(words: str, folder: Path) -> list[str]:
    """Return the completions that bash gets for the last of these words."""
    position = str(len(words.split(" ")) - 1)
    return told(folder, _CADRE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=position).split()


@pytest.mark.slow
def test_bash_is_told_commands_options_recipes_and_runs(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine-001").mkdir(parents=True)
    (tmp_path / "runs" / "mine-001" / "config.yaml").touch()
    (tmp_path / "mine.yaml").touch()
    assert asked("cadre tr", tmp_path) == ["train", "trees"]
    assert asked("cadre train m", tmp_path) == ["mine.yaml"]
    assert asked("cadre play runs/", tmp_path) == ["runs/mine-001"]


def test_names_that_begin_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete_recipe("plan-path-m") == [
        "plan-path-m-grpo",
        "plan-path-magrpo",
        "plan-path-magrpo-central",
        "plan-path-mappo",
    ]
    assert complete_run("") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_cadre(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    get_command.cache_clear()  # the variable changes an option
    script = call("--show-completion", shell).out
    get_command.cache_clear()
    assert f"_CADRE_COMPLETE=complete_{shell}" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_paths_inside_the_current_folder_are_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shorten_path(f"env={tmp_path}/toy.py:Toy") == "env=toy.py:Toy"
    assert shorten_path("/elsewhere/toy.py:Toy") == "/elsewhere/toy.py:Toy"
