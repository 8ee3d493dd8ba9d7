"""Lines are whole or not there, whatever stopped the process that wrote them."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cadre.errors import RunError
from cadre.runs import jsonl


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for step in range(3):
        jsonl.append(path, {"step": step})
    assert list(jsonl.records(path)) == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert list(jsonl.records(tmp_path / "none.jsonl")) == []


@pytest.mark.parametrize("torn", ['{"step": 2', '{"step": 2}', "{", "\x00\x00"])
def test_a_line_that_was_cut_off_is_never_read_and_the_next_takes_its_place(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n' + torn)
    assert [line["step"] for line in jsonl.records(path)] == [0, 1]
    jsonl.append(path, {"step": 2})
    assert [line["step"] for line in jsonl.records(path)] == [0, 1, 2]


def test_a_cut_line_longer_than_a_block_is_found(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 0}\n' + "x" * 1000)
    assert jsonl.complete_length(path, block=7) == 12


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.jsonl"
    jsonl.append(path, {"step": 0})
    initial_content, write = path.read_bytes(), os.write
    room = [5]

    def full(descriptor: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        part, room[0] = data[: room[0]], 0
        return write(descriptor, part)

    # For the module alone: other threads of the test process write too.
    monkeypatch.setattr(jsonl, "os", SimpleNamespace(**{**vars(os), "write": full}))
    with pytest.raises(RunError, match="No space left"):
        jsonl.append(path, {"step": 1})
    assert path.read_bytes() == initial_content


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(RunError, match=r"lines\.jsonl, line 2: not JSON"):
        list(jsonl.records(path))
    path.write_text("[1]\n")
    with pytest.raises(RunError, match="line 1: got list"):
        list(jsonl.records(path))


def test_cutting_keeps_the_lines_before(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for step in (0, 0, 1, 2, 1):
        jsonl.append(path, {"step": step})
    jsonl.truncate(path, lambda line: line["step"] >= 2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 0, 1]
    jsonl.truncate(path, lambda line: False)
    assert len(list(jsonl.records(path))) == 3
    jsonl.truncate(tmp_path / "none.jsonl", lambda line: True)


def test_what_is_no_number_is_null_for_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    jsonl.append(path, {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (-float("inf"), 2)}, "e": 0.1})

    def refuse(text: str) -> float:
        raise AssertionError(text)

    line = json.loads(path.read_text(), parse_constant=refuse)
    assert line == {"a": None, "b": [None, 1.5], "c": {"d": [None, 2]}, "e": 0.1}


def test_older_files_that_have_nan_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": NaN, "b": Infinity}\n')
    (record,) = jsonl.records(path)
    assert record["a"] != record["a"]
