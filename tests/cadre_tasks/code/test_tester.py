"""Rewards of tests: exploits without tests, asserts that look at values alone, blocks of huge texts."""

import asyncio
import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cadre_sandbox.checkers import Verdict
from cadre_tasks.code import inspect, source, tester
from cadre_tasks.code.judge import LIMITS, StdioTests, Tests, UnitTests, extract_code, fenced, judge
from cadre_tasks.code.tester import Worth
from cadre_tasks.data.records import CodingProblem
from tests.helpers.slow import few_of

HACKS = [json.loads(line) for line in Path(__file__).with_name("hacks.jsonl").read_text().splitlines()]
# A comment and a blank line of the reference's own, which no mutant has.
REFERENCE = "# adds\n\n\ndef add(a=0, b=0):\n    # the sum\n    return a + b"
PROBLEM = CodingProblem(
    "add", "Add two numbers.", "add", tests="assert add(1, 2) == 3\nassert add(5, 0) == 5", names=("add",),
    reference=REFERENCE,
)  # fmt: skip


def worth_of(text: str, problem: CodingProblem = PROBLEM, right: str = REFERENCE) -> Worth:
    async def judged() -> Worth:
        return await tester.worth(await tester.written(text, problem), problem, right, 4)

    return asyncio.run(judged())


def test_honest_tests_are_paid_in_full() -> None:
    assert sum(worth_of("assert add(2, 2) == 4\nassert add(1, 0) == 1").parts.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("hack", few_of(HACKS, HACKS[::6]), ids=lambda hack: hack["name"])
def test_what_tests_nothing_is_paid_for_being_a_test_at_most(hack: dict[str, str]) -> None:
    text = "```python\n" + hack["text"].replace("@ENTRY@", "add") + "\n```"
    assert sum(worth_of(text).parts.values()) <= 0.2 + 1e-9


@pytest.mark.parametrize(
    ("test", "counts"),
    [
        ("add(1, 2) == 3", True),
        ("abs(add(0.1, 0.2) - 0.3) < 1e-9", True),
        ("math.isclose(add(0.1, 0.2), 0.3)", True),
        ("sorted([add(1, x) for x in range(3)], key=lambda y: -y) == [3, 2, 1]", True),
        ("all(add(a, b) == a + b for a, b in zip([1, 2], [3, 4]))", True),
        ("str(add(1, 2)).upper() == '3' and not isinstance(add(1, 2), str)", True),
        ("add(*[1], **{'b': 2}) in {3: 4}", True),
        ("Counter([add(1, 2)])[3] == 1", True),
        ("add(1, 2) == three", False),
        ("add(1, 2).__class__ is int", False),
        ("getattr(add, 'x', 1)", False),
        ("open('/etc/passwd') or add(1, 2)", False),
        ("'{0.__code__}'.format(add)", False),
        ("math.sys or add(1, 2)", False),
        ("(x := add(1, 2)) == 3", False),
        ("(lambda: (yield add(1, 2)))()", False),
        ("f'{add!r}'", False),
        ("[vars for vars in [1]] == vars(add(1, 2))", False),
        ("[add for add in [len]] and add(1, 2) == 3", False),
        ("add == add", False),
    ],
)
def test_asserts_that_look_at_values_alone(test: str, counts: bool) -> None:
    asserts = source.asserts({"source": f"def test():\n    assert {test}, 'told'", "entry": "add", "shown": ""})
    assert bool(asserts) is counts
    assert "told" not in "".join(asserts)


SHOWN = CodingProblem(
    "add", "Add two numbers, such as add(1,\n 2), not padd(2, 2).", "add", public=(([5, [0]], 5),), names=("add",),
    starter="def add(a, b):\n    \"\"\"\n    >>> add('x', \"(\")\n    'x('\n    \"\"\"\n",
)  # fmt: skip


@pytest.mark.parametrize(
    ("test", "is_own"),
    [
        ("add(2, 2) == 4", True),
        ("add( 1,2 ) == 3", False),
        ("add(1, 2) != 'x' and add(7, 7) == 14", False),
        ('add("x", "(") == "x("', False),
        ("add(5, [0]) == 5", False),
        ("add(5, [1]) == 5", True),
        ("all(add(a, b) == a + b for a, b in [(1, 2)])", True),  # the signature shows no call
    ],
)
def test_an_example_that_is_shown_is_no_test_of_ones_own(test: str, is_own: bool) -> None:
    result = asyncio.run(tester.written(f"assert {test}", SHOWN))
    assert (result is not None) is is_own


def test_an_input_that_differs_in_its_spaces_is_another_one() -> None:
    problem = CodingProblem("s", "Sum.", "", "", public=(("1 2\n", "3\n"),), hidden=(("3 4", "7"),))
    answer = "```input\n{}\n```\n```output\n3\n```"
    assert asyncio.run(tester.written(answer.format("12"), problem)) is not None
    assert asyncio.run(tester.written(answer.format("1  2 "), problem)) is None


@pytest.mark.parametrize("word", ["0_1", "+1", "01", "1.0", "1e0", "\uff11"])
def test_a_number_that_is_spelt_otherwise_is_the_shown_one(word: str) -> None:
    problem = CodingProblem("s", "Sum.", "", "", public=(("1 2\n", "3\n"),), hidden=(("3 4", "7"),))
    answer = f"```input\n{word} 2\n```\n```output\n3\n```"
    assert asyncio.run(tester.written(answer, problem)) is None
    assert asyncio.run(tester.written(answer.replace(word, "nan"), problem)) is not None


@pytest.mark.parametrize(("between", "paired"), [("**Output**", 1), ("Expected output:", 1), ("Then", 0)])
def test_a_title_may_stand_between_input_and_output(between: str, paired: int) -> None:
    assert len(tester.paired(f"```input\n4 4\n```\n{between}\n```output\n8\n```")) == paired


def test_any_of_many_tests_may_be_run() -> None:
    """Eight of nine, by a lot that hangs on all of them: a wrong one at the end is as likely to be run as any other."""
    remaining = set()
    for seed in range(100):
        tests = [f"{seed}-{position}" for position in range(9)]
        samples = tester.drawn(tests, SHOWN)
        assert (len(samples), samples) == (8, sorted(samples))
        remaining |= {test[-1] for test in set(tests) - set(samples)}
    assert remaining == set("012345678")
    assert tester.drawn(["a", "b"], SHOWN) == ["a", "b"]


def test_a_signature_shows_no_call() -> None:
    problem = CodingProblem("word", "A word.", "word", starter="def word():\n", names=("word",))
    assert asyncio.run(tester.written("assert word() == 'a'", problem)) is not None


def test_a_program_is_written_as_its_mutants_are() -> None:
    alike = source.plain({"source": REFERENCE})
    assert alike == "def add(a=0, b=0):\n    return a + b"
    for mutant in source.mutants({"source": REFERENCE, "count": 4}):
        assert len(mutant.splitlines()) == len(alike.splitlines())


def test_every_program_is_run_equally_often_in_an_order_that_the_tests_give(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []

    async def judge(program: str, tests: Tests) -> Verdict:
        recorded.append(program)
        return Verdict(1, 1, (), "ok")

    def order(tests: str) -> str:
        recorded.clear()
        asyncio.run(tester.repeated(list("rabcd"), UnitTests(tests), "name"))
        return "".join(recorded)

    monkeypatch.setattr(tester, "judge", judge)
    orders = [order(f"assert f({i})") for i in range(20)]
    assert {"".join(sorted(order)) for order in orders} == {"aabbccddrr"}
    assert len(set(orders)) > 15
    assert len({order.index("r") for order in orders}) > 3
    assert order("assert f(0)") == orders[0]


def test_a_verdict_that_changes_between_equal_runs_is_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    coin = itertools.cycle([0, 1, 1])

    async def judge(program: str, tests: Tests) -> Verdict:
        return Verdict(next(coin), 1, (), "ok")

    async def none(*_: object) -> list[str]:
        return []

    monkeypatch.setattr(tester, "judge", judge)
    monkeypatch.setattr(tester, "mutants", none)
    result = asyncio.run(tester.worth(UnitTests("assert add(1, 2) == 3"), PROBLEM, REFERENCE, 4))
    assert result == Worth(False)
    assert sum(result.parts.values()) == 0.0


def test_where_no_mutant_fails_a_program_that_does_nothing_is_the_wrong_one() -> None:
    """Neither program has an operator, a number or a return, so that there is no mutant."""
    same = "def same(x):\n    x"
    problem = CodingProblem("same", "Nothing.", "same", tests="assert same(1) is None", names=("same",), reference=same)
    assert asyncio.run(tester.mutants(problem, same, 4)) == []
    const = "def word():\n    x = 'a'\n    yield x"
    problem = CodingProblem(
        "word", "A word.", "word", tests="assert list(word()) == ['a']", names=("word",), reference=const
    )
    wrong = asyncio.run(tester.mutants(problem, const, 4))
    assert wrong == ["def word(*arguments, **keywords):\n    return None"]
    assert worth_of("assert word == word or word()", problem, const).parts["kills"] == 0.0
    assert worth_of("assert [*word()] == ['a']", problem, const).kills == 1.0


def test_two_problems_of_one_name_have_their_own_mutants() -> None:
    for name in ("first", "second"):
        right = f"def {name}(x):\n    return x + 1"
        problem = CodingProblem(
            "data-1", "One more.", name, tests=f"assert {name}(1) == 2", names=(name,), reference=right
        )
        wrong = asyncio.run(tester.mutants(problem, right, 2))
        assert wrong
        assert all(f"def {name}(" in mutant for mutant in wrong)


@pytest.mark.parametrize(
    "test", ["add(1, 2) is not None", "isinstance(add(7, 3), int)", "[add(n, n) for n in range(9)]"]
)
def test_a_test_that_no_value_fails_is_paid_for_being_a_test_alone(test: str) -> None:
    """Mutants are a - b, return None and two other defaults; the first and the second fail the problem's tests;
    the second answers with another type, so that it is none."""
    assert len(asyncio.run(tester.mutants(PROBLEM, REFERENCE, 4))) == 1
    result = worth_of(f"assert {test}")
    assert result == Worth(True, 1.0, 0.0)
    assert result.parts == pytest.approx({"valid": 0.2, "agrees": 0.0, "kills": 0.0})
    assert Worth(True, 0.5).parts == pytest.approx({"valid": 0.2, "agrees": 0.2, "kills": 0.2})  # no wrong program


# By name: the right program, its test, and a call with its answer. + to - raises at every call, [1] to [2] at most, and
# n - 2 does not end for an odd n.
CRASHING = {
    "joined": ("return [0] + xs", "joined([1]) == [0, 1]", "joined([5, 6]) == [0, 5, 6]"),
    "second": ("return [xs[1]]", "second([1, 2]) == [2]", "second([5, 6]) == [6]"),
    "below": ("while xs != 0: xs = xs - 1\n    return [xs]", "below(3) == [0]", "below(5) == [0]"),
}


@pytest.mark.parametrize("name", CRASHING)
def test_a_mutant_that_any_call_shows_is_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistake: a test that looks at the type alone is paid for a crash, or a call without end."""
    monkeypatch.setattr(tester, "judge", partial(judge, limits=replace(LIMITS, cpu_s=0.5)))
    body, check, call = CRASHING[name]
    right = f"def {name}(xs):\n    {body}"
    problem = CodingProblem(name, "A list.", name, tests=f"assert {check}", names=(name,), reference=right)
    trivial = worth_of(f"assert isinstance({call.partition(' == ')[0]}, list)", problem, right)
    assert sum(trivial.parts.values()) == pytest.approx(0.2)
    assert sum(worth_of(f"assert {call}", problem, right).parts.values()) == pytest.approx(1.0)


def test_blocks_of_a_completion() -> None:
    text = "```bash\nls\n```\nthen\n```python title=x\na\n```\n```Python \nb = 1\n```\nend\n```py\nopen"
    assert [(block.mark, block.text) for block in fenced(text)] == [
        ("bash", "ls\n"), ("python", "a\n"), ("python", "b = 1\n"),
    ]  # fmt: skip
    assert extract_code(text) == "b = 1\n"


def test_pairs_are_neighbours() -> None:
    def pair(between: str) -> str:
        return f"```input\n1\n```{between}\n```output\n2\n```"

    script = CodingProblem("s", "Add.", hidden=(("5 5\n", "10\n"),))
    assert asyncio.run(tester.written(pair("\n \n"), script)) == StdioTests((("1\n", "2\n"),))
    assert asyncio.run(tester.written(pair("\nso"), script)) is None
    assert asyncio.run(tester.written("```output\n2\n```\n```input\n1\n```", script)) is None


@pytest.mark.parametrize(
    "part",
    few_of(
        ["```input\n", "```input\nx\n```\n", "```", "``` ", "``` \t", "\n```input \t", "```python\n"],
        ["```input\nx\n```\n", "```", "\n```input \t"],
    ),
)
def test_texts_that_break_expressions_take_no_longer_than_others(part: str) -> None:
    """A megabyte each; expressions that look for the end of each block again took hours."""
    text = part * (2**20 // len(part))
    script = CodingProblem("s", "Add.", hidden=(("5 5\n", "10\n"),))
    assert asyncio.run(tester.written(text, script)) is None
    assert len(extract_code(text)) <= len(text)
    spaces = "```" + " " * 2**20 + "x"
    assert extract_code(spaces) == spaces


@pytest.mark.parametrize(
    ("test", "is_own"),
    [
        ("root(n=9) == 3", False),
        ("root(3 * 3) == 3.0", False),
        ("root(*[9]) == 3", False),
        ("root(9, 2) == 3", False),  # the default, written out
        ("all(root(n) == 3 for n in [9, 9])", False),
        ("(lambda f: f(9))(root) == 3", False),
        ("root(root(256)) == 4", True),
        ("root(root(81)) == 3", False),
        ("root(9, power=1) == 9", True),
        ("all(root(n * n) == n for n in range(4, 9))", True),
        ("all(root(n * n) == n for n in range(5))", False),
        ("(root(16) == 4, root(5 + 4) == 3)[1]", False),  # beside another call, which nobody looks at
        ("root('nine') == 3", True),  # an error of its own
        ("root(9, 2, 3, 4) == 3", True),
    ],
)
def test_an_example_that_is_spelt_otherwise_is_no_test_of_ones_own(test: str, is_own: bool) -> None:
    """Examples are compared by the function's arguments, where a right program is known."""
    right = "def root(n, power=2):\n    return n if power == 1 else round(n ** (1 / power))"
    cases = (((4,), 2), ((27, 3), 3))
    problem = CodingProblem("r", "The root: root(9) is 3.", "root", hidden=cases, reference=right)
    assert (asyncio.run(tester.written(f"assert {test}", problem)) is not None) is is_own


def test_a_test_that_cannot_be_run_on_the_right_program_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without end; what is equal to nothing is another one."""
    monkeypatch.setattr(inspect, "LIMITS", replace(inspect.LIMITS, cpu_s=0.5))
    problem = CodingProblem("e", "Same: e(1) is 1.", "e", hidden=(((2,), 2),), reference="def e(n):\n    return n")
    for test, is_own in (
        ("e(sum(range(10 ** 12))) == 1", False),
        ("e(1) == e(2)", False),
        ("e(float('nan')) != 1", True),
    ):
        assert (asyncio.run(tester.written(f"assert {test}", problem)) is not None) is is_own


def test_containers_that_hold_the_same_are_one_argument() -> None:
    right = "def tot(n):\n    return sum(n)"
    problem = CodingProblem("t", "tot([1, 2]) is 3.", "tot", hidden=((([4],), 4),), reference=right)
    for arguments in (
        "(1, 2)",
        "{1, 2}",
        "range(1, 3)",
        "{1: 0, 2: 0}",
        "deque([1, 2])",
        "bytes([1, 2])",
        "bytearray([1, 2])",
    ):
        assert asyncio.run(tester.written(f"assert tot({arguments}) == 3", problem)) is None
    assert asyncio.run(tester.written("assert tot([2, 1]) == 3", problem)) is not None


def test_a_reference_may_print() -> None:
    right = "print('loaded')\ndef e(n):\n    print(n)\n    import os\n    os.write(1, b'x')\n    return n"
    problem = CodingProblem("p", "Same: e(1) is 1.", "e", hidden=(((2,), 2),), reference=right)
    assert asyncio.run(tester.written("assert e(2) == 2", problem)) is not None
    assert asyncio.run(tester.written("assert e(2 - 1) == 1", problem)) is None


@pytest.mark.parametrize(
    ("arguments", "expected", "is_own"),
    [("3 4", "7", False), ("03 +4", "7", False), ("3.0 4", "7", False), ("3 4\nx", "7", False), ("3 4\n5", "12", True)],
)
def test_a_shown_input_with_more_that_nobody_reads_is_none_of_ones_own(
    arguments: str, expected: str, is_own: bool
) -> None:
    problem = CodingProblem("s", "Sum.", "", "", public=(("3 4\n", "7\n"),), hidden=(("1 1", "2"),))
    answer = f"```input\n{arguments}\n```\n```output\n{expected}\n```"
    assert (asyncio.run(tester.written(answer, problem)) is not None) is is_own


# Each guard that a mutant turns round raises or answers what is equal to nothing, whatever it is called with.
GUARDED = "def add(a=0, b=0):\n" + "".join(
    f"    if {n} != {n}: {end}\n" for n in range(20) for end in ("raise ValueError", "return float('nan')")
)


@pytest.mark.parametrize(
    ("test", "kills"),
    [
        ("add(4, 4) == add(4, 4)", 0.0),
        ("[add(4, 4) for _ in range(3)]", 0.0),
        ("str(add(4, 4)) != ''", 0.0),
        ("add(4, 4) is not None", 0.0),
        ("add(4, 4) == 8", 1.0),
        ("add(0, 0) == 0", 0.5),  # the zero of its type is right here
    ],
)
def test_a_program_that_betrays_each_change_makes_no_test_a_good_one(test: str, kills: float) -> None:
    """Without a reference the coder's program is the right one, and its mutants hang on how that is written."""
    problem = CodingProblem("g", "Add two numbers.", "add", tests=PROBLEM.tests, names=("add",))
    result = worth_of(f"assert {test}", problem, GUARDED + "    return a + b")
    assert result == Worth(True, 1.0, kills)
