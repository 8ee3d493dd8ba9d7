"""Offsets of the lines of a stream."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cadre.errors import RunError
from cadre.view import plain_json
from cadre.view.reading import AnnotationIndex


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    initial_getswitchinterval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(initial_getswitchinterval)


def write(path: Path, steps: range, end: str = "\n") -> None:
    with path.open("a") as file:
        file.writelines(
            json.dumps({"step": step, "tree": 0, "samples": [{"node": step, "role": "r", "index": 0}]}) + end
            for step in steps
        )


def test_lines_are_found_as_the_stream_grows_is_cut_and_grows_again(tmp_path: Path) -> None:
    index = AnnotationIndex(tmp_path / "credit.jsonl")
    write(tmp_path / "credit.jsonl", range(3))
    assert [line["samples"][0]["node"] for line in index.read(2, 0)] == [2]
    write(tmp_path / "credit.jsonl", range(3, 4), end="")
    assert list(index.read(3, 0)) == []
    (tmp_path / "credit.jsonl").write_text('{"tree": 0, "step": 1, "samples": []}\n')
    assert [line["samples"] for line in index.read(1, 0)] == [[]]
    assert list(index.read(2, 0)) == []


def test_a_stream_that_was_cut_and_grew_past_its_end_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "credit.jsonl"
    index = AnnotationIndex(path)
    write(path, range(3))
    assert list(index.read(2, 0))
    path.write_text(
        '{"step": 0, "tree": 0, "samples": []}\n{"step": 1, "tree": 0, "samples": [], "by": "longer than before"}\n'
    )
    write(path, range(2, 9))
    assert [[line["step"] for line in index.read(step, 0)] for step in range(9)] == [[step] for step in range(9)]


def test_a_blank_line_is_none_and_an_odd_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('\n{"step": 0, "tree": 0, "samples": []}\n \n{"step": 1, "tree": 0, "samples": []}\n')
    assert [list(AnnotationIndex(path).read(step, 0)) != [] for step in range(2)] == [True, True]
    path.write_text('{"tree": 0, "turn": 1}\n')
    with pytest.raises(RunError, match=r"mine.jsonl: got the line .*turn.*; expected an object with step and tree"):
        list(AnnotationIndex(path).read(0, 0))


def test_numbers_that_are_not_finite_are_null_to_a_browser() -> None:
    message = {"v": [float("nan"), 1.5, (float("inf"), {"w": -float("inf")})], "t": True, "s": "NaN"}
    assert json.loads(plain_json(message)) == {"v": [None, 1.5, [None, {"w": None}]], "t": True, "s": "NaN"}
    assert plain_json({"v": 1.5}) == '{"v":1.5}'


@pytest.mark.usefixtures("restless")
def test_several_threads_are_told_the_same(tmp_path: Path) -> None:
    write(tmp_path / "credit.jsonl", range(300))
    index = AnnotationIndex(tmp_path / "credit.jsonl")
    with ThreadPoolExecutor(8) as pool:
        message = list(pool.map(lambda step: [line["step"] for line in index.read(step, 0)], range(300)))
    assert message == [[step] for step in range(300)]
