"""Test items in training data: what counts, the report of `cadre data`, and the public sets if present."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cadre.cli.app import app
from cadre.errors import DataError
from cadre_tasks.data import Leak, Problem, find_leaks, load
from cadre_tasks.data.examine import examine
from cadre_tasks.data.leaks import split_words
from cadre_tasks.data.tasks import DataSelection, load_data_tasks
from tests.cadre_tasks.data.invented import ROWS, folder
from tests.helpers.public_sets import FOLDER, rows

TEN = "one two three four five six seven eight nine ten"


def problems(*texts: str) -> list[Problem]:
    return [Problem(str(position), text, "0") for position, text in enumerate(texts)]


def found(train: str, test: str) -> list[float]:
    return [leak.share for leak in find_leaks(problems(train), problems("something else", test))]


@pytest.mark.parametrize(
    ("train", "test", "shares"),
    [
        ("Find $x+1$.", "find  x 1", [1.0]),  # the same words, few of them
        ("Find $x+1$ now.", "Find $x+1$.", []),
        (TEN, TEN.upper(), [1.0]),
        (f"Well then: {TEN}!", TEN, [1.0]),  # all 3 runs of 8 words of the test item
        (f"{TEN} eleven", f"{TEN} twelve", []),  # 3 of its 4 runs
        (" ".join(f"w{i}" for i in range(17)) + " x", " ".join(f"w{i}" for i in range(18)), [10 / 11]),
        (" ".join(f"w{i}" for i in range(15)) + " x", " ".join(f"w{i}" for i in range(16)), []),  # 8 of 9
        ("", "", [1.0]),
        (f"{TEN} eleven twelve", f"Answer this: {TEN} eleven twelve. Be brief, and say why it is so.", [1.0]),
        (f"{TEN} eleven", f"Answer this: {TEN} eleven. Be brief, and say why it is so.", []),  # too short
        (f"{TEN} eleven twelve x", f"Answer this: {TEN} eleven twelve. Be brief, and say why it is so.", []),
        ("小明有五个苹果又买了三个", "请回答：小明有五个苹果又买了三个。一共有几个？", [1.0]),
        ("答：太郎はりんごを五つ持っています", "太郎はりんごを五つ持っています", [1.0]),
        ("สมชายมีแอปเปิ้ลห้าผล", "ตอบ: สมชายมีแอปเปิ้ลห้าผล", [1.0]),
        ("철수는 사과를 다섯개 가지고 있습니다", "철수는사과를다섯개가지고있습니다", [1.0]),
        ("Ｆｉｎｄ ｘ² ﬁrst", "find x^2 first", [1.0]),
    ],
)
def test_leaks_by_hand(train: str, test: str, shares: list[float]) -> None:
    assert found(train, test) == pytest.approx(shares)


def test_items_that_differ_in_signs_and_answers_are_no_leak() -> None:
    """Mistake: `2 - 2` in training is a copy of `2 + 2`, as words leave signs out."""
    long = "Of the numbers below say what comes out in all: {}"
    for text in ("{}", long):
        test = [Problem("0", text.format("2 + 2"), "4"), Problem("1", text.format("3 - 1"), "2")]
        assert find_leaks([Problem("0", text.format("2 - 2"), "0")], test) == []
        assert [leak.test for leak in find_leaks([Problem("0", text.format("3 \u2212 1"), "two")], test)] == [
            1
        ]  # its sign
        assert [leak.test for leak in find_leaks([Problem("0", text.format("$3 1$"), "2")], test)] == [1]  # its answer


@pytest.mark.parametrize(
    ("item", "second"),
    [
        ("Compute (1+2)*3.", "Compute 1+(2*3)."),
        ("1.5 + 2", "1 + 5.2"),
        ("A∪B", "A∩B"),
        ("x² ≤ 9", "x² ≥ 9"),
        ("3 - |5|", "|3 - 5|"),
        ("|3| 5", "3 |5|"),
        ("√2 + 1", "2 + 1"),
        ("10²", "102"),
    ],
)
def test_problems_of_the_same_words_and_other_signs_are_no_copies(item: str, second: str) -> None:
    train, test = Problem("0", item, "1"), Problem("1", second, "2")
    assert find_leaks([train], [test]) == []
    assert find_leaks([train], [replace(test, answer="1")]) == ([] if second == "102" else [Leak(0, 0, 1.0)])
    assert find_leaks([train], [Problem("1", f"  ${item.upper()}$.", "2")]) == [Leak(0, 0, 1.0)]


def test_the_words_that_texts_are_compared_by() -> None:
    assert split_words(r"Let $\frac{1}{2}x_1 \le É$!") == ("let", "frac", "1", "2", "x", "1", "le", "é")


def test_test_items_in_training_are_left_out_or_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Path(folder(tmp_path))
    stolen = {**ROWS["math500"]["test"][0], "solution": "\\boxed{18}"}
    del stolen["answer"]
    with (home / "math-train" / "train.jsonl").open("a") as out:
        out.write(json.dumps(stolen) + "\n")
    chosen = DataSelection("problem", "math-train", "math500", str(home))
    with pytest.raises(DataError, match=r"1 of 3 training items of math-train .*leaks=drop"):
        load_data_tasks(replace(chosen, leaks="refuse"), "train")
    with caplog.at_level("WARNING"):
        stored = load_data_tasks(chosen, "train")
    assert [task.data["id"] for task in stored] == ["0", "1"]
    assert "1 of 3 training items of math-train are test items of math500" in caplog.text
    assert examine("math-train", str(home)).leaks["math500"] == 1


def test_the_command(tmp_path: Path) -> None:
    home = folder(tmp_path)
    result = CliRunner().invoke(app, ["data", "gsm8k", "--from", home])
    assert result.exit_code == 1  # the test split has one row, not 1,319
    assert "gsm8k train: 2 rows (part; published 7,473)" in result.output
    assert "gsm8k test: 1 rows (wrong; published 1,319)" in result.output
    assert "gsm8k train against math500 test: 0 leaks" in result.output
    assert "Bo has 4 coins" in result.output
    as_json = json.loads(CliRunner().invoke(app, ["data", "gsm8k", "--from", home, "--json"]).output)
    assert as_json["leaks"]["gsm8k"] == 0
    assert not as_json["sound"]


@pytest.mark.parametrize(
    ("name", "file", "count"),
    [
        ("aime24", "aime24/test.jsonl", 30),
        ("aime25", "aime25/test.jsonl", 30),
        ("math500", "math500/test.jsonl", 500),
        ("olympiadbench", "olympiadbench/test.jsonl", 675),
        ("gsm8k", "gsm8k/test.jsonl", 1319),
        ("humaneval", "humaneval/HumanEval.jsonl", 164),
        ("coophumaneval", "coophumaneval/test.jsonl", 82),
        ("mbpp", "mbpp/mbpp.jsonl", 500),
        ("code-contests", "code_contests/test.jsonl", 114),  # of 165; the others hide no test
        ("scitldr", "scitldr/test.jsonl", 618),
    ],
)
def test_the_public_test_sets_are_whole(name: str, file: str, count: int) -> None:
    rows(file)  # skips where the folder is not at hand
    records = load(name, "test", str(FOLDER))
    assert len(records) == count
    assert len({record.id for record in records}) == count


def test_files_beside_each_other_are_of_the_set_that_is_named_alone(tmp_path: Path) -> None:
    """Mistake: train.jsonl and test.jsonl of one set are taken for every other set's, and all of it leaks or is of
    another shape."""
    for split, questions in (("train", ("One?", "Two?")), ("test", ("Three?",))):
        lines = [json.dumps({"question": text, "answer": "It is so. #### 3"}) for text in questions]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    result = examine("gsm8k", str(tmp_path))
    assert result.leaks == {"gsm8k": 0}
    assert "math500" in result.unseen
    (tmp_path / "math500").mkdir()
    problem = {"problem": "One?", "answer": "3", "unique_id": "1", "subject": "s", "level": 1, "solution": ""}
    (tmp_path / "math500" / "test.jsonl").write_text(json.dumps(problem))
    assert examine("gsm8k", str(tmp_path)).leaks == {"gsm8k": 0, "math500": 1}
