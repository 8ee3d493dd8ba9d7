"""Wrong command lines: one paragraph to stderr, exit code 2, nothing written, and no traceback."""

import shlex
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.cadre.cli import bad_calls
from tests.cadre.cli.calling import call
from tests.helpers.slow import few_of


@pytest.fixture(scope="module")
def workdir(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the calls name."""
    folder = tmp_path_factory.mktemp("bad-calls")
    bad_calls.prepare(folder, speaker)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert call("train", "PLAIN", "--run", "RUN").code == 0
    return folder


def test_there_are_many() -> None:
    lines = [shlex.join(arguments) for arguments in bad_calls.calls()]
    assert len(lines) >= 200
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize("arguments", few_of(bad_calls.calls(), bad_calls.calls(starred_only=True)), ids=shlex.join)
def test_a_bad_call_is_one_paragraph(arguments: list[str], workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workdir)
    monkeypatch.delenv("CADRE_DATA", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    initial = {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()}
    result = call(*arguments)
    assert result.code == 2, result
    # The files of a run are named before the first of them runs, which may be needed to see what is wrong.
    output = [line for line in result.err.splitlines() if not line.startswith("imports ")]
    assert all(line.startswith("error: ") for line in output)
    # The contract of an environment is told with all that is wrong at once.
    assert len(output) == 1 or (arguments[0] == "check" and len(output) > 1)
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()} == initial
