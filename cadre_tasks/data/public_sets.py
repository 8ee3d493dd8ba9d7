"""The public data sets: where the hub keeps each, how many rows a split has, and how a row becomes a record.

A parser takes a row and its index in the split, reads the fields of its set, and fails on a row of another shape. It
returns None for a row by which no answer could be judged. Rows are data only: LiveCodeBench's pickled tests are read
without unpickling. The table `SPECS` is at the end.
"""

from __future__ import annotations

import ast
import base64
import json
import math
import pickletools
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cadre.file_limits import size_of
from cadre_tasks.data.records import Article, CodingProblem, Kind, Problem, Record

Row = Mapping[str, Any]
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# A brace, or a command of one sign: in `\{` the brace is a sign of its own, as in a set or `\left\{`.
BRACE = re.compile(r"[{}]|\\.", re.DOTALL)
# Bytes of the private tests of one problem, once decompressed: a small file may hold very much.
MAX_TEST_BYTES = 1 << 30
# The lists around the type that a function returns.
RETURNED_LISTS = re.compile(
    r"->\s*['\"]?(?:(?:typing\.)?Optional\[)?((?:(?:typing\.)?(?:List|Tuple)\b\[?)+)", re.IGNORECASE
)
PYTHON3 = 3  # among the languages that CodeContests numbers
MBPP_SPLITS = {"train": range(601, 975), "test": range(11, 511), "validation": range(511, 601)}


class TooLongError(Exception):
    """A row with a number of more digits than Python reads (4,300 by default), by which nothing can be judged."""


# Helpers of the parsers


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raises TooLongError for a number that is too long, as in some rows of APPS."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise TooLongError from None


def check_list(value: Any) -> list[Any]:
    """Return a list. Raises ValueError for anything else: every letter of a text would be taken for an item."""
    if not isinstance(value, list):
        raise ValueError(f"a list was expected; got {repr(value)[:80]}")
    return value


def last_boxed(text: str) -> str | None:
    """Return the content of the last `\\boxed{...}` of a text, braces balanced; None if there is none.

    >>> last_boxed("so \\\\boxed{1} or rather \\\\boxed{\\\\frac{1}{2}}.")
    '\\\\frac{1}{2}'
    """
    content = None
    for box in reversed(list(BOX.finditer(text))):
        depth, content = 1, None
        for brace in BRACE.finditer(text, box.end()):
            depth += (brace[0] == "{") - (brace[0] == "}")
            if depth == 0:
                content = text[box.end() : brace.start()].strip()
                break
        if content != "":  # an empty box is passed over
            break
    return content


def make_problem(name: str, question: str, *answers: Any, tolerance: float = 0.0) -> Problem | None:
    """Return a problem with these right answers, each a text, a number or a list of one; None if one is missing. Raises
    ValueError for anything else."""
    values = [answer[0] if isinstance(answer, list) and len(answer) == 1 else answer for answer in answers]
    if any(value is None or not str(value).strip() or value == [] for value in values):
        return None
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"an answer that is a text or a number was expected; got {str(value)[:80]!r}")
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        raise ValueError(f"an answer that is a finite number was expected; got {values}")
    return Problem(name, question, ", ".join(map(str, values)), tolerance)


# Mathematics


def problem(row: Row, index: int) -> Problem | None:
    """Most sets of mathematics: `problem` and `answer`. None without an answer. The identifier has many names."""
    name = next((row[key] for key in ("id", "unique_id", "ID") if key in row), index)
    return make_problem(str(name), row["problem"], row["answer"])


def deepmath(row: Row, index: int) -> Problem | None:
    """DeepMath: `question` and `final_answer` on the hub, `problem` and `answer` as trainers repack them."""
    if "final_answer" in row:
        return make_problem(str(index), row["question"], row["final_answer"])
    return problem(row, index)


def math_train(row: Row, index: int) -> Problem | None:
    """MATH: the answer is the last box of the worked solution. None if there is no box, or an empty one."""
    if "answer" in row:
        return problem(row, index)
    answer = last_boxed(row["solution"])
    return make_problem(str(index), row["problem"], answer)


def gsm8k(row: Row, index: int) -> Problem | None:
    """GSM8K: the answer follows the last `####`; its thousands have commas."""
    _, mark, answer = row["answer"].rpartition("####")
    if not mark:
        raise ValueError(f"an answer behind #### was expected; got {row['answer'][-80:]!r}")
    return make_problem(str(index), row["question"], answer.strip().replace(",", ""))


def olympiadbench(row: Row, index: int) -> Problem | None:
    """OlympiadBench: `final_answer` on the hub, `answers` elsewhere, lists of one. `error` is an absolute tolerance."""
    question = row["question"] if "question" in row else row["problem"]
    answers = row["final_answer"] if "final_answer" in row else row["answers"]
    tolerances = {float(part) for part in str(row["error"] or 0).split(",")}
    if len(tolerances) > 1:  # one for each of several answers
        return None
    context = f"{row['context']}\n" if row["context"] else ""
    values = answers if isinstance(answers, list) and answers else [answers]
    return make_problem(str(row["id"]), context + question, *values, tolerance=tolerances.pop())


# Programming


def humaneval(row: Row, index: int) -> CodingProblem:
    """HumanEval, and CoopHumanEval, which has no solutions. The prompt defines helpers that the tests use."""
    entry, prompt = row["entry_point"], row["prompt"]
    solution = prompt + row["canonical_solution"] if "canonical_solution" in row else ""
    return CodingProblem(row["task_id"], "", entry, prompt, (), (), row["test"], prompt, (entry,), solution)


def mbpp(row: Row, index: int) -> CodingProblem:
    """MBPP: the first test is shown, as only the tests say what the function is called."""
    setup, tests = row.get("test_setup_code", ""), check_list(row["test_list"])
    names = names_tested(row["code"], f"{setup}\n" + "\n".join(tests))
    statement = f"{row['text']}\nIt must pass this test: {tests[0]}"
    return CodingProblem(
        f"mbpp-{row['task_id']}", statement, names[0], "", (), (), "\n".join(tests), setup, names, row["code"]
    )


def names_tested(reference: str, tests: str) -> tuple[str, ...]:
    """Return the names that the reference defines and the tests use, which every program has to define. Functions come
    first: one of them is asked for, and classes are for its arguments."""
    used_names = {node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)}
    body = ast.parse(reference).body
    defined = [node.name for kind in (ast.FunctionDef, ast.ClassDef) for node in body if isinstance(node, kind)]
    return tuple(name for name in dict.fromkeys(defined) if name in used_names)


def apps(row: Row, index: int) -> CodingProblem | None:
    """APPS: tests and solutions are JSON in text. None for rows without tests that the statement does not show. Its
    JSONL has `id`, its conversion to Parquet `problem_id`."""
    if not row["input_output"]:
        return None
    tests = parse_json(row["input_output"])
    solutions = json.loads(row["solutions"]) if row["solutions"] else []
    number, entry = row["id"] if "id" in row else row["problem_id"], tests.get("fn_name", "")
    cases = call_cases(tests, row["starter_code"] or "") if entry else script_cases(tests)
    shown, hidden = split_shown(cases, row["question"]) if not entry else ((), cases)
    if not hidden:
        return None
    reference = solutions[0] if solutions else ""
    return CodingProblem(
        f"apps-{number}", row["question"], entry, row["starter_code"], shown, hidden, reference=reference
    )


def call_cases(tests: Row, starter: str) -> tuple[tuple[Any, Any], ...]:
    """Return (arguments, value) pairs of calls as APPS writes them: a list of arguments, the value in a list of one.

    Where the starter has types, as those of LeetCode do, values stand without a list around them: `[1]` is a value of
    `-> List[int]`, and 1 in a list where no type says so.
    """
    outputs = check_list(tests["outputs"])
    typed = RETURNED_LISTS.search(starter)
    depth = len(re.findall("list|tuple", typed[1], re.IGNORECASE)) if typed else 0
    is_wrapped = all(isinstance(value, list) and len(value) == 1 for value in outputs)
    is_wrapped = is_wrapped and max(map(list_depth, outputs), default=0) > depth
    values = [value[0] for value in outputs] if is_wrapped else outputs
    calls = zip(check_list(tests["inputs"]), values, strict=True)
    return tuple(
        (tuple(map(with_integer_keys, check_list(arguments))), with_integer_keys(value)) for arguments, value in calls
    )


def list_depth(value: Any) -> int:
    """Return how deep lists are nested in a value, 0 for no list."""
    return 1 + max(map(list_depth, value), default=0) if isinstance(value, list) else 0


def with_integer_keys(value: Any) -> Any:
    """Return a table whose keys are all texts of whole numbers with these as keys, as JSON has no others."""
    if isinstance(value, dict) and value and all(re.fullmatch(r"-?\d{1,18}", key) for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def script_cases(tests: Row) -> tuple[tuple[str, str], ...]:
    """Return (stdin, stdout) pairs; some rows of APPS have lists of lines."""

    def join_lines(text: str | list[Any]) -> str:
        return text if isinstance(text, str) else "\n".join(map(str, check_list(text)))

    inputs, outputs = check_list(tests["inputs"]), check_list(tests["outputs"])
    return tuple(zip(map(join_lines, inputs), map(join_lines, outputs), strict=True))


def split_shown(cases: Iterable[tuple[str, str]], statement: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return the cases whose input the statement shows as an example ("Input ... Output"), and the others.

    Outputs are not compared: the statement may show one in another form, or another right one.
    """
    words = " ".join(re.sub("-{3,}|Sample|Example", " ", statement).split())
    labelled = [(case, f"Input {' '.join(case[0].split())} Output " in words) for case in cases]
    return (
        tuple(case for case, is_shown in labelled if is_shown),
        tuple(case for case, is_shown in labelled if not is_shown),
    )


def code_contests(row: Row, index: int) -> CodingProblem | None:
    """CodeContests as the hub has it, or with all its tests in one list. None without hidden tests, and where files
    take the place of stdin or stdout."""
    if "tests" in row:
        public, hidden = split_shown(script_cases(row["tests"]), row["problem"])
        problem = CodingProblem(row["id"], row["problem"], "", "", public, hidden, comparison="contests")
        return problem if hidden else None
    if row.get("input_file") or row.get("output_file"):
        return None
    public, private, generated = (
        tuple(zip(check_list(row[key]["input"]), check_list(row[key]["output"]), strict=True))
        for key in ("public_tests", "private_tests", "generated_tests")
    )
    hidden = private + generated
    if not hidden:
        return None
    answers = zip(row["solutions"]["language"], row["solutions"]["solution"], strict=True)
    reference = next((solution for language, solution in answers if language == PYTHON3), "")
    return CodingProblem(
        row["name"], row["description"], "", "", public, hidden, reference=reference, comparison="contests"
    )


def livecodebench(row: Row, index: int) -> CodingProblem | None:
    """LiveCodeBench: JSON in text; private tests are compressed. Calls have one JSON value a line. None without hidden
    tests."""
    public, private = json.loads(row["public_test_cases"]), private_cases(row["private_test_cases"])
    if not private:
        return None
    entry = json.loads(row["metadata"]).get("func_name", "") if row["metadata"] else ""

    def parse_case(case: Row) -> tuple[Any, Any]:
        if not entry:
            return case["input"], case["output"]
        arguments = tuple(with_integer_keys(parse_json(line)) for line in case["input"].split("\n") if line)
        return arguments, with_integer_keys(parse_json(case["output"]))

    return CodingProblem(
        row["question_id"],
        row["question_content"],
        entry,
        row["starter_code"],
        tuple(map(parse_case, public)),
        tuple(map(parse_case, private)),
        comparison="lines",
    )


def private_cases(text: str) -> list[Row]:
    """Return tests given as JSON, or as base64 of zlib of a pickle of JSON. Raises ValueError for any other pickle."""
    if text.lstrip().startswith("["):
        return json.loads(text)
    decompressor = zlib.decompressobj()
    tests = decompressor.decompress(base64.b64decode(text), MAX_TEST_BYTES)
    if decompressor.unconsumed_tail:
        raise ValueError(f"private tests of at most {size_of(MAX_TEST_BYTES)} were expected")
    return json.loads(pickled_text(tests))


def pickled_text(data: bytes) -> str:
    """Return the text that a pickle of one text holds, read from its opcodes: nothing is ever called. Raises ValueError
    for a pickle of anything else."""
    framing = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}
    opcodes = [(code.name, value) for code, value, _ in pickletools.genops(data) if code.name not in framing]
    if len(opcodes) != 1 or not isinstance(opcodes[0][1], str):
        raise ValueError(f"a pickle of one text was expected; got the opcodes {[name for name, _ in opcodes][:5]}")
    return opcodes[0][1]


# Writing


def scitldr(row: Row, index: int) -> Article:
    """SciTLDR: sentences in `source` and `target` on the hub, whole texts in the authors' own files."""
    if "abstract" in row:
        return Article(row["paper_id"], row["title"], row["abstract"], tuple(check_list(row["tldrs"])))
    return Article(row["paper_id"], "", " ".join(check_list(row["source"])), tuple(check_list(row["target"])))


def tldr(row: Row, index: int) -> Article:
    """TL;DR: a Reddit post with its title in the prompt, and its author's own summary."""
    post = re.search(r"TITLE: *(?P<title>.*?)\s*\nPOST: *(?P<text>.*?)\s*TL;DR:\s*\Z", row["prompt"], re.DOTALL)
    if post is None:
        raise ValueError(f"a prompt with TITLE:, POST: and TL;DR: was expected; got {row['prompt'][:80]!r}")
    return Article(str(index), post["title"], post["text"], (row["completion"].strip(),))


def arxiv(row: Row, index: int) -> Article:
    """arXiv abstracts to expand; there is no reference."""
    text = row["abstract_text"]
    sentences = text if isinstance(text, list) else [text]
    return Article(str(index), "", " ".join(re.sub("</?S>", "", sentence).strip() for sentence in sentences))


def story(row: Row, index: int) -> Article:
    """WritingPrompts: the prompt is the title, the story the text."""
    return Article(str(index), row["prompt"].strip(), row["story"].strip())


# The table


@dataclass(frozen=True)
class DatasetSpec:
    """One data set.

    hub, config   its name on the Hugging Face hub, and the configuration there, if it has several
    splits        our split: (the hub's split, the numbers of rows that published versions have; none if unknown)
    files         a pattern of its files in the repository, for paths that do not name the splits
    folders       names of a local folder of it, beside its own
    parse         makes a record of a row and its index
    belongs       for sets that are one file: tells if a row is in a split
    """

    kind: Kind
    hub: str
    splits: Mapping[str, tuple[str, tuple[int, ...]]]
    parse: Callable[[Row, int], Record | None]
    config: str = ""
    files: str = ""
    folders: tuple[str, ...] = ()
    belongs: Callable[[Row, str], bool] = lambda row, split: True


SPECS: dict[str, DatasetSpec] = {
    "aime24": DatasetSpec("problem", "HuggingFaceH4/aime_2024", {"test": ("train", (30,))}, problem),
    "aime25": DatasetSpec("problem", "math-ai/aime25", {"test": ("test", (30,))}, problem),
    "olympiadbench": DatasetSpec(
        "problem", "Hothan/OlympiadBench", {"test": ("train", (674, 675))}, olympiadbench, "OE_TO_maths_en_COMP"
    ),
    "math500": DatasetSpec("problem", "HuggingFaceH4/MATH-500", {"test": ("test", (500,))}, problem),
    "gsm8k": DatasetSpec(
        "problem", "openai/gsm8k", {"train": ("train", (7473,)), "test": ("test", (1319,))}, gsm8k, "main"
    ),
    "math-train": DatasetSpec(
        "problem",
        "DigitalLearningGmbH/MATH-lighteval",
        {"train": ("train", (7500,))},
        math_train,
        "data",  # beside it stands every subject by itself
        folders=("math_train",),
    ),
    "deepmath": DatasetSpec(
        "problem", "zwhe99/DeepMath-103K", {"train": ("train", (103_022, 103_110))}, deepmath, folders=("deepmath5k",)
    ),
    "polaris": DatasetSpec("problem", "POLARIS-Project/Polaris-Dataset-53K", {"train": ("train", (53_291,))}, problem),
    "deepscaler": DatasetSpec(
        "problem", "agentica-org/DeepScaleR-Preview-Dataset", {"train": ("train", (40_315,))}, problem
    ),
    "humaneval": DatasetSpec("program", "openai/openai_humaneval", {"test": ("test", (164,))}, humaneval),
    "coophumaneval": DatasetSpec("program", "OpenMLRL/CoopHumanEval", {"test": ("test", (82,))}, humaneval),
    "mbpp": DatasetSpec(
        "program",
        "google-research-datasets/mbpp",
        {"train": ("train", (374,)), "test": ("test", (500,))},
        mbpp,
        "full",
        # arXiv 2108.07732, section 2.1; tasks 1 to 10 are for few-shot prompts
        belongs=lambda row, split: row["task_id"] in MBPP_SPLITS[split],
    ),
    "apps": DatasetSpec("program", "codeparrot/apps", {"train": ("train", (5000,)), "test": ("test", (5000,))}, apps),
    "code-contests": DatasetSpec(
        "program",
        "deepmind/code_contests",
        {"train": ("train", (13_328,)), "test": ("test", (165,))},
        code_contests,
        folders=("code_contests",),
    ),
    "livecodebench": DatasetSpec(
        "program",
        "livecodebench/code_generation_lite",
        {"test": ("test", (400, 511, 612, 713, 880, 1055))},
        livecodebench,
        files="test*.jsonl",
    ),
    "scitldr": DatasetSpec(
        "article", "allenai/scitldr", {"train": ("train", (1992,)), "test": ("test", (618,))}, scitldr, "Abstract"
    ),
    "tldr": DatasetSpec("article", "trl-lib/tldr", {"train": ("train", (116_722,)), "test": ("test", (6_553,))}, tldr),
    "arxiv": DatasetSpec(
        "article", "OpenMLRL/arXiv_abstract", {"train": ("train", (140_313,)), "test": ("val", (5_383,))}, arxiv
    ),
    "stories": DatasetSpec(
        "article", "euclaise/writingprompts", {"train": ("train", (272_600,)), "test": ("test", (15_138,))}, story
    ),
}
