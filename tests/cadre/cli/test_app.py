"""The command line as a whole: version, help, and wrong calls in one paragraph."""

import re
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

import cadre
from cadre.cli import main
from tests.cadre.cli.calling import call


def test_version() -> None:
    assert call("--version").out == f"cadre {cadre.__version__}\n"


def test_without_a_command_it_helps() -> None:
    result = call()
    assert result.code == 0
    assert "preference-pairs" in result.out
    assert "train" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tran"], "error: No such command 'tran'. Did you mean 'train'? See cadre --help.\n"),
        (["train"], "error: train: got no recipe; expected a bundled one or a YAML file, such as plan-path.\n"),
        (["train", "--unheard-of"], "error: train: No such option: --unheard-of. See cadre train --help.\n"),
    ],
)
def test_a_wrong_call_is_one_paragraph(arguments: list[str], expected: str) -> None:
    result = call(*arguments)
    assert (result.code, result.err) == (2, expected)


def test_a_home_folder_is_found_behind_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell expands `--out ~/mine`, and leaves `--out=~/mine` to the program."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "there").write_text("a file")
    for arguments in (["train", "plan-path", "--run=~/there"], ["train", "plan-path", "--run", "~/there"]):
        assert f"{tmp_path}/there" in call(*arguments).err
    assert f"{tmp_path}/none" in call("eval", "~/none").err


def test_a_console_that_cannot_spell_a_path_escapes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the case with an ASCII locale or PYTHONIOENCODING."""
    (tmp_path / "süß.jsonl").write_text("")
    out, err = (TextIOWrapper(BytesIO(), encoding="ascii", write_through=True) for _ in range(2))
    monkeypatch.setattr(sys, "argv", ["cadre", "status", str(tmp_path / "süß.jsonl")])
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with pytest.raises(SystemExit):
        main()
    assert (out.errors, err.errors) == ("backslashreplace", "backslashreplace")
    assert rb"s\xfc\xdf.jsonl" in err.buffer.getvalue()


def test_help_groups_the_commands_by_purpose_and_names_no_type_of_flags() -> None:
    out = call("--help").out
    panels = re.findall(r"^╭─ ([A-Za-z ]+) ─", out, re.MULTILINE)
    assert panels == ["Options", "Train", "Evaluate", "Look at runs", "Use a team", "Tasks"]
    assert out.count("│ compare ") == 1
    for command in ([], ["train"], ["view"], ["eval"]):
        assert "bool" not in call(*command, "--help").out
