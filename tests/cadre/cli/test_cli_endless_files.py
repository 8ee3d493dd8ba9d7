"""Files that are none, or have no end, where the command line expects one: refused in a paragraph, and soon."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest

from cadre.plugins import embedded_models
from tests.cadre.cli.calling import Done, call

SECONDS = 60


@pytest.fixture(autouse=True)
def _ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A call that does not end fails its test, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)


def refused(*arguments: str) -> str:
    """Return the error message of a call that must fail."""
    result: Done = call(*arguments)
    assert result.code == 2, result
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) == 1
    return result.err


@pytest.mark.parametrize("command", ["train", "eval", "play"])
@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "link", "large", "utf-16"])
def test_a_recipe_is_a_regular_file(command: str, kind: str) -> None:
    path = Path("recipe.yaml")
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path = Path("/dev/zero")
        elif kind == "socket":
            listening.bind(str(path))
        elif kind == "link":
            path.symlink_to("/dev/zero")
        elif kind == "large":
            path.write_bytes(b"#" * (2 << 20))
        else:
            path.write_text("env: plan-path", encoding="utf-16")
        message = refused(command, str(path))
    why = {"large": "it holds more than 1 MiB", "utf-16": "not UTF-8", "socket": "No such device or address"}
    why = why.get(kind, "it is no regular file")
    assert str(path) in message
    assert why in message


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("..:x", "neither a file that ends in .py nor the name of a module"),
        (".:x", "nor the name of a module"),
        ("a..b:x", "nor the name of a module"),
        ("/dev/zero:X", "nor the name of a module"),
        ("os:path:x", "nor the name of a module"),
        ("pipe.py:X", "it is no regular file"),
        ("zero.py:X", "it is no regular file"),
        ("folder.py:X", "it is a folder"),
        ("circle.py:X", "Too many levels of symbolic links"),
        ("x" * 300 + ".py:X", "File name too long"),
        ('"a\\0.py:X"', "null byte"),
        ('"a\\0:X"', "nor the name of a module"),
    ],
)
def test_an_environment_is_a_regular_file_or_a_module(env: str, why: str) -> None:
    os.mkfifo("pipe.py")
    Path("zero.py").symlink_to("/dev/zero")
    Path("folder.py").mkdir()
    Path("circle.py").symlink_to("circle.py")
    assert why in refused("train", "plan-path", f"env={env}", "--dry-run")


def described(**numbers: object) -> str:
    """A folder with the embedded model, under another description."""
    folder = Path("model")
    copytree(embedded_models()["seed"], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **numbers}))
    return str(folder)


@pytest.mark.parametrize("dry", [("--dry-run",), ("--run=RUN",)])
@pytest.mark.parametrize(
    ("numbers", "parameters"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000, more than 10,000"),
        ({"num_hidden_layers": 1e9}, "1000000000.0, no whole number"),
        ({"num_hidden_layers": 10**9, "model_type": "qwen3"}, "num_hidden_layers is 1,000,000,000"),
        ({"num_hidden_layers": 20_000}, "num_hidden_layers is 20,000"),
        ({"hidden_size": 10**12}, "hidden_size is 1,000,000,000,000, more than 100,000,000"),
        ({"vocab_size": 10**12}, "vocab_size is 1,000,000,000,000, more than"),
        ({"text_config": {"num_hidden_layers": 10**9, "hidden_size": 64}}, "num_hidden_layers is 1,000,000,000"),
    ],
    ids=str,
)
def test_a_model_is_refused_by_its_size(numbers: dict[str, object], parameters: str, dry: tuple[str]) -> None:
    message = refused("train", "plan-path", f"team.policies.shared={described(**numbers)}", *dry)
    assert parameters in message
    assert not Path("RUN").exists()


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size"])
@pytest.mark.parametrize("value", [0, -5, "1000000000", None, float("inf"), True])
def test_a_model_is_described_by_whole_numbers(key: str, value: object) -> None:
    message = refused("train", "plan-path", f"team.policies.shared={described(**{key: value})}", "--dry-run")
    assert f"{key} is {value!r}, no whole number from 1 on" in message


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"a": ' + "9" * 5_000 + "}", "whole number of more than 4,300 digits"),
        (" " * (17 << 20), "it holds more than 16 MiB"),
        ("[1]", "it holds list"),
        ("", "it is empty"),
    ],
    ids=["deep", "digits", "large", "list", "empty"],
)
def test_a_description_that_is_none(content: str, why: str) -> None:
    folder = Path(described())
    (folder / "config.json").write_text(content)
    assert why in refused("train", "plan-path", f"team.policies.shared={folder}", "--dry-run")
