"""Processes that the user's own code starts, and libraries that it calls, find what lies beside its file."""

import subprocess
import sys
from pathlib import Path

import pytest

from cadre.cli import app
from cadre.envs.spec import EnvSpec
from cadre.errors import ContractError
from cadre.rollout.deadlines import TimedEnv
from cadre.settings.run import EpisodesConfig
from cadre.settings.user_code import load_file
from cadre.types import Task

BOARD = "class Board:\n    cells = 9\ndef work(n):\n    return n + Board.cells\n"


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow), "fork"])
def test_processes_of_the_user_find_the_functions_of_the_file(method: str, tmp_path: Path) -> None:
    """Mistake: a process that is spawned does not know what the modules stand for, and dies."""
    folder = tmp_path / "with space ü"
    folder.mkdir()
    (folder / "board.py").write_text(BOARD)
    (folder / "toy.py").write_text(
        "import multiprocessing\nfrom board import Board, work\ndef here(n):\n    return work(n)\n"
        f"def play():\n    with multiprocessing.get_context({method!r}).Pool(1) as pool:\n"
        "        return pool.map(here, [1]) + pool.map(work, [2]) + [one.cells for one in pool.map(make, [0])]\n"
        "def make(_):\n    return Board()\n"
    )
    code = (
        "import cadre\nfrom pathlib import Path\nfrom cadre.settings.user_code import load_file\n"
        f"if __name__ == '__main__':\n    print(load_file('env', Path({str(folder / 'toy.py')!r})).play())\n"
    )
    (tmp_path / "main.py").write_text(code)
    result = subprocess.run(
        [sys.executable, str(tmp_path / "main.py")], capture_output=True, text=True, cwd="/", timeout=100
    )
    assert result.stdout.strip() == "[10, 11, 9]", result.stderr


def test_a_library_imports_the_name_that_the_file_gives_it(tmp_path: Path) -> None:
    (tmp_path / "scoring_beside.py").write_text("value = 7\n")
    (tmp_path / "toy.py").write_text(
        "import importlib, pkgutil, pydoc\nname = 'scoring_beside.value'\n"
        "def late():\n    return [pydoc.locate(name), pkgutil.resolve_name('scoring_beside:value')]\n"
        "value = [*late(), importlib.import_module('scoring_beside').value]\n"
    )
    module = load_file("env", tmp_path / "toy.py")
    assert module.value == [7, 7, 7]
    assert module.late() == [7, 7]


EXITS = """import sys
from cadre import Env
class Toy(Env):
    roles = ("a",)
    def __init__(self, task, exits: bool = False):
        if exits:
            sys.exit(0)
        super().__init__(task)
    @classmethod
    def roles_of(cls):
        sys.exit(0)
    def observe(self):
        quit()
    success = property(lambda self: sys.exit("done"))
"""


def test_an_exit_in_any_method_names_its_line(tmp_path: Path) -> None:
    """Mistake: an exit with code 0 in a method that is called before training ends it without a word."""
    (tmp_path / "toy.py").write_text(EXITS)
    spec, task, limits = EnvSpec(f"{tmp_path}/toy.py:Toy", {}), Task("t", {}), EpisodesConfig()
    with pytest.raises(ContractError, match=r"Toy\.roles_of: raised SystemExit: 0 at line 11 of toy\.py, in roles_of"):
        _ = spec.roles
    env = TimedEnv.made(spec.make, task, ("a",), limits)
    with pytest.raises(ContractError, match=r"Toy\.observe: raised SystemExit.* at line 13 of toy\.py, in observe"):
        env.observe()
    with pytest.raises(ContractError, match=r"Toy\.success: raised SystemExit: done at line 14 of toy\.py"):
        _ = env.success
    exiting = EnvSpec(f"{tmp_path}/toy.py:Toy", {"exits": True})
    with pytest.raises(ContractError, match=r"a new episode of t: raised SystemExit: 0 at line 7 of toy\.py"):
        TimedEnv.made(exiting.make, task, ("a",), limits)


def test_a_command_that_the_file_ends_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toy.py").write_text("import sys\ndef ends(*_, **__):\n    sys.exit(0)\n")
    monkeypatch.setattr(app, "app", load_file("env", tmp_path / "toy.py").ends)
    monkeypatch.setattr(sys, "argv", ["cadre"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    output = " ".join(capsys.readouterr().err.split())
    assert "SystemExit: 0 at line 3 of toy.py, in ends, which would end the command" in output
