"""Right programs pass, wrong ones and cheats do not, whatever they return and however they end."""

import asyncio
import collections
import datetime
import decimal
import fractions
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadre_sandbox.checkers import Verdict, check_calls, check_stdio, check_tests
from cadre_sandbox.compare import Comparison, same_output
from cadre_sandbox.inside import codec
from cadre_sandbox.records import Result
from cadre_tasks.code.judge import all_tests, judge
from cadre_tasks.data.public_sets import humaneval, mbpp
from cadre_tasks.sandbox import Limits, default
from tests.cadre_sandbox.attacks.cheats import CHEATS
from tests.helpers.public_sets import rows
from tests.helpers.slow import few_of

QUICK = Limits(cpu_s=5.0, memory_mb=512)
SQUARE = "def square(x):\n    return x * x"


def verdict_on(program: str, tests: str, **options: Any) -> Verdict:
    return asyncio.run(check_tests(default(), program, tests, limits=QUICK, **options))


def test_stdin_and_stdout() -> None:
    program = "a, b = map(int, input().split())\nprint(a + b)"
    verdict = asyncio.run(check_stdio(default(), program, [("1 2", "3"), ("2 2\n", "4\n\n"), ("1 1", "3")]))
    assert (verdict.passed, verdict.total, verdict.ok, verdict.status) == (2, 3, False, "ok")
    assert "printed '2\\n'" in verdict.failures[0]


class CountedRuns:
    """A sandbox that counts its runs."""

    def __init__(self) -> None:
        self.stdins: list[str] = []

    async def run(self, program: str, stdin: str, limits: Limits, prelude: str) -> Result:
        self.stdins.append(stdin)
        return await default().run(program, stdin, limits)


VECTOR = """\
class Vector:
    def __init__(self, *x): self.x = x
    def __str__(self): return f"({self.x[0]}, {self.x[1]})"
"""
EQUAL = """\
class Equal(str):
    def __eq__(self, other): return True

class Vector:
    def __init__(self, *x): pass
"""


@pytest.mark.parametrize(
    ("program", "ok"),
    [
        (VECTOR, True),
        (VECTOR.replace("x[1]", "x[0]"), False),
        (f"{EQUAL}    def __str__(self): return Equal('no')\n", False),
        (f"{EQUAL}    def __str__(self): raise ValueError\n", False),
    ],
)
def test_an_object_has_the_text_that_its_class_gives_it(program: str, ok: bool) -> None:
    """Mistake: the tests read a text of the proxy, and right programs fail."""
    assert verdict_on(program, "v = Vector(1, 2)\nassert str(v) == '(1, 2)' and f'{v}!' == '(1, 2)!'").ok is ok


CASES = [("01234567", "012"), ("567", "01234567"), ("1356", "012345"), ("", "01234567"), ("07", "01234567")]
WAITS = ["while True: pass", "import time; time.sleep(99)"]


@pytest.mark.parametrize(
    ("slow", "run", "wait"),
    few_of(
        [(*case, wait) for case in CASES for wait in WAITS],
        [(*CASES[0], WAITS[0]), (*CASES[2], WAITS[1]), (*CASES[3], WAITS[0])],
    ),
)
def test_a_script_that_takes_too_long_is_not_run_on_every_case(slow: str, run: str, wait: str) -> None:
    """After three cases that used up all its time the others count as failed, in whatever order runs end."""
    counted = CountedRuns()
    program = f"n = input()\nif n in {slow!r}:\n    {wait}\nprint(n)"
    limits = Limits(cpu_s=0.2) if "sleep" not in wait else Limits(cpu_s=0.2, wall_s=0.4)
    cases = [(str(n), str(n)) for n in range(8)]
    verdict = asyncio.run(check_stdio(counted, program, cases, limits))  # type: ignore[arg-type]
    assert "".join(sorted(counted.stdins)) == run
    assert (verdict.passed, verdict.total) == (len(set(run) - set(slow)), 8)
    assert len(verdict.failures) == 8 - verdict.passed
    assert verdict.status == ("ok" if not slow else "timeout" if "pass" in wait else "wall")
    assert sum("was not run" in line for line in verdict.failures) == 8 - len(run)


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("  1  2 ", "1 2", True),
        ("0.3333333", "0.33333333", True),
        ("1e-7", "0.0", True),
        ("3", "3.0", True),
        ("3.0000001", "3", False),  # an integer is expected exactly
        ("4.0 -0.0 1e2", "4 0 100", True),
        ("4.5", "4", False),
        ("1 2 3", "1 2", False),
        ("YES", "yes", False),
        ("nan", "0.5", False),
        ("inf", "1e300", False),
        ("5", "1e999", False),
        ("5", "-1e999", False),
        ("5", "inf", False),
        ("5", "nan", False),
        ("1e999", "1e999", True),
        ("nan", "nan", True),
        ("9" * 5000, "9" * 5000, True),
        ("", "1", False),
        ("0.333333333333", "0." + "3" * 60, True),
        (f"{10**60 + 1}.0", f"{10**60}.0", True),
        (f"{10**60 + 1}", f"{10**60}", False),
        (f"{1e300:.12f}", "1e300", True),
    ],
)
def test_tolerance_of_outputs(got: str, expected: str, same: bool) -> None:
    assert same_output(got, expected) is same


@pytest.mark.parametrize(
    ("comparison", "got", "expected", "same"),
    [
        ("contests", "Yes\n3", "YES 3", True),
        ("contests", "0.123455", "0.123457", True),
        ("contests", "0.1235", "0.1234", False),
        ("contests", "3.000001", "3", False),
        ("lines", "1 2\n3", "1\n2 3", False),
        ("lines", "1  2.0\n3 ", "1 2\n3.00\n", True),
        ("lines", "0.1000001", "0.1", False),
        ("lines", "yes", "YES", False),
    ],
)
def test_output_is_compared_as_the_benchmark_does(comparison: Comparison, got: str, expected: str, same: bool) -> None:
    assert same_output(got, expected, comparison) is same


def test_calls_with_expected_values() -> None:
    cases = [([2], 4), ([1.5], 2.25), ([3], 10)]
    verdict = asyncio.run(check_calls(default(), SQUARE, "square", cases, QUICK))
    assert (verdict.passed, verdict.total) == (2, 3)
    pair = asyncio.run(
        check_calls(default(), "def f(x): return (x, [x])", "f", [([1], [1, [1]]), ([1], [1, 1])], QUICK)
    )
    assert (pair.passed, pair.total) == (1, 2)
    true = asyncio.run(check_calls(default(), "def f(): return True", "f", [([], 1)], QUICK))
    assert true.passed == 0


def test_integers_of_any_length_are_printed_and_compared() -> None:
    """Python's own limit is 4,300 digits, and tests of contests have more (NVIDIA-NeMo/Gym#2956)."""
    long = "1" + "0" * 5000
    printed = check_stdio(default(), "print(10 ** int(input()))", [("5000", long), ("5001", long)], QUICK)
    returned = check_calls(default(), "def f(n): return str(10 ** n)", "f", [([5000], long)], QUICK)
    asserted = check_tests(default(), "def f(n): return 10 ** n", "assert len(str(f(5000))) == 5001", limits=QUICK)

    async def go() -> list[int]:
        return [verdict.passed for verdict in await asyncio.gather(printed, returned, asserted)]

    assert asyncio.run(go()) == [1, 1, 1]


ENDS = ["import os; os._exit(0)", "return 'x' * 10**8", "return f(x)", "while True: pass"]


@pytest.mark.parametrize(
    ("end", "position"),
    few_of([(end, position) for end in ENDS for position in (0, 4, 9)], [(end, 4) for end in ENDS] + [(ENDS[0], 0)]),
)
def test_a_case_at_which_a_program_ends_costs_the_others_nothing(end: str, position: int) -> None:
    program = f"def f(x):\n    if x == {position}:\n        {end}\n    return x\n"
    limits = Limits(cpu_s=0.3) if end.startswith("while") else QUICK
    verdict = asyncio.run(check_calls(default(), program, "f", [([x], x) for x in range(10)], limits))
    assert (verdict.passed, verdict.total, len(verdict.failures)) == (9, 10, 1)


def test_calls_have_their_time_each() -> None:
    """Together they take three times what a program has; a program that never ends is called three times at most."""
    clock = "    from time import process_time as now\n    end = now() + 0.06\n"
    work = f"def f(x):\n{clock}    while now() < end: pass\n    return x\n"
    limits, cases = Limits(cpu_s=0.15), [([x], x) for x in range(8)]
    verdict = asyncio.run(check_calls(default(), work, "f", cases, limits))
    assert (verdict.passed, verdict.total, verdict.status) == (8, 8, "ok")
    endless = asyncio.run(check_calls(default(), "def f(x):\n    while True: pass\n", "f", cases, limits))
    assert (endless.passed, endless.total, endless.status, len(endless.failures)) == (0, 8, "timeout", 3)


@pytest.mark.parametrize(
    ("tests", "passed", "total"),
    [
        ("assert square(3) == 9\nassert square(2) == 5", 1, 2),
        (
            "def check(f):\n    assert f(3) == 9\n    assert True\n    x = 2\n    assert f(x) == 4",
            2,
            2,
        ),
        ("def check(candidate):\n    for i in range(3):\n        assert candidate(i) == i * i", 1, 1),
        ("def check(f):\n    assert f(2) == 4\n    assert f(3) == 9\n\ncheck(square)", 2, 2),
        ("def check(f):\n    assert f(2) == 4\n\ndef test_check():\n    check(square)", 2, 2),
        ("def check(f):\n    assert f(2) == 5\n\ndef test_check():\n    check(square)", 0, 2),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(square(2), 4)\n"
            "unittest.main()",
            1,
            1,
        ),
        ("def check(f):\n    if f(1) != 1: return\n    assert f(2) == 4", 1, 1),
        ("def test_a():\n    assert square(1) == 1\ndef test_b():\n    assert square(1) == 2", 1, 2),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(square(2), 4)\n"
            "    def test_b(self): self.assertEqual(square(2), 5)\n"
            "    def test_c(self):\n        with self.assertRaises(TypeError): square('a')\n"
            "if __name__ == '__main__': unittest.main()",
            2,
            3,
        ),
        ("assert square(3) == 9\nraise SystemExit(0)\nassert square(3) == 9", 1, 2),
        ("import os\nos._exit(0)\nassert square(3) == 9", 0, 1),
        ("this is no Python", 0, 0),
        ("x = 1", 0, 0),
    ],
)
def test_shapes_of_tests(tests: str, passed: int, total: int) -> None:
    names = ["square"] if "def check" in tests else []
    verdict = verdict_on(SQUARE, tests, names=names)
    assert (verdict.passed, verdict.total) == (passed, total), verdict


@pytest.mark.parametrize(
    ("tests", "program", "ok"),
    [
        # what follows the last assert is run
        ("assert square(1) == 1\nx = square(2)\nif x != 4: raise ValueError(x)", "def square(x): return x", False),
        ("assert square(1) == 1\ndef rest():\n    assert square(2) == 4\nrest()", "def square(x): return x", False),
        ("assert square(1) == 1\ndef rest():\n    assert square(2) == 4\nrest()", SQUARE, True),
        ("assert square(1) == 1\nprint('done')", SQUARE, True),
        # a check or a test that yields or is a coroutine is seen through
        ("def check(f):\n    assert f(2) == 5\n    yield", SQUARE, False),
        ("def check(f):\n    yield\n    assert f(2) == 4", SQUARE, True),
        ("def test_a():\n    yield\n    assert square(2) == 5", SQUARE, False),
        ("async def test_a():\n    assert square(2) == 5", SQUARE, False),
        ("async def test_a():\n    assert square(2) == 4", SQUARE, True),
        ("async def check(f):\n    assert f(2) == 5", SQUARE, False),
        # a solution that says that something has ended does not end a test
        ("assert all(map(square, [1, 2]))", "def square(x): raise StopIteration", False),
        (
            "assert list(map(square, [])) == [] and not any(map(square, [1]))",
            "def square(x): raise StopIteration",
            False,
        ),
        ("assert [x for x in map(square, [1])] == []", "def square(x): raise StopIteration()", False),
        # definitions that need what waits for its test
        ("n = 2\nclass Case:\n    number = n\nassert square(Case.number) == 4", SQUARE, True),
        ("n = square(2)\ndef least(x=n): return x\nassert least() == 4", SQUARE, True),
    ],
)
def test_no_code_of_a_test_is_left_out(tests: str, program: str, ok: bool) -> None:
    assert verdict_on(program, tests, names=["square"]).ok is ok


NAMED = "import collections, enum\nclass Color(enum.IntEnum):\n    RED = 1\n    BLUE = 2\n" + (
    "class Name(str, enum.Enum):\n    A = 'a'\nPoint = collections.namedtuple('Point', 'x y')\n"
    "class Row(list):\n    def total(self): return sum(self)\nclass Many(dict): pass\n"
    "def point(): return Point(1, [2])\ndef red(): return Color.RED\ndef name(): return Name.A\n"
    "def row(): return Row([1, 2])\ndef many(): return Many(a=1)\ndef x_of(p): return p.x\n"
)


@pytest.mark.parametrize(
    "test",
    [
        "point() == (1, [2])", "point().x == 1", "x_of(point()) == 1", "point() != (1, 2)", "len(point()) == 2",
        "red() == 1", "red() + 1 == 2", "red() in (1, 2)", "red().name == 'RED'", "{1: 2}[red()] == 2", "red() != 2",
        "[red(), red()] == [1, 1]", "name() == 'a'", "name().upper() == 'A'", "row() == [1, 2]", "row().total() == 3",
        "row() != [1]", "many() == {'a': 1}", "sorted(row()) == [1, 2]", "isinstance(red(), int)", "row() == row()",
    ],
)  # fmt: skip
def test_values_of_derived_classes_are_what_they_inherit(test: str) -> None:
    assert verdict_on(NAMED, f"assert {test}").ok


def test_what_a_derived_class_claims_is_not_asked() -> None:
    equal = "class Number(int):\n    __eq__ = __ge__ = __le__ = lambda *a: True\n    __hash__ = int.__hash__\n"
    assert not verdict_on(equal + "def f(): return Number(3)", "assert f() == 4").ok
    lists = "class Items(list):\n    def __eq__(self, other): return True\n    def __iter__(self): return iter([4])\n"
    assert not verdict_on(lists + "def f(): return Items([3])", "assert f() == [4]").ok
    assert not verdict_on(lists + "def f(): return [Items([3])]", "assert f() == [[4]]").ok


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(a): a.sort()", "a = [3, 1]\nf(a)\nassert a == [1, 3]"),
        ("def f(a): a[1][0] = 5; a.append(6)", "row = [3]\na = [1, row]\nf(a)\nassert row == [5] and a == [1, [5], 6]"),
        ("def f(a): del a['x']; a['y'] = 2", "a = {'x': 1}\nb = a\nf(a)\nassert b == {'y': 2}"),
        ("def f(a): a.clear(); a.add(7)", "a = {1, 2}\nf(a)\nassert a == {7}"),
        ("def f(*, a): a.pop()", "a = [1]\nf(a=a)\nassert a == []"),
        ("def f(a): a.reverse()", "import collections\na = collections.deque([1, 2])\nf(a)\nassert list(a) == [2, 1]"),
        (
            "def f(a):\n    a.append(1)\n    raise ValueError",
            "a = []\ntry: f(a)\nexcept ValueError: pass\nassert a == [1]",
        ),
    ],
)
def test_what_a_program_does_to_its_arguments_is_seen(program: str, tests: str) -> None:
    assert verdict_on(program, tests).ok


def test_keywords_of_any_name() -> None:
    program = "def f(target, operation, self, name=0, passed=0): return [target, operation, self, name, passed]"
    tests = (
        "assert f(target=1, operation=2, self=3) == [1, 2, 3, 0, 0]\nassert f(1, 2, 3, name=4, passed=5)[3:] == [4, 5]"
    )
    assert verdict_on(program, tests).ok


def test_floats_that_are_no_numbers() -> None:
    def passed(program: str, expected: float) -> int:
        return asyncio.run(check_calls(default(), program, "f", [([], expected)], QUICK)).passed

    nan, inf = float("nan"), float("inf")
    assert passed("def f(): return float('nan')", nan) == 1
    assert passed("def f(): return float('inf')", inf) == 1
    assert passed("def f(): return float('-inf')", inf) == 0
    for wrong in (nan, inf, -inf):
        assert passed("def f(): return 5", wrong) == 0
        assert passed("def f(): return 5.0", wrong) == 0
    assert passed("def f(): return float('nan')", 5.0) == passed("def f(): return float('inf')", 5.0) == 0
    assert passed("def f(): return [float('nan'), 1]", 5.0) == 0


def test_more_than_a_thousand_tests_and_as_many_failures() -> None:
    tests = "\n".join(f"assert square({i}) == {i * i}" for i in range(1500))
    right, wrong = verdict_on(SQUARE, tests), verdict_on("def square(x): return x * x if x > 1000 else -1", tests)
    assert (right.passed, right.total, right.ok) == (1500, 1500, True)
    assert (wrong.passed, wrong.total) == (499, 1500)


def test_output_has_the_room_that_is_expected_of_it() -> None:
    long = "x" * 200_000
    verdict = asyncio.run(check_stdio(default(), "print('x' * 200_000)", [("", long), ("", "x")], QUICK))
    assert (verdict.passed, verdict.total) == (1, 2)


def test_lone_surrogates_are_no_end_of_the_trainer() -> None:
    lone = "a\ud800b\udc80"
    verdict = asyncio.run(check_stdio(default(), "print(len(input()))", [(lone, "4"), (lone, lone)], QUICK))
    assert verdict.total == 2
    assert verdict_on(f"def f(): return {lone!r}", f"assert f() == {lone!r}").ok
    assert not verdict_on(f"x = '{lone}'\ndef f(): return 1", "assert f() == 1").ok
    assert not verdict_on("def f(): return 1", f"assert f() == '{lone}'").ok


@pytest.mark.parametrize(
    "way",
    ["f._do('get', '__code__')", "f.__code__", "f.gi_code", "g().gi_frame", "g().gi_code", "C.f.f_code",
     "f._do('set', '__name__', 'x')", "m.f", "C()._do('get', '__dict__')", "C().f.__func__"],
)  # fmt: skip
def test_a_test_cannot_read_the_program(way: str) -> None:
    program = "import types\ndef f(): return 1\ndef g(): yield 1\nclass C:\n    def f(self): return 1\n"
    program += "m = types.ModuleType('m')\nm.f = f"
    verdict = verdict_on(program, f"assert f() == 1\n{way}\nassert True == 1")
    assert (verdict.passed, verdict.total) == (1, 2)
    assert "AttributeError" in verdict.failures[0]


GET = "def get(p): return p.x"


def test_objects_of_the_solution_are_passed_back_and_equal_to_nothing() -> None:
    program = "class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return True\n" + GET
    assert verdict_on(program, "p = P(3)\np.x = p.x + 1\nassert get(p) == 4").ok
    assert not verdict_on(program, "assert P(3) == 3").ok
    assert not verdict_on(program, "assert P(3)").ok


def test_what_is_expected_is_never_the_solutions() -> None:
    program = "class Counter:\n    def __new__(cls, *a): return 3\ndef count(x): return 3"
    assert not verdict_on(program, "assert count('aab') == Counter('aab')").ok


def test_a_solution_that_fails_says_how() -> None:
    endless = check_tests(default(), "while True: pass", "assert f() == 1", limits=Limits(cpu_s=0.2, wall_s=20.0))
    assert asyncio.run(endless).status == "timeout"
    assert "ZeroDivisionError" in verdict_on("1 / 0", "assert f() == 1").failures[0]
    assert verdict_on("def f(): return [0] * 10**10", "assert f() == 1").passed == 0


def test_partial_credit_survives_a_hang() -> None:
    program = "def f(x):\n    while x > 1: pass\n    return x"
    limits = Limits(cpu_s=0.4)
    verdict = asyncio.run(check_tests(default(), program, "assert f(1) == 1\nassert f(2) == 2", limits=limits))
    assert (verdict.passed, verdict.total, verdict.status) == (1, 2, "timeout")


def test_there_are_a_hundred_cheats_and_more() -> None:
    assert len(set(CHEATS.values())) == len(CHEATS) >= 100


@pytest.mark.parametrize("name", few_of(CHEATS, list(CHEATS)[::4]))
def test_cheats_pass_nothing(name: str) -> None:
    """A few problems of HumanEval that need different kinds of answers; the benchmark takes every set of code."""
    problems = rows("humaneval/HumanEval.jsonl")[5::40]
    limits = Limits(cpu_s=0.5)

    async def go() -> list[Verdict]:
        programs = [CHEATS[name].replace("@ENTRY@", row["entry_point"]) for row in problems]
        return await asyncio.gather(
            *(judge(p, all_tests(humaneval(row, 0)), limits) for p, row in zip(programs, problems, strict=True))
        )

    assert [verdict for verdict in asyncio.run(go()) if verdict.ok] == []


@pytest.mark.parametrize("all_items", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_humaneval_references_pass(all_items: int) -> None:
    problems = rows("humaneval/HumanEval.jsonl")[::all_items]

    async def go() -> list[Verdict]:
        return await asyncio.gather(
            *(judge(row["prompt"] + row["canonical_solution"], all_tests(humaneval(row, 0))) for row in problems)
        )

    verdicts = asyncio.run(go())
    assert [problems[i]["task_id"] for i, verdict in enumerate(verdicts) if not verdict.ok] == []
    assert len(verdicts) == -(-164 // all_items)


@pytest.mark.parametrize("all_items", [20, pytest.param(4, marks=pytest.mark.slow)])
def test_mbpp_references_pass(all_items: int) -> None:
    """The benchmark runs all 974."""
    problems = rows("mbpp/mbpp.jsonl")[::all_items]

    async def go() -> list[Verdict]:
        return await asyncio.gather(*(judge(row["code"], all_tests(mbpp(row, 0))) for row in problems))

    verdicts = asyncio.run(go())
    assert sum(verdict.ok for verdict in verdicts) >= len(problems) - 1, [
        verdict for verdict in verdicts if not verdict.ok
    ]


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.dates()
    | st.datetimes()
    | st.timedeltas(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


def types_of(value: Any) -> Any:
    if isinstance(value, dict):
        return dict, [(types_of(k), types_of(v)) for k, v in value.items()]
    return (type(value), [types_of(v) for v in value]) if isinstance(value, list | tuple) else type(value)


@settings(max_examples=60, deadline=None)
@given(plain)
def test_plain_values_cross_unchanged(value: Any) -> None:
    back = codec.decode(codec.encode(value))
    assert back == value
    assert types_of(back) == types_of(value)


def test_containers_cross_by_name() -> None:
    for value in (
        collections.Counter("aab"), collections.OrderedDict(b=1, a=2), collections.deque([1, 2], maxlen=3), {1, 2},
        frozenset({3}), range(1, 9, 2), decimal.Decimal("1.10"), fractions.Fraction(1, 3), bytearray(b"x"),
        datetime.time(1, 2), 10**700, 7**2000, int,
    ):  # fmt: skip
        back = codec.decode(codec.encode(value))
        assert back == value
        assert type(back) is type(value)


@pytest.mark.parametrize(
    "data",
    [
        {"t": "no such type", "v": 1}, {"t": "tuple"}, {"t": ["tuple"], "v": []}, {"t": "set", "v": [[1]]}, {"x": 1},
        {"t": "Decimal", "v": "x"}, {"t": "range", "v": [1, 2, 0]}, {"t": "ref", "v": 0}, {"t": "type", "v": "exec"},
        {"t": "like", "v": 0}, {"t": "like", "v": [0]}, {"t": "like", "v": [0, 1, 2]},
    ],
)  # fmt: skip
def test_what_means_no_value_is_refused(data: Any) -> None:
    with pytest.raises(codec.CodecError):
        codec.decode(data)


def test_cycles_and_strangers_are_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(codec.CodecError):
        codec.encode(cycle)
    with pytest.raises(codec.CodecError):
        codec.encode(object())
