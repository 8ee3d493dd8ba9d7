"""Rewards of programs and unit tests that a model wrote."""

import asyncio

import pytest

from cadre.errors import SandboxUnavailable
from cadre_sandbox import pool
from cadre_sandbox.worker import Ending, Worker, WorkerDied
from cadre_tasks.code.judge import (
    Block,
    CallTests,
    StdioTests,
    Tests,
    UnitTests,
    all_tests,
    builds,
    extract_code,
    fenced,
    judge,
    ready,
)
from cadre_tasks.data.public_sets import humaneval
from cadre_tasks.data.records import CodingProblem
from tests.helpers.public_sets import rows

ADD = "def add(a, b):\n    return a + b"


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("Here:\n```python\nx = 1\n```\ndone", "x = 1\n"),
        ("```\nx = 1\n```\nbetter:\n```py\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1", "x = 1"),
        ("Of course:\n~~~py\nx = 1\ny = 2", "x = 1\ny = 2"),
        ("```\nx = 1", "x = 1"),
        ("```", ""),
        ("```python\nx = 1\n``", "x = 1\n"),
        ("```python\nx = `1", "x = `1"),
        ("- So:\n  ```python\n  if x:\n    y = 1", "if x:\n  y = 1"),
        ("```python\nx = 1\n```\nor\n```python\nx = ", "x = 1\n"),
        ("It prints\n```\n42\n```\nby\n```python\nx = 4", "x = 4"),
        ("```python\nx = 1```", "x = 1"),
        ("```json\n{", "```json\n{"),
        ("```python\nprint(42)\n```\nIt prints:\n```\n42\n```", "print(42)\n"),
        ("1. Like this:\n   ```python\n   if x:\n       y = 1\n   ```", "if x:\n    y = 1\n"),
        ("~~~python\nx = 1\n~~~", "x = 1\n"),
        ("````python\nx = 1  # in:\n```\n# y\n````", "x = 1  # in:\n```\n# y\n"),
        ('```python title="a.py"\nx = 1\n```', "x = 1\n"),
        ("```Python 3\nx = 1\n```", "x = 1\n"),
        ("```python3.11\nx = 1\n```", "x = 1\n"),
        ("```{python}\nx = 1\n```", "x = 1\n"),
        ("```python:main.py\nx = 1\n```", "x = 1\n"),
        ("```py\nx = 1\n```\n```pycon\n>>> x\n```", "x = 1\n"),
        ("```python\ndef f():\n    # so:\n    ```\n    f()\n```", "def f():\n    # so:\n    ```\n    f()\n"),
        ("Say ```x``` so:\n```x = 1```\n```python\nx = 2\n```", "x = 2\n"),
        ("x = 1", "x = 1"),
        ("```markdown\nhi\n```python\nx = 1\n```\n```", "x = 1\n"),
        ("<think>\n```python\nx = 0\n</think>\n```python\nx = 1\n```", "x = 1\n"),
        ("````python\nx = 1  # in:\n```python\n# y\n````", "x = 1  # in:\n```python\n# y\n"),
        ("```python\nx = 1\n``` That is all.", "x = 1\n"),
        ("```python\nx = 1\n```\nhere is\n```python\n```", "x = 1\n"),
        ("Answer: ```python\nx = 1```", "x = 1"),
        ("So ```python\nx = 0\n``` or, better, ```py\nx = 1\n```.", "x = 1\n"),
    ],
)
def test_extract_code(completion: str, program: str) -> None:
    assert extract_code(completion) == program


@pytest.mark.parametrize(
    ("program", "expected"),
    [("x = 1", True), ("x =", False), ("", False), ("  \n", False), ("(" * 5000, False), ("\x00", False), (ADD, True)],
)
def test_builds(program: str, expected: bool) -> None:
    assert asyncio.run(builds(program)) is expected


@pytest.mark.parametrize(
    "tests",
    [
        StdioTests((("1 2", "3"), ("5 5", "10"))),
        CallTests("add", (((1, 2), 3), (("a", "b"), "ab"))),
        UnitTests("assert add(1, 2) == 3\nassert add(0, 0) == 0"),
    ],
)
def test_each_kind_of_tests(tests: Tests) -> None:
    script = ADD + "\nif __name__ == '__main__': print(add(*map(int, input().split())))"
    right = asyncio.run(judge(script, tests))
    wrong = asyncio.run(judge(script.replace("a + b", "a - b"), tests))
    assert (right.ok, right.share) == (True, 1.0)
    assert not wrong.ok
    assert wrong.share < 1.0


@pytest.mark.parametrize(
    "program",
    [
        "c = Counter(input().split()); print(c['1'])",
        "def f(n): return 1 + f(n - 1) if n else 0\nprint(f(3000) - 2998)",
    ],
)
def test_a_script_has_the_imports_and_the_depth_of_usual_judges(program: str) -> None:
    verdict = asyncio.run(judge(program, StdioTests((("1 2 1", "2"),))))
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    ("name", "program", "right"),
    [
        ("gcd", "pass", False),
        ("gcd", "from math import gcd", True),
        ("gcd", "def gcd(a, b): return a if not b else gcd(b, a % b)", True),
        ("gcd", "class Solution:\n    def gcd(self, a, b): return math.gcd(a, b)", True),
        ("gcd", "# nothing from __future__ is needed\ndef gcd(a: int, b: List[int]): return math.gcd(a, b)", True),
        ("gcd", "from __future__ import annotations\nimport math\ndef gcd(a, b): return math.gcd(a, b)", True),
    ],
)
def test_only_what_a_program_defines_is_called(name: str, program: str, right: bool) -> None:
    """Mistake: what graders have in scope solves the task, or hides the method that does."""
    assert asyncio.run(judge(program, CallTests(name, (((12, 18), 6), ((7, 5), 1))))).ok is right


def test_a_program_stands_behind_what_its_starter_defines() -> None:
    """Imports and helpers of the starter are in scope, its function without a body is not; what is imported from
    `__future__` goes first."""
    starter = "from typing import List\n\ndef helper(x): return x + 1\n\ndef f(x: List) -> int:\n    'Add.'\n"
    problem = CodingProblem("p", "", "f", starter, tests="assert f(1) == 2", names=("f",))
    program = "from __future__ import annotations\ndef f(x: List) -> int: return helper(x)"
    assert asyncio.run(judge(ready(problem, program), all_tests(problem))).ok
    for line in ("from __future__ import annotations", "from __future__ import (\n    annotations,\n)"):
        called = CallTests("g", (((2,), 2.0),))
        assert asyncio.run(judge(f"{line}\ndef g(x: Any) -> Any: return sqrt(x * x)", called)).ok
    missing = asyncio.run(judge(ready(problem, "g = 1"), UnitTests("assert f(1) is None", names=("f",))))
    assert missing.passed == 0


def test_solutions_of_humaneval_need_not_say_the_imports_again() -> None:
    written = [humaneval(row, 0) for row in rows("humaneval/HumanEval.jsonl")[::4]]
    cut = [item.reference[item.reference.index(f"def {item.entry}(") :] for item in written]
    judged = [asyncio.run(judge(ready(item, part), all_tests(item))) for item, part in zip(written, cut, strict=True)]
    assert all(verdict.ok for verdict in judged)
    assert not all(asyncio.run(judge(part, all_tests(item))).ok for item, part in zip(written, cut, strict=True))


def test_an_unavailable_sandbox_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_worker(*_: object) -> list[Ending]:
        raise WorkerDied("out of processes")

    monkeypatch.setattr(Worker, "run", no_worker)
    monkeypatch.setattr(pool, "PAUSES_S", (0.0, 0.0, 0.0))
    with pytest.raises(SandboxUnavailable, match=r"could not be run.*out of processes"):
        asyncio.run(judge(ADD, UnitTests("assert add(1, 2) == 3")))


def test_rows_of_coophumaneval_load() -> None:
    row = rows("coophumaneval/test.jsonl")[0]
    right = "def x_or_y(n, x, y):\n    return x if n > 1 and all(n % i for i in range(2, n)) else y"
    assert asyncio.run(judge(right, all_tests(humaneval(row, 0)))).ok
    assert not asyncio.run(judge("def x_or_y(n, x, y): return x", all_tests(humaneval(row, 0)))).ok


def test_blocks_are_found_among_any_line_ends() -> None:
    """Lines end with a line feed alone, as in the fences that models write: the others are part of a line."""
    text = "\r```\nno\n```python \r\nx = 1\u2028y\r\n```\n\n```\n```"
    assert fenced(text) == [Block("python", "x = 1\u2028y\r\n", 2, 4), Block("", "", 6, 7)]


def test_syntax_errors_count_the_lines_of_the_program_alone() -> None:
    for program in ("x = 1\ndef f(a)\n    return a\n", "from __future__ import annotations\ndef f(a)\n    return a\n"):
        verdict = asyncio.run(judge(program, CallTests("f", (((1,), 1),))))
        assert "(<program>, line 2)" in verdict.failures[0]
