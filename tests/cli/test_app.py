"""The command line as a whole: version, help, and wrong calls in one paragraph."""

import pytest

import cadre
from tests.cli.calling import call


def test_version() -> None:
    assert call("--version").out == f"cadre {cadre.__version__}\n"


def test_without_a_command_it_helps() -> None:
    done = call()
    assert done.code == 0
    assert "reward-model" in done.out
    assert "train" in done.out


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["tran"], "error: No such command 'tran'. Did you mean 'train'? See cadre --help.\n"),
        (["train"], "error: train: got no recipe; expected a bundled one or a YAML file, such as plan-path.\n"),
        (["train", "--bogus"], "error: train: No such option: --bogus. See cadre train --help.\n"),
    ],
)
def test_a_wrong_call_is_one_paragraph(arguments: list[str], wanted: str) -> None:
    done = call(*arguments)
    assert (done.code, done.err) == (2, wanted)
