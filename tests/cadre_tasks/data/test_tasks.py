"""Training and held-out problems: one set or two, public ones or your own."""

import json
from pathlib import Path

import pytest

from cadre.errors import ConfigError, DataError
from cadre_tasks.data.tasks import DataSelection, load_data_tasks
from tests.cadre_tasks.data.invented import folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory.mktemp("data"))


def write(file: Path, questions: list[str]) -> str:
    rows = [json.dumps({"question": question, "answer": "1"}) for question in questions]
    file.write_text("\n".join(rows))
    return str(file)


def asked(choice: DataSelection, split: str) -> list[str]:
    return [task.data["question"] for task in load_data_tasks(choice, split)]  # type: ignore[arg-type]


def test_a_file_for_each_split(tmp_path: Path) -> None:
    train, test = write(tmp_path / "a.jsonl", ["p", "q"]), write(tmp_path / "b.jsonl", ["r"])
    choice = DataSelection("problem", train, test)
    assert (asked(choice, "train"), asked(choice, "test")) == (["p", "q"], ["r"])


def test_one_s_own_training_beside_a_public_test_set(tmp_path: Path, home: str) -> None:
    choice = DataSelection("problem", write(tmp_path / "a.jsonl", ["p", "q"]), "math500", home)
    assert asked(choice, "train") == ["p", "q"]
    assert "red hens" in asked(choice, "test")[0]


def test_a_file_is_divided_by_the_hash_of_its_texts(tmp_path: Path) -> None:
    questions = [f"What is {n} times {n}?" for n in range(200)]
    file = write(tmp_path / "a.jsonl", questions)
    choice = DataSelection("problem", file, file)
    train, test = asked(choice, "train"), asked(choice, "test")
    assert sorted(train + test) == sorted(questions)
    assert 10 <= len(test) <= 32  # a tenth
    longer = write(tmp_path / "b.jsonl", [*reversed(questions), *(f"What is {n}?" for n in range(50))])
    again = DataSelection("problem", longer, longer)
    assert set(test) <= set(asked(again, "test"))  # what is held out stays so when the file grows
    assert set(train) <= set(asked(again, "train"))


def test_its_first_items_are_held_out_where_a_number_is_given(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", ["p", "q", "r"])
    choice = DataSelection("problem", file, file, held_out=2)
    assert (asked(choice, "test"), asked(choice, "train")) == (["p", "q"], ["r"])


def test_a_set_that_has_one_split_is_divided(home: str) -> None:
    choice = DataSelection("problem", "math-train", "math-train", home, held_out=1)
    assert (len(load_data_tasks(choice, "train")), len(load_data_tasks(choice, "test"))) == (1, 1)


def test_one_set_is_divided_as_ever_where_another_is_tested(tmp_path: Path, home: str) -> None:
    """The tested set changes nothing of the training set."""
    file = write(tmp_path / "a.jsonl", ["p", "q", "r"])
    choice = DataSelection("problem", file, "math500", home, held_out=2, same_set=True)
    assert asked(choice, "train") == ["r"]
    assert "red hens" in asked(choice, "test")[0]


def test_scripts_are_left_out_and_refused_where_a_function_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = {"statement": "Print 1.", "hidden": [["", "1\n"]]}
    functions = [{"statement": f"Return {n}.", "entry": "f", "hidden": [[[], n]]} for n in (1, 2)]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, [script, *functions])))
    choice = DataSelection("program", str(file), str(file), held_out=1, functions_only=True)
    (task,) = load_data_tasks(choice, "train")
    assert task.data["statement"] == "Return 2."
    assert "1 of 3 items" in caplog.text
    file = tmp_path / "b.jsonl"
    file.write_text("\n".join(json.dumps({**script, "statement": text}) for text in ("Print 1.", "Say 1.")))
    with pytest.raises(DataError, match=r"none of the 2 items of .* names the function"):
        load_data_tasks(
            DataSelection("program", str(file), str(file), held_out=1, leaks="refuse", functions_only=True), "train"
        )


def test_test_items_of_one_s_own_file_do_not_stay_in_training(tmp_path: Path) -> None:
    train, test = write(tmp_path / "a.jsonl", ["p", "Q!"]), write(tmp_path / "b.jsonl", ["q"])
    assert asked(DataSelection("problem", train, test), "train") == ["p"]
    with pytest.raises(DataError, match="1 of 2 training items"):
        load_data_tasks(DataSelection("problem", train, test, leaks="refuse"), "train")
    with pytest.raises(DataError, match=r"nothing of .* is left to train on"):
        load_data_tasks(DataSelection("problem", test, train), "train")


def test_a_split_that_would_be_empty_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", ["p", "q", "r"])
    for held_out, remaining in ((3, "leaves 0 for training"), (0.0001, "and 0 held out"), (7, "leaves 0 for training")):
        for split in ("train", "test"):
            with pytest.raises(DataError, match=remaining):
                load_data_tasks(DataSelection("problem", file, file, held_out=held_out), split)  # type: ignore[arg-type]


REFUSED = {
    "another kind": (
        DataSelection("problem", "mbpp", "math500"),
        r"settings\.train: got mbpp, a set of programs; .*aime24",
    ),
    "an unknown name": (DataSelection("problem", "maths500", "math500"), r"Did you mean math500\?"),
    "held out of two": (
        DataSelection("problem", "gsm8k", "gsm8k", held_out=0.1),
        r"settings\.held_out: got 0\.1, but gsm8k",
    ),
    "fields of no file": (
        DataSelection("problem", "gsm8k", "gsm8k", fields=(("answer", "gold"),)),
        r"settings\.fields: .*",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_fit_together(case: str, home: str) -> None:
    choice, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        load_data_tasks(choice, "train")


def test_what_was_read_belongs_to_the_source_that_was_meant(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADRE_DATA", home)
    assert len(load_data_tasks(DataSelection("article", "scitldr", "scitldr"), "train")) > 0
    monkeypatch.delenv("CADRE_DATA")
    with pytest.raises(DataError, match="got no source"):
        load_data_tasks(DataSelection("article", "scitldr", "scitldr"), "train")


def test_invented_items_where_there_are_no_data() -> None:
    for kind in ("problem", "program", "article"):
        choice = DataSelection(kind, "polaris", "math500", "example")  # type: ignore[arg-type]
        (train,), (test,) = (load_data_tasks(choice, split) for split in ("train", "test"))  # type: ignore[arg-type]
        assert train.data != test.data


def test_files_that_have_changed_are_read_again(tmp_path: Path) -> None:
    train, test = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    choice = DataSelection("problem", write(train, ["p"]), write(test, ["r"]))
    assert asked(choice, "train") == ["p"]
    initial_data_tasks = load_data_tasks(choice, "train")
    write(train, ["p", "q"])
    assert asked(choice, "train") == ["p", "q"]
    assert len(initial_data_tasks) == 1  # who has the tasks keeps them
    write(test, ["q", "r"])
    assert asked(choice, "train") == ["p"]  # what is tested is not trained on
    public = tmp_path / "math-train"
    public.mkdir()
    for questions in (["p", "q"], ["p", "q", "s"]):
        rows = [{"problem": text, "solution": "\\boxed{1}", "level": "1", "type": "t"} for text in questions]
        (public / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
        divided = DataSelection("problem", "math-train", "math-train", str(tmp_path), held_out=1)
        assert asked(divided, "train") == questions[1:]
