"""Your own file: fields by their names, and what is wrong with a line by file, line and field."""

import json
from pathlib import Path
from typing import Any

import pytest

from cadre.errors import ConfigError, DataError
from cadre_tasks.data import Article, CodingProblem, Problem
from cadre_tasks.data.user_file import load_user_file


def write(folder: Path, *rows: dict[str, Any]) -> str:
    file = folder / "my.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_problems_by_the_file_s_names(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1?", "gold": 2, "level": 3}, {"prompt": "How long?", "gold": "4.2", "tolerance": 0.1}]
    file = write(tmp_path, *rows)
    assert load_user_file(file, "problem", {"question": "prompt", "answer": "gold"}) == (
        Problem("my-1", "1+1?", "2"),
        Problem("my-2", "How long?", "4.2", 0.1),
    )


def test_problems_by_the_usual_names(tmp_path: Path) -> None:
    file = write(tmp_path, {"id": 7, "question": "1+1?", "answer": "2", "tolerance": None})
    assert load_user_file(file, "problem", {}) == (Problem("7", "1+1?", "2"),)


def test_programs(tmp_path: Path) -> None:
    script = {"statement": "Add.", "public": [["1 2", "3"]], "hidden": [["4 4", "8"]]}
    call = {"statement": "Add.", "entry": "add", "hidden": [[[1, 2], 3]], "starter": "def add(a, b):"}
    tested = {"statement": "Sub.", "entry": "sub", "tests": "assert sub(3, 1) == 2", "reference": "def sub(a, b): ..."}
    assert load_user_file(write(tmp_path, script, call, tested), "program", {}) == (
        CodingProblem("my-1", "Add.", public=(("1 2", "3"),), hidden=(("4 4", "8"),)),
        CodingProblem("my-2", "Add.", "add", "def add(a, b):", hidden=(((1, 2), 3),)),
        CodingProblem("my-3", "Sub.", "sub", tests=tested["tests"], names=("sub",), reference=tested["reference"]),
    )


def test_articles(tmp_path: Path) -> None:
    rows = [{"body": "A long text.", "short": "Short."}, {"body": "Another.", "short": ["One.", "Two."]}]
    file = write(tmp_path, *rows)
    assert load_user_file(file, "article", {"text": "body", "references": "short"}) == (
        Article("my-1", "", "A long text.", ("Short.",)),
        Article("my-2", "", "Another.", ("One.", "Two.")),
    )


GOOD = {"question": "1+1?", "answer": "2"}
WRONG = {
    "a missing field": ({"question": "2+2?"}, r"line 2: got no field 'answer' for answer; got question"),
    "an empty answer": ({"question": "2+2?", "answer": " "}, r"line 2: answer: got ' '; expected a text that is not"),
    "no answer": ({"question": "2+2?", "answer": None}, r"line 2: answer: got ''"),
    "a list": ({"question": "2+2?", "answer": ["4"]}, r"line 2: answer: got \['4'\]; expected a text"),
    "not a number": ({"question": "2+2?", "answer": float("nan")}, r"line 2: answer: got nan; expected a text"),
    "an endless number": ({"question": "2+2?", "answer": float("inf")}, r"line 2: answer: got inf; expected a text"),
    "a worked solution": ({"question": "2+2?", "answer": "2+2 #### 4"}, r"line 2: answer: got '2\+2 #### 4'; .* alone"),
    # Mistake: a column of solutions is taken for the answers, and no answer is ever right.
    "a worked solution with a box": (
        {"question": "2+2?", "answer": "It is $\\boxed{4}$."},
        r"line 2: answer: got 'It is \$.*; .* alone",
    ),
    "a truth value": ({"question": "2+2?", "answer": True}, r"line 2: answer: got True; expected a text"),
    "a tolerance of words": ({**GOOD, "tolerance": "some"}, r"line 2: tolerance: got 'some'; expected a number"),
    "a negative tolerance": ({**GOOD, "tolerance": -1}, r"line 2: tolerance: got -1"),
    "an endless tolerance": ({**GOOD, "tolerance": float("inf")}, r"line 2: tolerance: got inf"),
    "the same question with another answer": (
        {"question": "1+1?", "answer": "3"},
        r"line 2: asks what line 1 asks, with another answer",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_line_is_named_by_file_line_and_field(case: str, tmp_path: Path) -> None:
    row, message = WRONG[case]
    file = write(tmp_path, GOOD, row)
    with pytest.raises(DataError, match=message) as caught:
        load_user_file(file, "problem", {})
    assert str(caught.value).startswith(f"data: {file}, line 2:")
    assert "\n" not in str(caught.value)


PROGRAMS = {
    "nothing decides": ({"statement": "Add."}, r"hidden: got None; expected hidden cases, or test code"),
    "tests of nothing": ({"statement": "Add.", "tests": "assert f(1)"}, r"entry: got ''; expected the name"),
    "two that decide": (
        {"statement": "Add.", "entry": "f", "hidden": [[[1], 1]], "tests": "assert f(2) == 2"},
        r"none beside `tests`",
    ),
    "tests that are no Python": (
        {"statement": "Add.", "entry": "f", "tests": "assert f(1 =="},
        r"line 1: tests: got 'assert f\(1 =='; expected Python, which this is not \('\(' was never closed",
    ),
    "blank tests": (
        {"statement": "Add.", "entry": "f", "tests": " \n"},
        r"tests: got ' \\n'; expected asserts that use f",
    ),
    "a comment": ({"statement": "Add.", "entry": "f", "tests": "# f(1)"}, r"tests: got '# f\(1\)'; expected asserts"),
    "tests of another": (
        {"statement": "Add.", "entry": "f", "tests": "assert g(1)"},
        r"expected asserts that use f, or",
    ),
    "a name with a space": (
        {"statement": "Add.", "entry": "f g", "tests": "assert f(1)"},
        r"entry: got 'f g'; expected",
    ),
    "a call for a name": ({"statement": "Add.", "entry": "f()", "hidden": [[[1], 1]]}, r"entry: got 'f\(\)'; expected"),
    "a word of Python's": (
        {"statement": "Add.", "entry": "pass", "hidden": [[[1], 1]]},
        r"entry: got 'pass'; expected",
    ),
    "cases of another form": ({"statement": "Add.", "hidden": [["1"]]}, r"expected a list of pairs \[stdin, stdout\]"),
    "calls without a list": (
        {"statement": "Add.", "entry": "add", "hidden": [["1", 2]]},
        r"expected a list of pairs \[\[arguments, ...\], value\]",
    ),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_programs_that_nothing_can_judge(case: str, tmp_path: Path) -> None:
    row, message = PROGRAMS[case]
    with pytest.raises(DataError, match=message):
        load_user_file(write(tmp_path, row), "program", {})


@pytest.mark.parametrize(
    "more",
    [
        {"tests": "def check(candidate):\n    assert candidate(1)"},
        {"tests": "assert Pair().g", "names": ["f", "Pair"]},
        {"tests": "def test_it():\n    assert f('\\d')"},
    ],
)
def test_programs_that_test_code_can_judge(more: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path, {"statement": "Add.", "entry": "f", **more})
    assert len(load_user_file(file, "program", {})) == 1


def test_a_missing_field_under_its_other_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: got no field 'gold' for answer; got question, answer\. .*\{answer:"):
        load_user_file(write(tmp_path, GOOD), "problem", {"answer": "gold"})


def test_an_unknown_field_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"settings\.fields\.questions: a problem has no such field.*mean question\?"):
        load_user_file(write(tmp_path, GOOD), "problem", {"questions": "prompt"})


def test_repeated_items_count_once_and_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path, {**GOOD, "id": 1}, {**GOOD, "id": 2}, {"question": "2+2?", "answer": "4"}, GOOD)
    with caplog.at_level("WARNING"):
        assert [record.id for record in load_user_file(file, "problem", {})] == ["1", "my-3"]
    assert "repeats 2 of its items" in caplog.text


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "my.jsonl").write_text(text)
    with pytest.raises(DataError, match="holds no items"):
        load_user_file(str(tmp_path / "my.jsonl"), "problem", {})
