"""Judges a program, or a set of unit tests, that a model wrote, by the checkers of `cadre_sandbox`.

Nothing of a model is parsed or run in this process: a program is compiled, run and judged behind the sandbox.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from cadre_sandbox.checkers import Verdict, check_calls, check_stdio, check_tests
from cadre_sandbox.compare import Comparison
from cadre_tasks.data.records import CodingProblem
from cadre_tasks.sandbox import Limits, default

LIMITS = Limits(cpu_s=10.0, memory_mb=512)
# A fence of CommonMark, at any depth, as in a list; a line with the sign again behind it is code within a line.
FENCE = re.compile(r"^(?P<indent>[ \t]*+)(?P<sign>`{3,}+(?=[^`\n]*+$)|~{3,}+)(?P<info>.*)", re.MULTILINE)
SYNTAX_LINE = re.compile(r"\(<program>, line (\d+)\)")
# What an unclosed block may end with instead of its closing fence.
PART_OF_FENCE = re.compile(r"(?<=\n)[ \t]*(?:`{1,2}|~{1,2})\Z")
FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]*(?:\([^)]*\)|[^\n(]+)$", re.MULTILINE)
PYTHON = re.compile(r"\{?\.?(python|py)[\d.]*(?![\w-])")
WORD = re.compile(r"\{?\.?[A-Za-z][\w+#.-]*\}?")
# Fences that share their lines with other text.
WITHIN = re.compile(r"`{3}(?:python|py)[\d.]*[ \t]*\n(.*?)`{3}", re.DOTALL)
COMPILE = "import sys\ncompile(sys.stdin.read(), '<program>', 'exec')"
# Runs the program as an import would, so that code below `if __name__ == "__main__"` is skipped.
LOAD = """\
import sys, types
module = sys.modules["solution"] = types.ModuleType("solution")
exec(compile(sys.stdin.read(), "<program>", "exec"), vars(module))
"""


@dataclass(frozen=True)
class StdioTests:
    """A script's tests: (stdin, expected stdout) each, for example `StdioTests((("3 4", "7"),))`."""

    cases: tuple[tuple[str, str], ...]
    comparison: Comparison = "words"


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
    """A fenced block of a completion: its mark in lower case, its text, its first and its last line. Only the last
    block of a completion can be unclosed; it ends where the completion ends."""

    mark: str
    text: str
    first: int
    last: int
    closed: bool = True


def fenced(completion: str) -> list[Block]:
    """Return the closed fenced blocks of a completion."""
    return [block for block in all_fenced(completion) if block.closed]


def all_fenced(completion: str) -> list[Block]:
    """Return the fenced blocks of a completion, with one that is left open at its end."""
    blocks: list[Block] = []
    opened: re.Match[str] | None = None
    first = line = scanned = 0
    for fence in FENCE.finditer(completion):
        line, scanned = line + completion.count("\n", scanned, fence.start()), fence.start()
        is_closing = opened is not None and closes(fence, opened)
        # A fence that is followed by a word names the language of a new block, also where it could close one.
        if opened is None or (is_closing and WORD.fullmatch(fence["info"].strip())):
            opened, first = fence, line
        elif is_closing:
            blocks.append(block_between(completion, opened, fence.start(), first, line))
            opened = None
    if opened is not None:
        # The end of the completion may be in the middle of the closing fence.
        part = PART_OF_FENCE.search(completion, opened.end())
        end = part.start() if part else len(completion)
        last = completion.count("\n")
        blocks.append(replace(block_between(completion, opened, end, first, last), closed=False))
    return blocks


def block_between(completion: str, opened: re.Match[str], end: int, first: int, last: int) -> Block:
    """Return the block from the opening fence to the position `end`."""
    mark = next(iter(opened["info"].lower().split()), "")
    # The + 1 skips the line break behind the opening fence.
    text = completion[opened.end() + 1 : end]
    # In a list the block is indented as a whole; its code is not.
    depth = len(opened["indent"])
    return Block(mark, re.sub(f"^[ \\t]{{1,{depth}}}", "", text, flags=re.M) if depth else text, first, last)


def closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    """Return True if the fence closes the opened one: of the same sign, at least as long, and less than four columns
    further in, as in CommonMark."""
    alike = fence["sign"].startswith(opened["sign"])
    return alike and len(fence["indent"]) < len(opened["indent"]) + 4


def extract_code(completion: str) -> str:
    """Return the last fenced block of a completion that is marked as Python; else the last unmarked one, since blocks
    with another mark often hold what the program prints; else the whole completion. Fences that stand within lines
    count only if there are no marked blocks. A block that is left open, as in a completion that was cut off, counts as
    far as it goes if no closed one of its kind is there."""
    blocks = all_fenced(completion)

    def texts(marked: bool, closed: bool) -> list[str]:
        is_chosen = PYTHON.match if marked else lambda mark: not mark
        return [block.text for block in blocks if is_chosen(block.mark) and block.closed == closed]

    # The last block counts: models revise their program below the first one.
    chosen = texts(True, True) or WITHIN.findall(completion) or texts(True, False)
    chosen = chosen or texts(False, True) or texts(False, False)
    return next(filter(str.strip, reversed(chosen)), chosen[-1]) if chosen else completion


def all_tests(program: CodingProblem) -> Tests:
    """Return all tests of a problem in the form that judges it."""
    if program.tests:
        return UnitTests(program.tests, program.setup, program.names)
    return cases_of(program, program.public + program.hidden)


def cases_of(program: CodingProblem, cases: Sequence[tuple[Any, Any]]) -> StdioTests | CallTests:
    """Return the given cases of a problem that is judged by cases, as tests."""
    if program.entry:
        return CallTests(program.entry, tuple(cases))
    return StdioTests(tuple(cases), program.comparison)


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
sys.setrecursionlimit(50000)
"""
# What a program is to define is not in scope before it does.
UNDEFINED = "globals().pop({name!r}, None)\n"
METHOD = """

if {name!r} not in globals() and "Solution" in globals():
    {name} = Solution().{name}
"""


def callable_by(name: str, program: str) -> str:
    """Return the program with the usual imports, and with a method `name` of its class `Solution` as a function."""
    return hoisted(IMPORTS + UNDEFINED.format(name=name), program) + METHOD.format(name=name)


def ready(problem: CodingProblem, program: str) -> str:
    """Return the program in the form that the problem's test code needs: with call cases as a function, otherwise
    behind the definitions of the problem's starter except the function itself."""
    if problem.tests and problem.starter:
        return hoisted(f"{opening(problem.starter)}\n\n{UNDEFINED.format(name=problem.entry)}", program)
    return callable_by(problem.entry, program) if problem.entry and not problem.tests else program


def with_own_lines(verdict: Verdict, ready_program: str, program: str) -> Verdict:
    """Return the verdict with the lines of syntax errors counted from the program's first one, not from that of the
    code before it in `ready_program`."""
    without_future = FUTURE.sub("", program)
    offset = ready_program.partition(without_future)[0].count("\n") if without_future else 0
    failures = (
        SYNTAX_LINE.sub(lambda match: f"(<program>, line {int(match[1]) - offset})", text) for text in verdict.failures
    )
    return replace(verdict, failures=tuple(failures))


@lru_cache(maxsize=256)
def opening(starter: str) -> str:
    """Return the leading lines of a starter that parse by themselves: imports and whole functions, not a signature
    without a body."""
    lines = starter.splitlines(keepends=True)
    return next(("".join(lines[:end]) for end in range(len(lines), 0, -1) if _parses("".join(lines[:end]))), "")


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def hoisted(prefix: str, program: str) -> str:
    """Return a program behind other code. Its imports from `__future__` go first, as Python requires."""
    first = "".join(f"{line}\n" for line in FUTURE.findall(program))
    return f"{first}{prefix}\n\n{FUTURE.sub('', program)}"


async def builds(program: str) -> bool:
    """Return True if the program compiles; an empty one does not count."""
    if not program.strip():
        return False
    return (await default().run(COMPILE, program, LIMITS)).status == "ok"


async def loads(program: str) -> bool:
    """Return True if the program ends without an error when it is imported."""
    return (await default().run(LOAD, program, LIMITS)).status == "ok"


async def judge(program: str, tests: Tests, limits: Limits = LIMITS) -> Verdict:
    """Run the tests on the program. Raises SandboxUnavailable when it could not be run: that is no verdict on it."""
    sandbox = default()
    match tests:
        case StdioTests(cases, comparison):
            verdict = await check_stdio(sandbox, program, cases, limits, comparison, IMPORTS)
        case CallTests(name, calls):
            ready_program = callable_by(name, program)
            verdict = await check_calls(sandbox, ready_program, name, calls, limits)
            verdict = with_own_lines(verdict, ready_program, program)
        case UnitTests(code, setup, names):
            verdict = await check_tests(sandbox, program, code, setup, names, limits)
    return verdict
