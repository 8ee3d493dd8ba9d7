"""A file of the user's is imported as `python FILE.py` does, and again when it has changed."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cadre.envs.spec import EnvSpec, env_class, name_of
from cadre.errors import ConfigError, ContractError
from cadre.settings.user_code import frozen_files, load_file, load_function

ENV = "from cadre import Env\nclass Toy(Env):\n    roles = ('a',)\n    value = VALUE\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / (name.replace("__", "/", 1) if not name.startswith("__") else name)
        path = path.with_name(f"{path.name.replace('INIT', '__init__')}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def value_of(file: Path, name: str = "value") -> object:
    return getattr(load_file("env", file), name)


def test_a_neighbour_is_imported_in_every_form(tmp_path: Path) -> None:
    write(
        tmp_path,
        scoring="value = 7\ndef score(): return value\n",
        pkg__INIT="from .inner import deep\n",
        pkg__inner="import scoring\ndeep = scoring.value + 1\n",
        bare__inside="three = 3\n",
        toy="import scoring, pkg.inner, importlib\nfrom scoring import *\nimport pkg.inner as inner\n"
        "from pkg import deep\nfrom bare.inside import three\nfrom bare import inside\n"
        "def late():\n    from scoring import score as once_more\n    return once_more()\n"
        "value = (score(), pkg.inner.deep, inner.deep, deep, three, inside.three, late(),\n"
        "         importlib.import_module('scoring') is scoring)\n",
    )
    assert value_of(tmp_path / "toy.py") == (7, 8, 8, 8, 3, 3, 7, True)
    assert sys.path[0] == str(tmp_path)


def test_two_folders_with_modules_of_one_name_each_import_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Mistake: the second file silently computes with the first one's `scoring`."""
    for name in ("one", "two"):
        write(tmp_path / name, scoring=f"value = {name!r}\n", toy="import scoring\nvalue = scoring.value\n")
    assert value_of(tmp_path / "one" / "toy.py") == "one"
    assert [value_of(tmp_path / name / "toy.py") for name in ("two", "one", "two")] == ["two", "one", "two"]
    assert f"{tmp_path}/two/scoring: takes the place of {tmp_path}/one/scoring.py" in caplog.text


def test_a_file_with_the_name_of_a_loaded_library_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "typing.py").write_text("value = 1\n")
    with pytest.raises(ConfigError, match=r"typing is the name of a module of Python's too, .*typing.py; .* Rename it"):
        load_file("env", tmp_path / "typing.py")


def test_a_folder_of_data_hides_no_installed_package(tmp_path: Path) -> None:
    write(tmp_path, toy="import cadre.types, typer\nvalue = hasattr(typer, 'Typer')\n")
    (tmp_path / "typer").mkdir()
    (tmp_path / "cadre").mkdir()
    (tmp_path / "cadre" / "__init__.py").write_text("raise RuntimeError\n")
    assert value_of(tmp_path / "toy.py") is True


@pytest.mark.parametrize(
    "form", ["from .helpers import value", "from pkg.helpers import value", "from helpers import value"]
)
@pytest.mark.parametrize("package", ["", "from .envs import Toy\n"])
def test_a_file_of_a_package(form: str, package: str, tmp_path: Path) -> None:
    write(tmp_path, pkg__helpers="value = 5\n", pkg__envs=f"{form}\n" + ENV.replace("VALUE", "value"))
    (tmp_path / "pkg" / "__init__.py").write_text(package)
    assert env_class(f"{tmp_path}/pkg/envs.py:Toy").value == 5


def test_a_module_below_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        scoring="value = 3\n",
        things__INIT="",
        things__envs="from scoring import value\n" + ENV.replace("VALUE", "value"),
    )
    monkeypatch.chdir(tmp_path)
    env = env_class("things.envs:Toy")
    assert env.value == 3
    monkeypatch.chdir("/")
    assert env_class(name_of(env)) is env
    with pytest.raises(ConfigError, match="cannot be imported"):
        env_class("things.other:Toy")


def test_states_pass_between_processes(tmp_path: Path) -> None:
    """A process that has loaded the file finds its classes and those of its neighbours, lazily imported ones too."""
    write(
        tmp_path,
        board="class Board:\n    cells = 9\n",
        toy=ENV.replace("VALUE", "1")
        + "    def board(self):\n        from board import Board\n        return Board()\n",
    )
    env = EnvSpec(f"{tmp_path}/toy.py:Toy", {})
    state = env.declared.board(None)
    (tmp_path / "state").write_bytes(pickle.dumps([state, env.declared]))
    code = (
        f"import pickle\nfrom cadre.envs.spec import EnvSpec\nEnvSpec({str(tmp_path / 'toy.py:Toy')!r}, {{}})\n"
        f"board, kind = pickle.load(open({str(tmp_path / 'state')!r}, 'rb'))\nprint(board.cells, kind.value)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert result.stdout.split() == ["9", "1"]


def test_a_neighbour_that_changes_is_read_again(tmp_path: Path) -> None:
    write(tmp_path, scoring="value = 1\n", toy="from scoring import value\n")
    assert value_of(tmp_path / "toy.py") == 1
    (tmp_path / "scoring.py").write_text("value = 22\n")
    os.utime(tmp_path / "scoring.py", ns=(0, 1))
    assert value_of(tmp_path / "toy.py") == 22


def test_a_neighbour_that_a_function_imports_is_read_again_too(tmp_path: Path) -> None:
    write(tmp_path, scoring="value = 1\n", toy="def value():\n    import scoring\n    return scoring.value\n")
    assert load_file("env", tmp_path / "toy.py").value() == 1
    os.utime(tmp_path / "scoring.py", ns=(0, time.time_ns() + 10**9))
    (tmp_path / "scoring.py").write_text("value = 22\n")
    assert load_file("env", tmp_path / "toy.py").value() == 22


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import sys\nsys.exit(0)", ["toy.py ends the program while it is loaded", "line 2", "__main__"]),
        ("quit()", ["ends the program", "line 1"]),
        ("raise SystemExit('bye')", ["ends the program", "line 1"]),
        ("import neighbour", ["toy.py failed to load at line 1 of neighbour.py", "called from line 1:", "KeyError"]),
        ("import nowhere", ["toy.py failed to load at line 1: ModuleNotFoundError: No module named 'nowhere'"]),
        ("from neighbours import nothing", ["cannot import name 'nothing' from 'neighbours'"]),
        ("import neighbours.nothing", ["No module named 'neighbours.nothing'"]),
        ("raise BaseException('odd')", ["line 1", "BaseException: odd"]),
    ],
)
def test_what_a_file_does_while_it_is_loaded_names_the_file(text: str, expected: list[str], tmp_path: Path) -> None:
    write(tmp_path, toy=f"{text}\n", neighbour="{}['x']\n", neighbours="")
    with pytest.raises(ConfigError) as caught:
        load_file("env", tmp_path / "toy.py")
    for part in ("env: ", *expected):
        assert part in str(caught.value)


def test_ctrl_c_stays_what_it_is(tmp_path: Path) -> None:
    write(tmp_path, toy="raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_file("env", tmp_path / "toy.py")


def test_what_a_file_prints_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mistake: a program that reads what a command prints gets the file's greeting first."""
    write(tmp_path, toy="print('hello')\nvalue = 1\n")
    assert value_of(tmp_path / "toy.py") == 1
    assert capsys.readouterr() == ("", "hello\n")


def test_a_file_is_not_read_again_while_a_run_uses_it(tmp_path: Path) -> None:
    """Mistake: an edit during a run changes the loss from the next step on, and a half-written file ends the run."""
    write(tmp_path, toy="value = 1\n")
    initial_file = load_file("env", tmp_path / "toy.py")
    with frozen_files():
        write(tmp_path, toy="value = (\n")
        os.utime(tmp_path / "toy.py", ns=(0, 1))
        assert load_file("env", tmp_path / "toy.py") is initial_file
    write(tmp_path, toy="value = 2\n")
    assert value_of(tmp_path / "toy.py") == 2


def test_an_error_in_a_function_names_the_setting_and_the_lines(tmp_path: Path) -> None:
    write(
        tmp_path,
        below="def deep(numbers):\n    return numbers['x']\n",
        mine="from below import deep\ndef f(numbers):\n    return deep(numbers)\nconstant = 3\n",
    )
    with pytest.raises(ContractError) as caught:
        load_function("algorithm.scale", f"{tmp_path}/mine.py:f", {})({})
    assert str(caught.value).startswith(
        "algorithm.scale: mine.py:f: raised KeyError: 'x' at line 2 of below.py, in deep, called "
        "from line 3 of mine.py, in f; expected"
    )
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ConfigError, match="has constant as int and no function"):
        load_function("algorithm.scale", f"{tmp_path}/mine.py:constant", {})


def test_an_edit_of_equal_length_within_the_same_second_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself would take the byte code of before, which it tells apart by seconds and size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(tmp_path, toy="value = 1\n")
    os.utime(tmp_path / "toy.py", ns=(10**18, 10**18))
    assert value_of(tmp_path / "toy.py") == 1
    write(tmp_path, toy="value = 2\n")
    os.utime(tmp_path / "toy.py", ns=(10**18, 10**18 + 1))
    assert value_of(tmp_path / "toy.py") == 2
