"""Files that may hold anything: what is none is named, what has no end is not read, JSON is refused in a line."""

import base64
import json
import os
import pickle
import socket
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from cadre.errors import DataError, RunError
from cadre.file_limits import parse_json, read_bytes, read_text
from cadre.rows import read_json_lines, read_rows
from cadre.runs import jsonl
from cadre.view.reading import RunReader
from cadre_tasks.data import public_sets
from tests.cadre.view.runs import synthetic

LARGE = 300 << 20
Read = Callable[[Path], object]
READERS: dict[str, tuple[Read, type[Exception]]] = {
    "bytes": (read_bytes, OSError),
    "rows": (lambda path: list(read_json_lines(path)), DataError),
    "list": (lambda path: list(read_rows(path.rename(path.with_suffix(".json")))), DataError),
    "records": (lambda path: list(jsonl.records(path)), RunError),
}


def large(path: Path) -> None:
    """A file of one line without end, which takes no space."""
    with path.open("wb") as file:
        file.truncate(LARGE)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as created:
        created.bind(str(path))


MAKE: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (os.mkfifo, "it is no regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is no regular file"),
    "folder": (lambda path: path.mkdir(), "it is a folder"),
    "socket": (listening, "No such device or address"),
    "circle": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "large": (large, "it holds more than"),
}


@pytest.mark.parametrize("reader", ["bytes", "rows", "records"])
@pytest.mark.parametrize("kind", MAKE)
def test_what_is_no_file_is_named(reader: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("f")
    make, why = MAKE[kind]
    make(path)
    read, error = READERS[reader]
    if reader == "records":  # of a run folder, in which links are not followed
        why = {"device": "is a link", "circle": "is a link", "socket": "cannot be read"}.get(kind, why)
    with pytest.raises(error, match=why):
        read(path)


@pytest.mark.parametrize("name", ["a\0b", "a" * 5_000, "\ud800"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(OSError, match=r"no name of a file|File name too long"):
        read_bytes(name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 200_000, "nested too deeply"),
        ("9" * 5_000, "whole number of more than 4,300 digits"),
        (b"\xff", "not UTF-8"),
        ("", "not JSON: it is empty"),
        ("{", "not JSON: Expecting property name"),
        (b"{}\0\0", "not JSON: Extra data"),
    ],
)
def test_json_is_refused_in_a_line(text: str | bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        parse_json(text)
    assert "\n" not in str(raised.value)


def test_lines_end_as_in_texts(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\r\nb\rc\n")
    assert read_text(tmp_path / "f") == "a\nb\nc\n"


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a": ' + "9" * 5_000 + "}"])
def test_a_row_is_refused_by_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"question": "x"}\n' + line + "\n")
    with pytest.raises(DataError, match="line 2: it is not JSON"):
        list(read_json_lines(path))


def test_private_tests_that_unpack_without_end() -> None:
    packed = base64.b64encode(zlib.compress(pickle.dumps("x" * 1_000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(public_sets, "MAX_TEST_BYTES", 500)
        with pytest.raises(ValueError, match="at most 500 bytes"):
            public_sets.private_cases(packed.decode())


def test_records_are_read_a_part_at_a_time(tmp_path: Path) -> None:
    """The page asks until it has all."""
    run = synthetic(tmp_path / "run", 6, 1)
    reader = RunReader(run, "run")
    full = reader.metrics(0)
    steps, offset, requests = [], 0, 0
    while len(steps) < len(full["steps"]):
        part = reader.metrics(offset, 1)
        steps += part["steps"]
        offset, requests = part["offset"], requests + 1
    assert steps == full["steps"]
    assert requests == len(steps)
    assert offset == full["offset"]


def test_a_line_of_a_run_that_is_nested_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 0}) + "\n" + "[" * 100_000 + "\n")
    with pytest.raises(RunError, match=r"line 2: not JSON: it is nested too deeply"):
        list(jsonl.records(path))
