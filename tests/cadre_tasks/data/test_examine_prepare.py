"""Clean JSON lines of a set are what the set's records were, and read back as such."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cadre_tasks.data import SPECS, load
from cadre_tasks.data.examine import prepare
from cadre_tasks.data.user_file import load_user_file
from tests.cadre.cli.calling import call
from tests.cadre_tasks.data.invented import folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", SPECS)
def test_every_set_reads_back_as_it_was(name: str, home: str, tmp_path: Path) -> None:
    out = tmp_path / "clean.jsonl"
    prepared = prepare(name, "test" if "test" in SPECS[name].splits else "train", home, out)
    original = load(name, "test" if "test" in SPECS[name].splits else "train", home)
    again = load_user_file(str(out), SPECS[name].kind, {})
    assert prepared.written == len(again) == len(original)
    # Stories and abstracts are known by their text alone; a script's tests need no names.
    assert [replace(record, id="") for record in again] == [replace(record, id="") for record in original]


def test_tables_of_numbers_read_back_as_they_were(tmp_path: Path) -> None:
    """Mistake: JSON makes texts of their keys, and right programs fail."""
    tests = {"fn_name": "f", "inputs": [[{"1": "a"}], [{"b": {"2": 3}}]], "outputs": [[{"1": 2}], [{"-2": 5}]]}
    row = {"id": 1, "question": "Count.", "starter_code": "", "solutions": "", "input_output": json.dumps(tests)}
    case = {"input": '{"1": 2}', "output": '{"3": 4}'}
    code = {"question_id": "1", "question_content": "Count.", "starter_code": "", "metadata": '{"func_name": "f"}'}
    cases = {"public_test_cases": "[]", "private_test_cases": json.dumps([case])}
    for name, item in (("apps", row), ("livecodebench", code | cases)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.jsonl").write_text(json.dumps(item))
        prepare(name, "test", str(tmp_path), tmp_path / f"{name}.jsonl")
        records = load(name, "test", str(tmp_path))
        assert load_user_file(str(tmp_path / f"{name}.jsonl"), "program", {}) == records
    assert records[0].hidden == ((({1: 2},), {3: 4}),)


def test_what_repeats_leaks_or_cannot_be_judged_is_left_out_and_counted(home: str, tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    rows = [json.loads(line) for line in (Path(home) / "gsm8k" / "train.jsonl").read_text().splitlines()]
    test = (Path(home) / "gsm8k" / "test.jsonl").read_text()
    text = "".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]) + test
    (tmp_path / "gsm8k" / "train.jsonl").write_text(text)
    (tmp_path / "gsm8k" / "test.jsonl").write_text(test)
    result = call("data", "gsm8k", "--from", str(tmp_path), "--out", str(tmp_path / "clean.jsonl"))
    assert result.code == 0
    assert "wrote 2 of 4 items" in result.out
    assert "0 that cannot be judged, 0 that contradict another, 1 that repeat another, 1 that are in gsm8k" in " ".join(
        result.out.split()
    )
    assert (tmp_path / "clean.jsonl").read_text().count("\n") == 2


def test_equal_words_with_another_answer_are_no_repetition(tmp_path: Path) -> None:
    """Words leave signs out. Of one question with two answers nothing is kept, as one of them is wrong."""
    rows = [("sin 60?", "1"), ("sin(-60)?", "-1"), ("Sin(-60) ?", "-1"), ("tan 5?", "1"), ("Tan 5 ?", "2")]
    (tmp_path / "gsm8k").mkdir()
    lines = [json.dumps({"question": question, "answer": f"#### {answer}"}) for question, answer in rows]
    (tmp_path / "gsm8k" / "train.jsonl").write_text("\n".join(lines))
    prepared = prepare("gsm8k", "train", str(tmp_path), tmp_path / "clean.jsonl")
    assert (prepared.written, prepared.report.contradictory, prepared.report.repeated) == (2, 2, 1)
    again = load_user_file(str(tmp_path / "clean.jsonl"), "problem", {})
    assert [record.answer for record in again] == ["1", "-1"]
    assert "2 contradict another, 1 repeat another" in call("data", "gsm8k", "--from", str(tmp_path)).out
    assert "2 that contradict another, 1 that repeat another" in prepared.line(tmp_path)


def test_programs_of_one_statement_may_have_other_tests(tmp_path: Path) -> None:
    """Items 76 and 347 of MBPP have them; equal tests are a repetition."""
    row = {"task_id": 11, "text": "Count.", "code": "def f(n): ...", "test_list": ["assert f(1)", "assert f(2)"]}
    rows = [row, {**row, "task_id": 12, "test_list": ["assert f(1)", "assert f(3)"]}, {**row, "task_id": 13}]
    (tmp_path / "mbpp").mkdir()
    (tmp_path / "mbpp" / "mbpp.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepared = prepare("mbpp", "test", str(tmp_path), tmp_path / "clean.jsonl")
    assert (prepared.written, prepared.report.contradictory, prepared.report.repeated) == (2, 0, 1)
    again = load_user_file(str(tmp_path / "clean.jsonl"), "program", {})
    assert [record.id for record in again] == ["mbpp-11", "mbpp-12"]


def test_a_training_split_alone_is_enough(home: str, tmp_path: Path) -> None:
    """Its own test split is not here, and that is said."""
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "train.jsonl").write_text((Path(home) / "gsm8k" / "train.jsonl").read_text())
    examined = call("data", "gsm8k", "--from", str(tmp_path))
    assert examined.code == 0
    assert "not compared with the test items of" in " ".join(examined.out.split())
    prepared = prepare("gsm8k", "train", str(tmp_path), tmp_path / "clean.jsonl")
    assert (prepared.written, "gsm8k" in prepared.unseen) == (2, True)


def test_an_item_that_asks_nothing_cannot_be_judged(tmp_path: Path) -> None:
    (tmp_path / "stories").mkdir()
    rows = [{"prompt": "A fox.", "story": text} for text in ("", " ", "It ran.")]
    (tmp_path / "stories" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepared = prepare("stories", "test", str(tmp_path), tmp_path / "clean.jsonl")
    assert (prepared.written, prepared.report.rows, prepared.report.judged) == (1, 3, 1)
    assert len(load_user_file(str(tmp_path / "clean.jsonl"), "article", {})) == 1


def test_the_file_must_be_new_and_end_in_jsonl(home: str, tmp_path: Path) -> None:
    (tmp_path / "there.jsonl").write_text("")
    assert "exists; expected a new path" in call("data", "gsm8k", "--out", str(tmp_path / "there.jsonl")).err
    assert "ends in .jsonl" in call("data", "gsm8k", "--out", str(tmp_path / "mine.json")).err
    result = call("data", "aime24", "--from", home, "--split", "train", "--out", str(tmp_path / "new.jsonl"))
    assert "no train split" in result.err
