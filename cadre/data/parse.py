"""From a row of a data set, as JSON or the hub has it, to a record; None for a row that no program could be judged by.

A parser reads the fields that its set has and fails on a row of another shape. Data sets are trusted to be data only:
LiveCodeBench's pickled tests are read without unpickling.
"""

from __future__ import annotations

import ast
import base64
import json
import math
import pickletools
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from cadre.data.boxed import last_boxed
from cadre.data.records import Article, Problem, Program
from cadre.file_limits import size_of

Row = Mapping[str, Any]
# Bytes of the private tests of one problem, once unpacked: few bytes may stand for very many.
MOST_TESTS = 1 << 30
PYTHON3 = 3  # among the languages that CodeContests numbers


class TooLongError(Exception):
    """A row with a number of more digits than Python reads (4,300 unless told), by which nothing can be judged."""


def loaded(text: str) -> Any:
    """JSON. Raises TooLongError for numbers as some rows of APPS have them."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise TooLongError from None


def listed(value: Any) -> list[Any]:
    """A list. Raises ValueError for anything else: of a text every letter would be taken for an item."""
    if not isinstance(value, list):
        raise ValueError(f"a list was expected; got {repr(value)[:80]}")
    return value


def asked(name: str, question: str, *answers: Any, tolerance: float = 0.0) -> Problem | None:
    """A problem with these right answers, each a text, a number or a list of one; None where one is missing. Raises
    ValueError for anything else."""
    said = [answer[0] if isinstance(answer, list) and len(answer) == 1 else answer for answer in answers]
    if any(answer is None or not str(answer).strip() or answer == [] for answer in said):
        return None
    if unlike := [answer for answer in said if isinstance(answer, bool) or not isinstance(answer, str | int | float)]:
        raise ValueError(f"an answer that is a text or a number was expected; got {str(unlike[0])[:80]!r}")
    if any(isinstance(answer, float) and not math.isfinite(answer) for answer in said):
        raise ValueError(f"an answer that is a finite number was expected; got {said}")
    return Problem(name, question, ", ".join(map(str, said)), tolerance)


def problem(row: Row, index: int) -> Problem | None:
    """`problem` and `answer`, as most sets of mathematics have them; None without an answer. The identifier goes by
    many names."""
    name = next((row[key] for key in ("id", "unique_id", "ID") if key in row), index)
    return asked(str(name), row["problem"], row["answer"])


def deepmath(row: Row, index: int) -> Problem | None:
    """The hub's `question` and `final_answer`, or `problem` and `answer` as trainers repack them."""
    if "final_answer" in row:
        return asked(str(index), row["question"], row["final_answer"])
    return problem(row, index)


def math_train(row: Row, index: int) -> Problem | None:
    """MATH: the answer is what the worked solution boxes last. None where it boxes nothing, or an empty text."""
    if "answer" in row:
        return problem(row, index)
    answer = last_boxed(row["solution"])
    return asked(str(index), row["problem"], answer)


def gsm8k(row: Row, index: int) -> Problem | None:
    """The answer follows the last `####`; its thousands have commas."""
    return asked(str(index), row["question"], row["answer"].rsplit("####", 1)[1].strip().replace(",", ""))


def olympiadbench(row: Row, index: int) -> Problem | None:
    """`final_answer` on the hub, `answers` elsewhere: a list of one. `error` is an absolute tolerance."""
    question = row["question"] if "question" in row else row["problem"]
    answers = row["final_answer"] if "final_answer" in row else row["answers"]
    tolerance = float(row["error"]) if row["error"] else 0.0
    context = f"{row['context']}\n" if row["context"] else ""
    each = answers if isinstance(answers, list) and answers else [answers]
    return asked(str(row["id"]), context + question, *each, tolerance=tolerance)


def humaneval(row: Row, index: int) -> Program:
    """HumanEval, and CoopHumanEval, which has no solutions. The prompt defines helpers that the tests use."""
    entry, prompt = row["entry_point"], row["prompt"]
    solution = prompt + row["canonical_solution"] if "canonical_solution" in row else ""
    return Program(row["task_id"], "", entry, prompt, (), (), row["test"], prompt, (entry,), solution)


def mbpp(row: Row, index: int) -> Program:
    """MBPP: the first test is shown, as only the tests say what the function is called."""
    setup, tests = row.get("test_setup_code", ""), listed(row["test_list"])
    names = names_tested(row["code"], f"{setup}\n" + "\n".join(tests))
    statement = f"{row['text']}\nIt must pass this test: {tests[0]}"
    return Program(
        f"mbpp-{row['task_id']}", statement, names[0], "", (), (), "\n".join(tests), setup, names, row["code"]
    )


def names_tested(reference: str, tests: str) -> tuple[str, ...]:
    """What the tests use of the reference: what they may use of a program too. Functions first, as one of them is what
    is asked for, and classes are what it is given."""
    used = {node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)}
    body = ast.parse(reference).body
    defined = [node.name for kind in (ast.FunctionDef, ast.ClassDef) for node in body if isinstance(node, kind)]
    return tuple(name for name in dict.fromkeys(defined) if name in used)


def apps(row: Row, index: int) -> Program | None:
    """APPS: tests and solutions are JSON in text. None for rows without tests that the statement does not show.

    Its JSONL says `id`, what was converted to Parquet `problem_id`.
    """
    if not row["input_output"]:
        return None
    tests = loaded(row["input_output"])
    solutions = json.loads(row["solutions"]) if row["solutions"] else []
    number, entry = row["id"] if "id" in row else row["problem_id"], tests.get("fn_name", "")
    cases = called(tests) if entry else piped(tests)
    shown, hidden = split_shown(cases, row["question"]) if not entry else ((), cases)
    if not hidden:
        return None
    reference = solutions[0] if solutions else ""
    return Program(f"apps-{number}", row["question"], entry, row["starter_code"], shown, hidden, reference=reference)


def called(tests: Row) -> tuple[tuple[Any, Any], ...]:
    """Calls as APPS writes them: a list of arguments each, and the value in a list of one."""
    outputs = listed(tests["outputs"])
    wrapped = all(isinstance(value, list) and len(value) == 1 for value in outputs)
    values = [value[0] for value in outputs] if wrapped else outputs
    cases = zip(listed(tests["inputs"]), values, strict=True)
    return tuple((tuple(map(numbered, listed(arguments))), numbered(value)) for arguments, value in cases)


def numbered(value: Any) -> Any:
    """A table whose keys are all whole numbers with these as keys: JSON has made texts of them."""
    if isinstance(value, dict) and value and all(re.fullmatch(r"-?\d{1,18}", key) for key in value):
        return {int(key): inner for key, inner in value.items()}
    return value


def piped(tests: Row) -> tuple[tuple[str, str], ...]:
    """(stdin, stdout) pairs; some rows of APPS have lists of lines."""
    return tuple(zip(map(joined, listed(tests["inputs"])), map(joined, listed(tests["outputs"])), strict=True))


def joined(text: str | list[Any]) -> str:
    return text if isinstance(text, str) else "\n".join(map(str, listed(text)))


def split_shown(cases: Iterable[tuple[str, str]], statement: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The cases whose input the statement shows as an example ("Input ... Output"), and the others.

    Its output may be shown in another form, or be one of several right ones.
    """
    page = " ".join(re.sub("-{3,}|Sample|Example", " ", statement).split())
    shown = [(case, f"Input {' '.join(case[0].split())} Output " in page) for case in cases]
    return tuple(case for case, seen in shown if seen), tuple(case for case, seen in shown if not seen)


def code_contests(row: Row, index: int) -> Program | None:
    """CodeContests as the hub has it, or with all its tests in one list. None where nothing is hidden."""
    if "tests" in row:
        public, hidden = split_shown(piped(row["tests"]), row["problem"])
        return Program(row["id"], row["problem"], "", "", public, hidden) if hidden else None
    public, private, generated = (
        tuple(zip(listed(row[key]["input"]), listed(row[key]["output"]), strict=True))
        for key in ("public_tests", "private_tests", "generated_tests")
    )
    if not private + generated:
        return None
    answers = zip(row["solutions"]["language"], row["solutions"]["solution"], strict=True)
    reference = next((solution for language, solution in answers if language == PYTHON3), "")
    return Program(row["name"], row["description"], "", "", public, private + generated, reference=reference)


def livecodebench(row: Row, index: int) -> Program | None:
    """LiveCodeBench: JSON in text; private tests are compressed. Calls have one JSON value a line.

    None where nothing is hidden.
    """
    public, private = json.loads(row["public_test_cases"]), private_cases(row["private_test_cases"])
    if not private:
        return None
    entry = json.loads(row["metadata"]).get("func_name", "") if row["metadata"] else ""
    read = call_case if entry else text_case
    return Program(
        row["question_id"],
        row["question_content"],
        entry,
        row["starter_code"],
        tuple(map(read, public)),
        tuple(map(read, private)),
    )


def text_case(case: Row) -> tuple[str, str]:
    return case["input"], case["output"]


def call_case(case: Row) -> tuple[tuple[Any, ...], Any]:
    arguments = tuple(numbered(loaded(line)) for line in case["input"].split("\n") if line)
    return arguments, numbered(loaded(case["output"]))


def private_cases(text: str) -> list[Row]:
    """Tests as JSON, or as base64 of zlib of a pickle of JSON. Raises ValueError for any other pickle."""
    if text.lstrip().startswith("["):
        return json.loads(text)
    packed = zlib.decompressobj()
    tests = packed.decompress(base64.b64decode(text), MOST_TESTS)
    if packed.unconsumed_tail:
        raise ValueError(f"private tests of at most {size_of(MOST_TESTS)} were expected")
    return json.loads(pickled_text(tests))


def pickled_text(data: bytes) -> str:
    """The text that a pickle of one text holds, read from its opcodes: nothing is ever called.

    Raises ValueError for a pickle of anything else.
    """
    framing = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}
    read = [(code.name, value) for code, value, _ in pickletools.genops(data) if code.name not in framing]
    if len(read) != 1 or not isinstance(read[0][1], str):
        raise ValueError(f"a pickle of one text was expected; got the opcodes {[name for name, _ in read][:5]}")
    return read[0][1]


def scitldr(row: Row, index: int) -> Article:
    """SciTLDR: sentences in `source` and `target` on the hub, whole texts in the authors' own files."""
    if "abstract" in row:
        return Article(row["paper_id"], row["title"], row["abstract"], tuple(listed(row["tldrs"])))
    return Article(row["paper_id"], "", " ".join(listed(row["source"])), tuple(listed(row["target"])))


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
