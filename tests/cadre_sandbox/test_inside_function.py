"""Calls of a program's function: plain values cross, errors count the program's own lines, and nothing can be forged
that is more than an answer."""

import asyncio

import pytest

from cadre_sandbox import Called, FunctionProgram, Limits, Sandbox
from tests.cadre_sandbox.attacks import cheats
from tests.helpers.sandboxes import shared_sandbox

ARGUMENTS = "import sys\narguments = ([[1, 2], [0, 3]], int(sys.stdin.read() or 0))\n"


def call(
    program: str, stdin: str = "", limits: Limits | None = None, prelude: str = "", arguments: str = ARGUMENTS
) -> Called:
    function = FunctionProgram(program, "f", arguments, prelude)
    return asyncio.run(shared_sandbox().call(function, stdin, limits or Limits(cpu_s=1.0)))


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("return [(1, 2), [b, None]]", [[1, 2], [7, None]]),
        ("return 'RRD'", "RRD"),
        ("return", None),
        ("return True", True),
        ("return 1.5", 1.5),
        ("return a", [[1, 2], [0, 3]]),
        ("import collections\n    return collections.deque([1])", [1]),
        ("import collections\n    return [collections.namedtuple('Cell', 'r c')(1, 2)]", [[1, 2]]),
        ("return '\\ud800'", "\ud800"),
        ("return 2 ** 256 - 1", 2**256 - 1),
    ],
)
def test_a_plain_value_crosses(body: str, value: object) -> None:
    called = call(f"def f(a, b):\n    {body}\n", "7")
    assert (called.returned, called.value, called.type, called.result.status) == (True, value, "", "ok")
    assert type(called.value) is type(value)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("yield 1", "generator"),
        ("return {1, 2}", "set"),
        ("return {1: 2}", "dict"),
        ("return [print]", "builtin_function_or_method"),
        ("return b'RRD'", "bytes"),
        ("a.append(a)\n    return a", "list nested more than 20 deep"),
        ("return 2 ** 256", "int of more than 256 bits"),
        ("return iter(int, 1)", "callable_iterator"),
    ],
)
def test_any_other_value_is_named_by_its_type(body: str, name: str) -> None:
    called = call(f"def f(a, b):\n    {body}\n")
    assert (called.returned, called.value, called.type, called.result.status) == (False, None, name, "ok")


@pytest.mark.parametrize("base", [*cheats.BASES])
def test_an_object_that_equals_everything_does_not_cross(base: str) -> None:
    called = call(cheats.claiming(*cheats.BASES[base]).replace("@ENTRY@", "f"))
    # Of a list, tuple or deque the content crosses, read past the methods of the class.
    contents = {"list": ["~~"], "tuple": ["~~"], "deque": ["~~"]}
    assert called.value == contents.get(base)
    assert called.returned == (base in contents)


LIST = "class Path(list):\n    def __iter__(self): return iter([9])\n    __len__ = __eq__ = lambda *a: 99\n"


def test_methods_of_a_derived_class_are_not_used() -> None:
    assert call(f"{LIST}def f(a, b): return Path([(1, 2)])\n").value == [[1, 2]]


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("def f(a, b): return 1\ndef g(a, b): return 2\n", 1),
        ("def solve(a, b): return 3\n", 3),
        ("class Solution:\n    def f(self, a, b): return 4\n", 4),
        ("f = lambda a, b: 5\n", 5),
        ("from __future__ import annotations\ndef f(a: list[X], b) -> Y: return 6\n", 6),
        ("def f(a, b): return 7\nif __name__ == '__main__':\n    1 / 0\n", 7),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(a, b): return P(8).x\n", 8),
    ],
)
def test_the_function_is_found(program: str, value: int) -> None:
    assert call(program).value == value


def test_without_the_function_the_error_names_those_that_are_there() -> None:
    called = call("def g(): pass\ndef h(): pass\n")
    assert not called.returned
    assert called.result.stderr == "NameError: expected a function `f`; the program defines `g`, `h`\n"
    assert "defines none" in call("x = 1\n").result.stderr


def test_a_function_of_the_prelude_is_not_taken_for_the_programs() -> None:
    called = call("x = 1\n", prelude="def f(a, b): return 1\ndef g(a, b): return 2\n")
    assert not called.returned
    assert call("def h(a, b): return g(a, b)\n", prelude="def g(a, b): return 2\n").value == 2


def test_lists_that_the_call_changed_come_back() -> None:
    called = call("def f(a, b):\n    a[1][0] = 4\n    return True\n")
    assert called.lists == ([[1, 2], [4, 3]], None)


def test_what_is_printed_is_no_value() -> None:
    called = call("print(1)\ndef f(a, b):\n    print('2 ', end='')\n    return 3\n")
    assert (called.result.stdout, called.value) == ("1\n2 ", 3)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("def f(a, b)\n    return 1\n", "line 1"),
        ("def f(a, b):\n    return (1\n", "line 2"),
        ("\n\ndef f(a, b):\n    def g():\n        return a[9]\n    return g()\n", "line 5"),
        ("x = 1\ny\ndef f(a, b): return 1\n", "line 2"),
    ],
)
def test_errors_count_the_programs_own_lines(program: str, line: str) -> None:
    called = call(program, prelude="import math\nfrom math import *\n")
    assert called.result.status == "error"
    last = [part for part in called.result.stderr.splitlines() if part.startswith('  File "')][-1]
    assert last.startswith(f'  File "<program>", {line}')
    assert "prelude" not in called.result.stderr


def test_functions_among_the_arguments_do_not_show_in_errors() -> None:
    arguments = "def half(x):\n    return 1 / x\narguments = (half,)\n"
    lines = call("def f(half):\n    x = 0\n    return half(x)\n", arguments=arguments).result.stderr.splitlines()
    assert lines[1] == '  File "<program>", line 3, in f'
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "<arguments>" not in "".join(lines)


NESTED = "def f(a, b):\n    x = 1\n    while x:\n        for i in range(9): pass\n"
CAUGHT = "def f(a, b):\n    try:\n        while True: pass\n    except BaseException: return 1\n"
CALLED = "def f(a, b):\n    for x in iter(int, 1): g()\ndef g():\n    for i in range(99): pass\n"
RECURSIVE = "def f(a, b):\n    return g(40)\ndef g(n):\n    return n < 2 or g(n - 1) + g(n - 2)\n"


@pytest.mark.parametrize(
    ("program", "folder"),
    [
        (NESTED, "in the loop that begins in line 3"),
        (CAUGHT, "in the loop that begins in line 3"),
        (CALLED, "in the loop that begins in line 2"),
        ("x = 1\nwhile x: pass\n", "in the loop that begins in line 2"),
        (RECURSIVE, "in line 2"),
    ],
)
def test_a_program_that_runs_out_of_time_gets_its_outermost_loop(program: str, folder: str) -> None:
    called = call(program, limits=Limits(cpu_s=0.3))
    assert (called.result.status, called.returned) == ("timeout", False)
    assert called.result.stderr == f"TimeoutError: the program was still running after 0.2 s, {folder}\n"


def test_a_program_that_stops_the_clock_still_runs_out_of_time() -> None:
    stopping = "import signal\nsignal.setitimer(signal.ITIMER_PROF, 0)\ndef f(a, b):\n    while True: pass\n"
    called = call(stopping, limits=Limits(cpu_s=0.2))
    assert (called.result.status, called.returned) == ("timeout", False)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("def f(a, b): return [[0] * 1000] * 100\n", "flood"),
        ("def f(a, b):\n    while True: print('x' * 999)\n", "flood"),
        ("def f(a, b): return [0] * 10 ** 9\n", "oom"),
        ("def f(a, b): return f(a, b)\n", "error"),
        ("import sys\ndef f(a, b): sys.exit(3)\n", "error"),
        ("import sys\ndef f(a, b): sys.exit()\n", "ok"),
        ("import os\ndef f(a, b): os._exit(0)\n", "ok"),
        ("def f(a, b): return print(chr(10) + 'value 1')\n", "ok"),
    ],
)
def test_a_program_without_a_plain_value_has_none(program: str, status: str) -> None:
    called = call(program)
    assert (called.value, called.result.status) == (None, status)


# Programs that look for the line on which a value is written, and write one of their own. What arrives is JSON or
# nothing; it is no verdict, so the best that they reach is an answer that they could have returned.
LEAVE = "import os\ndef f(a, b):\n    os.write(1, b'\\n' + NONCE + b' ' + {!r})\n    os._exit(0)\n"
FORGERIES = [
    LEAVE.format(text.encode())
    for text in ("[" * 60_000, '{"value": ', "[1]", '{"lists": 7}', '{"value": ' + "9" * 50_000)
]
FIND = (
    "import sys\nframe = sys._getframe()\nwhile 'job' not in frame.f_locals: frame = frame.f_back\n"
    "NONCE = frame.f_locals['job']['nonce'].encode()\n"
)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_line_that_has_not_the_form_is_no_value(forgery: str) -> None:
    called = call(FIND + forgery)
    assert (called.returned, called.value, called.lists, called.result.status) == (False, None, (), "ok")


def test_a_replaced_encoder_writes_only_what_is_read_as_json() -> None:
    hostile = (
        'import json\njson.dumps = lambda *a, **k: \'{"value": {"a": NaN}, "lists": [1]}\'\ndef f(a, b): return 1\n'
    )
    called = call(hostile)
    assert type(called.value) is dict
    assert called.lists == (1,)


def test_the_next_program_finds_nothing_of_the_last() -> None:
    async def run() -> list[Called]:
        async with Sandbox(workers=1) as sandbox:
            leave = "import sys, solution\nsolution.f = sys.modules['solution'].g = 1\ndef f(a, b): return 1\n"
            programs = [leave, "def h(a, b): return 'g' in globals()\n"]
            return [await sandbox.call(FunctionProgram(program, "f", ARGUMENTS)) for program in programs]

    assert asyncio.run(run())[1].value is False


def test_a_script_counts_its_own_lines_behind_a_prelude() -> None:
    result = asyncio.run(shared_sandbox().run("y = x\nz\n", prelude="import sys\nx = 1\n"))
    assert result.stderr.splitlines()[1] == '  File "<program>", line 2, in <module>'


def test_a_prelude_changes_no_random_number() -> None:
    full = asyncio.run(shared_sandbox().run("import random\nprint(random.random())\n"))
    parted = asyncio.run(shared_sandbox().run("print(random.random())\n", prelude="import random\n"))
    assert full.stdout == parted.stdout != ""
