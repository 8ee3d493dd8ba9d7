"""What a program, or a set of unit tests, that a model wrote is worth, by the checkers of `cadre_sandbox`.

Nothing of a model is parsed or run in this process: a program is compiled, run and judged behind the sandbox.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cadre.data.records import CodingProblem
from cadre_sandbox.checkers import Verdict, check_calls, check_stdio, check_tests
from cadre_tasks.sandbox import Limits, default

LIMITS = Limits(cpu_s=10.0, memory_mb=512)
# As CommonMark has it, and at any depth, as in a list; what has the sign again behind it is code within a line.
FENCE = re.compile(r"^(?P<indent>[ \t]*+)(?P<sign>`{3,}+(?=[^`\n]*+$)|~{3,}+)(?P<info>.*)", re.MULTILINE)
FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]*(?:\([^)]*\)|[^\n(]+)$", re.MULTILINE)
PYTHON = re.compile(r"\{?\.?(python|py)[\d.]*(?![\w-])")
WORD = re.compile(r"\{?\.?[A-Za-z][\w+#.-]*\}?")
# Fences that share their lines with other text.
WITHIN = re.compile(r"`{3}(?:python|py)[\d.]*[ \t]*\n(.*?)`{3}", re.DOTALL)
COMPILE = "import sys\ncompile(sys.stdin.read(), '<program>', 'exec')"
# As an import would, so that what stands below `if __name__ == "__main__"` is left.
LOAD = """\
import sys, types
module = sys.modules["solution"] = types.ModuleType("solution")
exec(compile(sys.stdin.read(), "<program>", "exec"), vars(module))
"""


@dataclass(frozen=True)
class StdioTests:
    """A script's tests: (stdin, expected stdout) each, for example `StdioTests((("3 4", "7"),))`."""

    cases: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CallTests:
    """A function's tests: (arguments, expected value) each, for example `CallTests("add", (((3, 4), 7),))`."""

    name: str
    cases: tuple[tuple[tuple[Any, ...], Any], ...]


@dataclass(frozen=True)
class UnitTests:
    """Test code, for example `UnitTests("assert add(3, 4) == 7")`; see `cadre_sandbox.checkers.check_tests`."""

    tests: str
    setup: str = ""
    names: tuple[str, ...] = ()


Tests = StdioTests | CallTests | UnitTests


@dataclass(frozen=True)
class Block:
    """A fenced block of a completion: what it is marked as, in lower case, what it holds, its first and last line."""

    mark: str
    text: str
    first: int
    last: int


def fenced(completion: str) -> list[Block]:
    """The fenced blocks of a completion that are closed, line by line."""
    blocks: list[Block] = []
    opened: re.Match[str] | None = None
    first = line = seen = 0
    for fence in FENCE.finditer(completion):
        line, seen = line + completion.count("\n", seen, fence.start()), fence.start()
        ends = opened is not None and closes(fence, opened)
        if opened is None or (ends and WORD.fullmatch(fence["info"].strip())):  # what says what follows it begins anew
            opened, first = fence, line
        elif ends:
            mark = next(iter(opened["info"].lower().split()), "")
            text = completion[opened.end() + 1 : fence.start()]
            depth = len(opened["indent"])
            blocks.append(
                Block(mark, re.sub(f"^[ \\t]{{1,{depth}}}", "", text, flags=re.M) if depth else text, first, line)
            )
            opened = None
    return blocks


def closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    """Whether a fence is of the opened one's sign, as long or longer, and no deeper in than a fence that is none of the
    text's own may stand."""
    alike = fence["sign"].startswith(opened["sign"])
    return alike and len(fence["indent"]) < len(opened["indent"]) + 4


def extract_code(completion: str) -> str:
    """The last fenced block of a completion that is marked as Python, or where there is none the last unmarked one,
    which beside a program is what it prints; the whole completion when it has neither. Fences that stand within lines
    count where there are no others."""
    blocks = fenced(completion)
    chosen = [block.text for block in blocks if PYTHON.match(block.mark)] or WITHIN.findall(completion)
    chosen = chosen or [block.text for block in blocks if not block.mark]
    return chosen[-1] if chosen else completion


def all_tests(program: CodingProblem) -> Tests:
    """All the tests of a problem, in the form that judges it."""
    if program.tests:
        return UnitTests(program.tests, program.setup, program.names)
    return cases_of(program, program.public + program.hidden)


def cases_of(program: CodingProblem, cases: Sequence[tuple[Any, Any]]) -> StdioTests | CallTests:
    """Some of the cases of a problem that is judged by cases."""
    return CallTests(program.entry, tuple(cases)) if program.entry else StdioTests(tuple(cases))


# What graders of such problems have in scope, and the way from a function's name to a method of `class Solution`.
IMPORTS = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import ceil, floor, gcd, inf, sqrt
from typing import *
"""
# What a program is to define is not in scope before it does.
UNDEFINED = "globals().pop({name!r}, None)\n"
METHOD = """

if {name!r} not in globals() and "Solution" in globals():
    {name} = Solution().{name}
"""


def callable_by(name: str, program: str) -> str:
    """The program with the usual imports, and a method `name` of its class `Solution` as a function."""
    return hoisted(IMPORTS + UNDEFINED.format(name=name), program) + METHOD.format(name=name)


def ready(problem: CodingProblem, program: str) -> str:
    """The program as the test code of a problem needs it: with call cases as a function, otherwise behind what the
    problem's starter defines, which is not the function itself."""
    if problem.tests and problem.starter:
        return hoisted(f"{opening(problem.starter)}\n\n{UNDEFINED.format(name=problem.entry)}", program)
    return callable_by(problem.entry, program) if problem.entry and not problem.tests else program


@lru_cache(maxsize=256)
def opening(starter: str) -> str:
    """The lines of a starter that stand by themselves: imports and whole functions, not a signature without a body."""
    lines = starter.splitlines(keepends=True)
    return next(("".join(lines[:end]) for end in range(len(lines), 0, -1) if _parses("".join(lines[:end]))), "")


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def hoisted(before: str, program: str) -> str:
    """A program behind other code; what it imports from `__future__` goes first, as Python wants it."""
    first = "".join(f"{line}\n" for line in FUTURE.findall(program))
    return f"{first}{before}\n\n{FUTURE.sub('', program)}"


async def builds(program: str) -> bool:
    """Whether the program compiles. An empty one does not count."""
    if not program.strip():
        return False
    return (await default().run(COMPILE, program, LIMITS)).status == "ok"


async def loads(program: str) -> bool:
    """Whether the program ends without an error when it is imported."""
    return (await default().run(LOAD, program, LIMITS)).status == "ok"


async def judge(program: str, tests: Tests, limits: Limits = LIMITS) -> Verdict:
    """Run the tests on the program. Raises SandboxUnavailable when it could not be run: that is no verdict on it."""
    sandbox = default()
    match tests:
        case StdioTests(cases):
            verdict = await check_stdio(sandbox, program, cases, limits)
        case CallTests(name, calls):
            verdict = await check_calls(sandbox, callable_by(name, program), name, calls, limits)
        case UnitTests(code, setup, names):
            verdict = await check_tests(sandbox, program, code, setup, names, limits)
    return verdict
