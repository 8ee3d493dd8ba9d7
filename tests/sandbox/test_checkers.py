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

from cadre.rewards.code import humaneval_tests, judge, mbpp_tests
from cadre.sandbox import Limits, default
from cadre.sandbox.attacks.cheats import CHEATS
from cadre.sandbox.checkers import Verdict, check_calls, check_stdio, check_tests
from cadre.sandbox.compare import same_output
from cadre.sandbox.inside import codec
from tests.sandbox.data import rows

QUICK = Limits(wall_s=5.0, cpu_s=5.0, memory_mb=512)
SQUARE = "def square(x):\n    return x * x"


def verdict_on(program: str, tests: str, **options: Any) -> Verdict:
    return asyncio.run(check_tests(default(), program, tests, limits=QUICK, **options))


def test_stdin_and_stdout() -> None:
    program = "a, b = map(int, input().split())\nprint(a + b)"
    verdict = asyncio.run(check_stdio(default(), program, [("1 2", "3"), ("2 2\n", "4\n\n"), ("1 1", "3")]))
    assert (verdict.passed, verdict.total, verdict.ok, verdict.status) == (2, 3, False, "ok")
    assert "printed '2\\n'" in verdict.failures[0]


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("  1  2 ", "1 2", True),
        ("0.3333333", "0.33333333", True),
        ("1e-7", "0.0", True),
        ("3", "3.0", True),
        ("3.0000001", "3", False),  # an integer is expected exactly
        ("1 2 3", "1 2", False),
        ("YES", "yes", False),
        ("nan", "0.5", False),
        ("inf", "1e300", False),
        ("9" * 5000, "9" * 5000, True),
        ("", "1", False),
    ],
)
def test_tolerance_of_outputs(got: str, expected: str, same: bool) -> None:
    assert same_output(got, expected) is same


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
    endless = check_tests(default(), "while True: pass", "assert f() == 1", limits=Limits(wall_s=0.5))
    assert asyncio.run(endless).status == "timeout"
    assert "ZeroDivisionError" in verdict_on("1 / 0", "assert f() == 1").failures[0]
    assert verdict_on("def f(): return [0] * 10**10", "assert f() == 1").passed == 0


def test_partial_credit_survives_a_hang() -> None:
    program = "def f(x):\n    while x > 1: pass\n    return x"
    limits = Limits(wall_s=1.0, cpu_s=1.0)
    verdict = asyncio.run(check_tests(default(), program, "assert f(1) == 1\nassert f(2) == 2", limits=limits))
    assert (verdict.passed, verdict.total, verdict.status) == (1, 2, "timeout")


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_pass_nothing(name: str) -> None:
    """On twenty problems of HumanEval that need different kinds of answers."""
    problems = rows("humaneval/HumanEval.jsonl")[::8]
    limits = Limits(wall_s=1.5, cpu_s=1.5)

    async def go() -> list[Verdict]:
        programs = [CHEATS[name].replace("@ENTRY@", row["entry_point"]) for row in problems]
        return await asyncio.gather(
            *(judge(p, humaneval_tests(row), limits) for p, row in zip(programs, problems, strict=True))
        )

    assert [verdict for verdict in asyncio.run(go()) if verdict.ok] == []


def test_humaneval_references_pass() -> None:
    problems = rows("humaneval/HumanEval.jsonl")

    async def go() -> list[Verdict]:
        return await asyncio.gather(
            *(judge(row["prompt"] + row["canonical_solution"], humaneval_tests(row)) for row in problems)
        )

    verdicts = asyncio.run(go())
    assert [problems[i]["task_id"] for i, one in enumerate(verdicts) if not one.ok] == []
    assert len(verdicts) == 164


def test_mbpp_references_pass() -> None:
    """One in four here; the benchmark runs all 974."""
    problems = rows("mbpp/mbpp.jsonl")[::4]

    async def go() -> list[Verdict]:
        return await asyncio.gather(*(judge(row["code"], mbpp_tests(row)) for row in problems))

    verdicts = asyncio.run(go())
    assert sum(one.ok for one in verdicts) >= len(problems) - 1, [one for one in verdicts if not one.ok]


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


@settings(max_examples=150, deadline=None)
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
