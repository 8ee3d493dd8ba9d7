"""Lines that are no rows: each is named by its file and number, in one paragraph that says what to do."""

from pathlib import Path

import pytest

from cadre.errors import DataError
from cadre.rows import read_json_lines, read_rows
from cadre_tasks.data import load


def test_rows_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes('{"a": 1}\n\n  \n{"a": "x\u2028y"}\r\n{"a": null}'.encode())
    assert list(read_json_lines(file)) == [(1, {"a": 1}), (4, {"a": "x\u2028y"}), (5, {"a": None})]


def test_the_mark_that_some_editors_begin_a_file_with_is_none_of_it(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}\n{"a": 2}\n')
    assert [row for _, row in read_json_lines(file)] == [{"a": 1}, {"a": 2}]
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf[{"a": 1}]')
    assert [row for _, row in read_rows(tmp_path / "a.json")] == [{"a": 1}]


BROKEN = {
    "cut off": (b'{"a": 1', r"line 2: it is not JSON.*Fix or remove the line"),
    "no JSON": (b"a: 1", r"line 2: it is not JSON"),
    "a list": (b"[1]", r"line 2: got list; expected one JSON object"),
    "two objects": (b'{"a": 1} {"a": 2}', r"line 2: it is not JSON"),
    "Latin-1": (b'{"a": "\xe9"}', r"line 2: it is not UTF-8 at byte 7"),
    "half a character": (b'{"a": "\\ud83d"}', r"line 2: got half of a character"),
    "half a character in a name": (b'{"\\ud83d": 1}', r"line 2: got half of a character"),
    "nested too deeply": (b'{"a": ' + b"[" * 200_000, r"line 2: it is not JSON"),
    "a key twice": (b'{"a": {"b": 1, "b": 2}}', r"line 2: it is not JSON: the key 'b' stands twice"),
    "a huge number": (b'{"a": ' + b"9" * 10_000 + b"}", r"line 2: it is not JSON"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_line_in_the_middle_is_named(case: str, tmp_path: Path) -> None:
    line, message = BROKEN[case]
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    with pytest.raises(DataError, match=message) as caught:
        list(read_json_lines(file))
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_is_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "no.jsonl", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            list(read_json_lines(path))


def test_a_broken_line_of_a_public_set_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "aime25").mkdir()
    (tmp_path / "aime25" / "test.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "1+')
    with pytest.raises(DataError, match=r"aime25/test\.jsonl, line 2: it is not JSON"):
        load("aime25", "test", str(tmp_path))


def test_a_public_set_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "aime25").mkdir()
    (tmp_path / "aime25" / "test.jsonl").write_text('{"problem": "1+1?", "answer": ""}\n\n')
    with pytest.raises(DataError, match="holds no item that can be judged"):
        load("aime25", "test", str(tmp_path))
