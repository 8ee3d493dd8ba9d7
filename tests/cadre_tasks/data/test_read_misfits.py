"""Rows of a named set whose fields are of other types than the set's: one paragraph that names the line."""

import json
from pathlib import Path
from typing import Any

import pytest

from cadre.errors import DataError
from cadre_tasks.data import load
from tests.cadre_tasks.data.invented import ROWS

SPELT = ROWS["apps"]["test"][0]
PAPER = {"paper_id": "p", "title": "T", "abstract": "A.", "tldrs": ["One."]}


def asking(**tests: Any) -> dict[str, Any]:
    return {**SPELT, "input_output": json.dumps(tests)}


BAD = {
    "no test": ("humaneval", {**ROWS["humaneval"]["test"][0], "test": None}, "tests: got None; expected a text"),
    "a number for a name": ("humaneval", {**ROWS["humaneval"]["test"][0], "task_id": 5}, "id: got 5; expected a text"),
    "one reference": ("scitldr", {**PAPER, "tldrs": "a text"}, "a list was expected; got 'a text'"),
    "references of numbers": ("scitldr", {**PAPER, "tldrs": [1]}, r"references: got \(1,\); expected a list of texts"),
    "one sentence": ("scitldr", {**ROWS["scitldr"]["test"][0], "source": "We."}, "a list was expected; got 'We.'"),
    "no starter": ("apps", {**SPELT, "starter_code": None}, "starter: got None; expected a text"),
    "no arguments": ("apps", asking(fn_name="f", inputs=["abc"], outputs=[1]), "a list was expected; got 'abc'"),
    "one input": ("apps", asking(inputs="ab", outputs=["1", "2"]), "a list was expected; got 'ab'"),
    "an input of a table": ("apps", asking(inputs=[{"a": 1}], outputs=["1"]), "a list was expected; got {'a': 1}"),
    "one test": ("mbpp", {**ROWS["mbpp"]["test"][0], "test_list": "assert f()"}, "a list was expected"),
    "no number": ("math500", {"problem": "p", "answer": float("nan")}, r"a finite number was expected; got \[nan"),
    "no end": ("math500", {"problem": "p", "answer": float("-inf")}, r"a finite number was expected; got \[-inf"),
    "a tolerance that is none": (
        "olympiadbench",
        {**ROWS["olympiadbench"]["train"][0], "error": "nan"},
        "tolerance: got nan; expected a number from 0 on",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_field_of_another_type_is_told_with_its_line(case: str, tmp_path: Path) -> None:
    name, row, message = BAD[case]
    (tmp_path / name).mkdir()
    (tmp_path / name / "test.jsonl").write_text(f"\n{json.dumps(row)}\n")
    with pytest.raises(DataError, match=rf"test\.jsonl, line 2 has another shape than .*{message}"):
        load(name, "test", str(tmp_path))
