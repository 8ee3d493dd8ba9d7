"""A few invented rows of every data set, in the hub's own format, and a folder that holds them."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any


def problem(position: int, **more: Any) -> dict[str, Any]:
    return {
        "problem": f"A farmer has {position} red hens and {position} brown ones. How many hens has the farmer?",
        **more,
    }


def packed(cases: list[dict[str, str]]) -> str:
    """Private tests as LiveCodeBench packs them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


TWICE = {
    "task_id": "HumanEval/900",
    "prompt": 'def twice(number):\n    """Return the number twice over.\n    >>> twice(3)\n    6\n    """\n',
    "entry_point": "twice",
    "canonical_solution": "    return number + number\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(0) == 0\n"
    "    assert candidate('ab') == 'abab'\n",
}
LAST = {
    "task_id": "HumanEval/901",
    "prompt": 'def last(items):\n    """Return the last of the items, None where there is none."""\n',
    "entry_point": "last",
    "canonical_solution": "    return items[-1] if items else None\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 2\n    assert candidate([]) is None\n",
}


def basic(number: int, word: str) -> dict[str, Any]:
    """A row of MBPP."""
    return {
        "task_id": number,
        "text": f"Write a function to add {word} to a list.",
        "code": f"def add_{word}(items):\n    return items + ['{word}']",
        "test_setup_code": "",
        "test_list": [f"assert add_{word}([]) == ['{word}']", f"assert add_{word}([1]) == [1, '{word}']"],
        "challenge_test_list": [],
    }


SUM = "Read two numbers and print their sum.\n\n-----Examples-----\nInput\n1 2\n\nOutput\n3\n"


def contest(name: str) -> dict[str, Any]:
    """A row of CodeContests, about `name`."""
    return {
        "name": name,
        "description": f"Add the {name}.\n\nExample\n\nInput\n\n1 2\n\nOutput\n\n3\n",
        "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
        "private_tests": {"input": ["5 5\n"], "output": ["10\n"]},
        "generated_tests": {"input": ["9 1\n", "0 4\n"], "output": ["10\n", "4\n"]},
        "solutions": {"language": [2, 3], "solution": ["int main(){}", "print(sum(map(int, input().split())))"]},
    }


def story(position: int) -> str:
    return " ".join(
        f"On day {day} the ship number {position} met the {day + position}th storm and went on." for day in range(9)
    )


ROWS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "aime24": {"train": [problem(7, id=60, solution="7 + 7", answer="14", url="-", year="2024")]},
    "aime25": {"test": [problem(8, id="0", answer="16")]},
    "math500": {"test": [problem(9, solution="-", answer="18", subject="Algebra", level=1, unique_id="hens/1")]},
    "olympiadbench": {
        "train": [
            {"id": 1, "question": "Find $x$ with $x^2 = 9$ and $x > 0$.", "final_answer": ["$3$"], "context": None,
             "is_multiple_answer": False, "unit": None, "answer_type": "Numerical", "error": None},
            {"id": 2, "question": "How long is it?", "final_answer": ["4.2"], "context": "A rope is cut.",
             "is_multiple_answer": False, "unit": "m", "answer_type": "Numerical", "error": "1e-1"},
        ]
    },
    "gsm8k": {
        "train": [{"question": f"Ann buys {n} pears and {n} plums. How many are they?", "answer": f"x\n#### {2 * n:,}"}
                  for n in (3, 600)],
        "test": [{"question": "Bo has 4 coins and finds 4. How many now?", "answer": "4+4=<<4+4=8>>8\n#### 8"}],
    },
    "math-train": {
        "train": [problem(n, level="Level 1", type="Algebra", solution=f"$\\boxed{{{2 * n}}}$") for n in (21, 22)]
        + [problem(23, level="Level 1", type="Algebra", solution="This one boxes nothing.")]
    },
    "deepmath": {"train": [{"question": "What is $1+1$?", "final_answer": "2", "difficulty": 1.0, "topic": "Sums"}]},
    "polaris": {"train": [problem(31, answer="62", difficulty="1/8")]},
    "deepscaler": {"train": [problem(32, answer="64", solution="-")]},
    "humaneval": {"test": [TWICE, LAST]},
    "coophumaneval": {"test": [{k: v for k, v in TWICE.items() if k != "canonical_solution"}]},
    "mbpp": {"train": [basic(601, "salt"), basic(602, "oil")], "test": [basic(11, "rice"), basic(12, "fish")]},
    "apps": {
        "train": [
            {"id": 1, "question": SUM, "starter_code": "", "difficulty": "introductory", "url": "-",
             "solutions": json.dumps(["print(sum(map(int, input().split())))"]),
             "input_output": json.dumps({"inputs": ["1 2\n", "4 4\n", "-1 1\n"], "outputs": ["3\n", "8\n", "0\n"]})},
            {"id": 2, "question": "No tests.", "starter_code": "", "difficulty": "introductory", "url": "-",
             "solutions": "", "input_output": ""},
        ],
        "test": [
            {"problem_id": 3, "question": "Add the items.", "difficulty": "interview", "url": "-",
             "starter_code": "", "solutions": json.dumps(["def total(items):\n    return sum(items)"]),
             "input_output": json.dumps({"fn_name": "total", "inputs": [[[1, 2]], [[]]], "outputs": [[3], [0]]})},
            {"problem_id": 4, "question": "Return both ends.", "difficulty": "interview", "url": "-",
             "starter_code": "class Solution:\n    def ends(self, items):\n", "solutions": "[]",
             "input_output": json.dumps({"fn_name": "ends", "inputs": [[[1, 2, 3]]], "outputs": [[1, 3]]})},
        ],
    },
    "code-contests": {"train": [contest("pears")], "test": [contest("plums"), contest("figs")]},
    "livecodebench": {
        "test": [
            {"question_title": "double", "question_content": "Print the double.", "platform": "atcoder",
             "question_id": "abc900_a", "starter_code": "", "difficulty": "easy", "metadata": "{}",
             "public_test_cases": json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
             "private_test_cases": packed([{"input": "5\n", "output": "10\n", "testtype": "stdin"}])},
            {"question_title": "ends", "question_content": "Return the first and the last.", "platform": "leetcode",
             "question_id": "9000", "starter_code": "class Solution:\n    def ends(self, items, turn):\n",
             "difficulty": "easy", "metadata": json.dumps({"func_name": "ends"}),
             "public_test_cases": json.dumps([{"input": "[1, 2]\nfalse", "output": "[1, 2]", "testtype": "f"}]),
             "private_test_cases": json.dumps(
                 [{"input": "[4, 5, 6]\ntrue", "output": "[6, 4]", "testtype": "functional"}])},
        ]
    },
    "scitldr": {
        split: [{"source": [f"We study {value}.", "We find that it helps."], "source_labels": [0, 1],
                 "rouge_scores": [0.1, 0.2], "paper_id": value, "target": [f"{value} helps.", f"On {value}."]}
                for value in values]
        for split, values in {"train": ("sleep", "salt"), "test": ("rain", "wind")}.items()
    },
    "tldr": {
        split: [{"prompt": f"SUBREDDIT: r/birds\n\nTITLE: {bird} at my window\n\nPOST: A {bird} came to my window "
                           f"today and sang.\nIt stayed for an hour and then the {bird} flew off.\n\nTL;DR:",
                 "completion": f" A {bird} sang."}]
        for split, bird in {"train": "robin", "test": "heron"}.items()
    },
    "arxiv": {
        split: [{"abstract_text": [f"<S> We measure {value}. </S>", "<S> It is small. </S>"]}]
        for split, value in {"train": "masses", "val": "charges"}.items()
    },
    "stories": {
        split: [{"prompt": f"[WP] A ship, number {number}.", "story": story(number)}]
        for split, number in {"train": 1, "test": 2}.items()
    },
}  # fmt: skip


def folder(home: Path) -> str:
    """A folder that holds all of it, a folder a data set; its name."""
    for name, splits in ROWS.items():
        (home / name).mkdir()
        for split, rows in splits.items():
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (home / name / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return str(home)
