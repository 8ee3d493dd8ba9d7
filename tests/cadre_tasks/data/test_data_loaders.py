"""Every loader on rows in the hub's own format, and what happens to rows and sources that are not as expected."""

import json
import pickle
from pathlib import Path

import pytest

from cadre.errors import ConfigError, DataError
from cadre_tasks.data import SPECS, Article, CodingProblem, Problem, hub, load, public_sets, read
from cadre_tasks.data.examine import examine
from tests.cadre_tasks.data.invented import ROWS, folder

EXPECTED = {
    ("aime24", "test"): [Problem("60", ROWS["aime24"]["train"][0]["problem"], "14")],
    ("aime25", "test"): [Problem("0", ROWS["aime25"]["test"][0]["problem"], "16")],
    ("math500", "test"): [Problem("hens/1", ROWS["math500"]["test"][0]["problem"], "18")],
    ("olympiadbench", "test"): [
        Problem("1", "Find $x$ with $x^2 = 9$ and $x > 0$.", "$3$"),
        Problem("2", "A rope is cut.\nHow long is it?", "4.2", 0.1),
    ],
    ("gsm8k", "train"): [
        Problem("0", "Ann buys 3 pears and 3 plums. How many are they?", "6"),
        Problem("1", "Ann buys 600 pears and 600 plums. How many are they?", "1200"),
    ],
    ("math-train", "train"): [
        Problem("0", ROWS["math-train"]["train"][0]["problem"], "42"),
        Problem("1", ROWS["math-train"]["train"][1]["problem"], "44"),
    ],
    ("deepmath", "train"): [Problem("0", "What is $1+1$?", "2")],
    ("polaris", "train"): [Problem("0", ROWS["polaris"]["train"][0]["problem"], "62")],
    ("deepscaler", "train"): [Problem("0", ROWS["deepscaler"]["train"][0]["problem"], "64")],
    ("scitldr", "test"): [
        Article("rain", "", "We study rain. We find that it helps.", ("rain helps.", "On rain.")),
        Article("wind", "", "We study wind. We find that it helps.", ("wind helps.", "On wind.")),
    ],
    ("tldr", "test"): [
        Article(
            "0",
            "heron at my window",
            "A heron came to my window today and sang.\nIt stayed for an hour and then the heron flew off.",
            ("A heron sang.",),
        )
    ],
    ("arxiv", "test"): [Article("0", "", "We measure charges. It is small.")],
    ("stories", "train"): [Article("0", "[WP] A ship, number 1.", ROWS["stories"]["train"][0]["story"])],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    ("parser", "row", "answer"),
    [
        (public_sets.problem, {"problem": "p", "answer": ["5"]}, "5"),
        (public_sets.problem, {"problem": "p", "answer": 5}, "5"),
        (public_sets.problem, {"problem": "p", "answer": " "}, None),
        (public_sets.problem, {"problem": "p", "answer": []}, None),
        (public_sets.deepmath, {"question": "p", "final_answer": None}, None),
        (public_sets.gsm8k, {"question": "p", "answer": "So #### "}, None),
        (public_sets.olympiadbench, {"id": 1, "problem": "p", "answers": "12", "error": None, "context": None}, "12"),
        (
            public_sets.olympiadbench,
            {"id": 1, "problem": "p", "answers": ["1", "2"], "error": "", "context": ""},
            "1, 2",
        ),
        (public_sets.olympiadbench, {"id": 1, "problem": "p", "answers": None, "error": "", "context": ""}, None),
        (
            public_sets.olympiadbench,
            {"id": 1, "problem": "p", "answers": ["1, 2"], "error": "1e-1,1e-2", "context": ""},
            None,
        ),
    ],
)
def test_answers_in_other_shapes(parser, row, answer) -> None:
    """Mistake: an answer that nothing can equal, as "['5']", "None" or "1, 2" for 12."""
    read = parser(row, 0)
    assert (read and read.answer) == answer


def test_what_is_no_answer_or_question_is_told_with_its_line(tmp_path: Path) -> None:
    for row in ({"problem": "p", "answer": {"x": 1}}, {"problem": 5, "answer": "1"}):
        (tmp_path / "polaris").mkdir(exist_ok=True)
        (tmp_path / "polaris" / "train.jsonl").write_text(json.dumps(row) + "\n")
        read._load.cache_clear()
        with pytest.raises(DataError, match=r"train\.jsonl.*(a text or a number|strip|another shape)"):
            load("polaris", "train", str(tmp_path))


def test_every_data_set_has_a_fixture(home: str) -> None:
    assert set(ROWS) == set(SPECS)
    for name, spec in SPECS.items():
        for split in spec.splits:
            assert load(name, split, home), (name, split)


@pytest.mark.parametrize(("name", "split"), EXPECTED)
def test_problems_and_articles(home: str, name: str, split: str) -> None:
    assert list(load(name, split, home)) == EXPECTED[name, split]


def program(home: str, name: str, split: str = "test", position: int = 0) -> CodingProblem:
    record = load(name, split, home)[position]
    assert isinstance(record, CodingProblem)
    return record


def test_programs_with_test_code(home: str) -> None:
    twice = program(home, "humaneval")
    assert (twice.entry, twice.names, twice.starter) == ("twice", ("twice",), ROWS["humaneval"]["test"][0]["prompt"])
    assert twice.reference.endswith("return number + number\n")
    assert program(home, "coophumaneval").reference == ""
    rice = program(home, "mbpp")
    assert (rice.entry, rice.names, rice.tests.count("assert")) == ("add_rice", ("add_rice",), 2)
    assert rice.statement.endswith("assert add_rice([]) == ['rice']")


def test_what_is_asked_for_is_a_function_that_the_tests_call() -> None:
    """Classes that it is given stand before it in the reference."""
    reference = "class Pair:\n    pass\n\ndef other(): pass\n\ndef chain(pairs): pass"
    row = {"task_id": 601, "text": "T", "code": reference, "test_list": ["assert chain([Pair()]) == 3"]}
    mbpp = public_sets.mbpp(row, 0)
    assert (mbpp.entry, mbpp.names) == ("chain", ("chain", "Pair"))


def test_programs_with_cases(home: str) -> None:
    script = program(home, "apps", "train")
    assert (script.public, script.hidden) == ((("1 2\n", "3\n"),), (("4 4\n", "8\n"), ("-1 1\n", "0\n")))
    call, ends = program(home, "apps"), program(home, "apps", position=1)
    assert (call.entry, call.hidden) == ("total", ((([1, 2],), 3), (([],), 0)))
    assert ends.hidden == ((([1, 2, 3],), [1, 3]),)
    assert [task.id for task in load("apps", "train", home)] == ["apps-1"]  # the other has no tests
    contest = program(home, "code-contests")
    assert contest.public == (("1 2\n", "3\n"),)
    assert contest.hidden == (("5 5\n", "10\n"), ("9 1\n", "10\n"), ("0 4\n", "4\n"))
    assert contest.reference == "print(sum(map(int, input().split())))"


def test_livecodebench_without_unpickling(home: str) -> None:
    script, call = program(home, "livecodebench"), program(home, "livecodebench", position=1)
    assert (script.public, script.hidden) == ((("2\n", "4\n"),), (("5\n", "10\n"),))
    assert (call.entry, call.public, call.hidden) == (
        "ends",
        ((([1, 2], False), [1, 2]),),
        ((([4, 5, 6], True), [6, 4]),),
    )


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("text", ["[]", "é" * 300, "x" * 70_000])
def test_a_pickled_text_is_read_from_its_opcodes(text: str, protocol: int) -> None:
    assert public_sets.pickled_text(pickle.dumps(text, protocol)) == text


class TrapFile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this would have run",)


@pytest.mark.parametrize("value", [TrapFile(), ["[]"], ("[]", "[]"), b"[]", 3, None, {"a": "b"}])
def test_any_other_pickle_is_refused_and_nothing_runs(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="pickle of one text"):
        public_sets.pickled_text(pickle.dumps(value))
    assert capsys.readouterr().out == ""


def test_tables_of_numbers_have_them_back_as_keys() -> None:
    """JSON makes texts of keys; a table of which one key is none stays as it is."""
    tests = {"fn_name": "f", "inputs": [[{"1": "a"}], [{"1": 2, "b": 3}]], "outputs": [[{"-2": 5}], [{}]]}
    assert public_sets.call_cases(tests, "") == ((({1: "a"},), {-2: 5}), (({"1": 2, "b": 3},), {}))


@pytest.mark.parametrize(
    ("returned", "outputs", "values"),
    [
        ("", [[1], [2]], (1, 2)),
        (" -> int", [[1], [2]], (1, 2)),
        (" -> int", [1, 2], (1, 2)),
        (" -> List[int]", [[1], [2]], ([1], [2])),
        (" -> List[int]", [[[1]], [[]]], ([1], [])),
        (" -> List[List[int]]", [[[1, 2]], [[3]]], ([[1, 2]], [[3]])),
        (" -> list[list[int]]", [[[[1, 2]]]], ([[1, 2]],)),
        (" -> Optional[List[int]]", [[1], [2]], ([1], [2])),
        (" -> Tuple[int, int]", [[1, 2], [3, 4]], ([1, 2], [3, 4])),
        (" -> list", [[1], [2]], ([1], [2])),
        (" -> Optional[int]", [[1], [2]], (1, 2)),
        (" -> ListNode", [[1], [2]], (1, 2)),
    ],
)
def test_a_typed_starter_says_whether_values_stand_in_a_list(returned: str, outputs: list, values: tuple) -> None:
    """Mistake: `[1]` of a function that returns lists is taken for 1, and right programs fail."""
    tests = {"inputs": [[0]] * len(outputs), "outputs": outputs}
    cases = public_sets.call_cases(tests, f"class Solution:\n    def f(self, n: List[int]){returned}:\n        ")
    assert tuple(value for _, value in cases) == values


def test_a_statement_shows_a_case_only_as_an_example() -> None:
    statement = "The 1 and the 2.\n\nInput\n\n1 2\n\nOutput\n\n3\n"
    shown, hidden = public_sets.split_shown([("1 2\n", "3\n"), ("1\n", "2\n")], statement)
    assert (shown, hidden) == ((("1 2\n", "3\n"),), (("1\n", "2\n"),))


def test_the_problem_whose_tests_are_all_shown_is_left_out() -> None:
    row = {"id": "c", "problem": "Input\n1\nOutput\n2\n", "tests": {"inputs": ["1\n"], "outputs": ["2\n"]}}
    assert public_sets.code_contests(row, 0) is None


@pytest.mark.parametrize("field", ["input_file", "output_file"])
def test_a_problem_with_files_in_place_of_stdin_is_left_out(field: str) -> None:
    """Mistake: no program that does what the statement says can pass."""
    row = {**ROWS["code-contests"]["train"][0], "input_file": "", "output_file": ""}
    assert public_sets.code_contests(row, 0) is not None
    assert public_sets.code_contests({**row, field: "x.txt"}, 0) is None


def test_rows_that_nothing_can_be_judged_by_are_left_out(tmp_path: Path) -> None:
    """One whose only case is shown, one with a number of 5,000 digits, and a LiveCodeBench problem without hidden
    tests; a text of 5,000 digits is only a text."""
    row = {**ROWS["apps"]["train"][0], "starter_code": ""}
    shown = {**row, "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})}
    number, digits = "7" * 5_000, json.dumps({"inputs": ["7" * 5_000], "outputs": ["1"]})
    long = {**row, "input_output": f'{{"fn_name": "f", "inputs": [[{number}]], "outputs": [[1]]}}'}
    (tmp_path / "apps").mkdir()
    converted = {name: value for name, value in row.items() if name != "id"} | {"problem_id": 9, "input_output": digits}
    rows = [row, shown, long, converted]
    (tmp_path / "apps" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [task.id for task in load("apps", "train", str(tmp_path))] == ["apps-1", "apps-9"]
    assert public_sets.livecodebench({**ROWS["livecodebench"]["test"][0], "private_test_cases": "[]"}, 0) is None


def written(path: Path, *numbers: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"problem": f"{n}?", "answer": str(n), "id": n}) + "\n" for n in numbers))


@pytest.mark.parametrize("ends", [("", "", ""), ("-16503b0c26ed00c6", "-a1", "-0f")])
def test_all_files_of_a_split_are_read(ends: tuple[str, str, str], tmp_path: Path) -> None:
    """The series has the hashes that the hub once gave to its files too."""
    for number, end in enumerate(ends):
        written(tmp_path / "polaris" / f"train-0000{number}-of-00003{end}.jsonl", 2 * number, 2 * number + 1)
    (tmp_path / "polaris" / "train-00000-of-00003.parquet").write_bytes(b"")  # the same in another form
    assert [task.id for task in load("polaris", "train", str(tmp_path))] == list("012345")
    for name, row in zip(("test.jsonl", "test2.jsonl"), ROWS["livecodebench"]["test"], strict=True):
        (tmp_path / "livecodebench").mkdir(exist_ok=True)
        (tmp_path / "livecodebench" / name).write_text(json.dumps(row))
    assert [task.id for task in load("livecodebench", "test", str(tmp_path))] == ["abc900_a", "9000"]
    (tmp_path / "polaris" / f"train-00001-of-00003{ends[1]}.jsonl").unlink()
    with pytest.raises(DataError, match=r"has 2 of 3 files of train; .* train-00001-of-00003.jsonl is missing"):
        read.parse_rows("polaris", "train", str(tmp_path))


BAD = {
    "unknown set": (("math5000", "test"), "Did you mean math500"),
    "unknown split": (("aime24", "train"), "no train split"),
}


@pytest.mark.parametrize("case", BAD)
def test_unknown_names(case: str, home: str) -> None:
    (name, split), message = BAD[case]
    with pytest.raises(ConfigError, match=message):
        load(name, split, home)


def test_nothing_is_fetched_unless_the_hub_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requests: list[str] = []
    monkeypatch.setattr(hub, "fetch_split", lambda spec, split, revision: requests.append(spec.hub) or [])
    monkeypatch.delenv("CADRE_DATA", raising=False)
    for source in ("", str(tmp_path)):
        with pytest.raises(DataError, match="expected"):
            load("gsm8k", "test", source)
    assert requests == []
    with pytest.raises(DataError, match="holds no item"):
        load("gsm8k", "test", "hub")
    assert requests == ["openai/gsm8k"]


def test_a_hub_that_does_not_answer_is_one_paragraph(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("CADRE_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"could not be fetched: .* take the files of") as caught:
        load("aime25", "test", "hub")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["foo", "http://"])
def test_a_hub_with_no_address_is_one_paragraph(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("CADRE_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(DataError, match="could not be fetched"):
        load("aime25", "test", "hub")


def test_the_environment_names_a_folder(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADRE_DATA", home)
    assert load("aime24", "test")[0].id == "60"


@pytest.mark.parametrize("row", [{"problem": "no answer"}, {"question": "q", "answer": "no mark"}, {}])
def test_a_row_of_another_shape_is_named(row: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    good = ROWS["gsm8k"]["test"][0]
    (tmp_path / "gsm8k" / "test.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"test\.jsonl, line 2 has another shape than openai/gsm8k"):
        load("gsm8k", "test", str(tmp_path))


def test_an_answer_without_its_mark_is_named() -> None:
    with pytest.raises(ValueError, match=r"an answer behind #### was expected; got 'It is 4\.'"):
        public_sets.gsm8k({"question": "2 + 2?", "answer": "It is 4."}, 0)


def test_files_by_other_names(tmp_path: Path) -> None:
    """A set that is one file, an abbreviated file of a split, separators inside a line, the set's own folder."""
    (tmp_path / "mbpp").mkdir()
    rows = ROWS["mbpp"]["train"] + ROWS["mbpp"]["test"]
    rows[0] = {**rows[0], "text": "One line\u2028of text"}
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "mbpp" / "mbpp.jsonl").write_text(text, encoding="utf-8")
    assert [task.id for task in load("mbpp", "train", str(tmp_path))] == ["mbpp-601", "mbpp-602"]
    assert [task.id for task in load("mbpp", "test", str(tmp_path))] == ["mbpp-11", "mbpp-12"]
    (tmp_path / "train_first2.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS["gsm8k"]["train"]))
    assert len(load("gsm8k", "train", str(tmp_path))) == 2


def test_a_problem_with_an_empty_answer_is_left_out() -> None:
    row = {"problem": "What is $n$?", "solution": "It is $\\boxed{}$."}
    assert public_sets.math_train(row, 0) is None
    assert public_sets.math_train({**row, "answer": ""}, 0) is None
    assert public_sets.problem({**row, "answer": None}, 0) is None
    assert public_sets.problem({**row, "answer": 0}, 0) == Problem("0", "What is $n$?", "0")
    assert public_sets.math_train({**row, "answer": "7"}, 3) == Problem("3", "What is $n$?", "7")


def test_a_split_of_which_a_file_is_missing_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    row = json.dumps({"question": "1 + 1?", "answer": "2\n#### 2"})
    for name in ("test", "train-00000-of-00002"):
        (tmp_path / "gsm8k" / f"{name}.jsonl").write_text(row + "\n")
    with pytest.raises(DataError, match="1 of 2 files of train"):
        examine("gsm8k", str(tmp_path))
