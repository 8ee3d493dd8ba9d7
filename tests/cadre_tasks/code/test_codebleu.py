"""CodeBLEU by hand, and behind the sandbox."""

import asyncio
from math import exp, log

import pytest

from cadre_tasks.code.codebleu import bleu, codebleu, flows, parsed, subtrees
from cadre_tasks.code.inspect import likeness

ADD = "def f(x):\n    y = x + 1\n    return y"


def test_bleu_by_hand() -> None:
    # 3 of 5 tokens, 1 of 4 pairs, none of 3 triples and 2 quadruples (0.1 each), and one token too few.
    actual, reference = "a b x y c".split(), "a b c d e f".split()
    expected = exp((1 - 6 / 5) + (log(3 / 5) + log(1 / 4) + log(0.1 / 3) + log(0.1 / 2)) / 4)
    assert bleu(actual, reference) == pytest.approx(expected)


def test_keywords_weigh_five_times_among_the_unigrams() -> None:
    # `return` (5) and `x` (1) are right, `y` (1) is not: 6 of 7 instead of 2 of 3.
    plain, weighted = (bleu("return x y".split(), "return x z".split(), weight) for weight in (1.0, 5.0))
    assert weighted / plain == pytest.approx(((6 / 7) / (2 / 3)) ** 0.25)


def test_subtrees_leave_names_and_values_out() -> None:
    tree = parsed("y = x + 1")
    assert tree is not None
    total = ("BinOp", ("Name",), ("Add",), ("Constant",))
    assignment = ("Assign", ("Name",), total)
    assert subtrees(tree) == {total: 1, assignment: 1, ("Module", assignment): 1}


def test_flows_by_hand() -> None:
    tree = parsed("def f(items):\n    total = 0\n    for one in items:\n        total += one\n    return len([total])")
    assert tree is not None
    # items is 0, total 1, one 2. `len` never got a value here.
    arguments: dict[tuple[object, ...], int] = {(0, ()): 1, (1, ()): 1, (2, (0,)): 1, (1, (1, 2)): 1}
    assert flows(tree) == {**arguments, (0,): 1, (1,): 2, (2,): 1}


def test_other_names_comments_and_layout_change_no_tree_and_no_flow() -> None:
    second = 'def f(x):\n    """Text."""\n    z = (x + 1)  # one more\n    return z'
    result = codebleu(ADD, second)
    assert (result["syntax"], result["flow"]) == (1.0, 1.0)
    assert result["bleu"] < 1.0
    assert codebleu(ADD, ADD.replace("y", "y "))["codebleu"] == pytest.approx(1.0)


def test_the_shares_of_the_reference_by_hand() -> None:
    result = codebleu(ADD, "def f(x):\n    return x + 1")
    reference = parsed(ADD)
    assert reference is not None
    assert subtrees(reference).total() == 6  # module, function, arguments, assignment, sum, return
    assert result["syntax"] == pytest.approx(2 / 6)  # arguments and sum
    assert flows(reference) == {(0, ()): 1, (1, (0,)): 1, (0,): 1, (1,): 1}
    assert result["flow"] == pytest.approx(2 / 4)  # x is given and read
    assert result["codebleu"] == pytest.approx((result["bleu"] + result["keywords"] + 2 / 6 + 2 / 4) / 4)


def test_a_part_that_the_reference_lacks_is_left_out() -> None:
    assert set(codebleu("print(1)", "print(1)")) == {"codebleu", "bleu", "keywords", "syntax"}
    assert codebleu("print(1)", "print(1)")["codebleu"] == pytest.approx(1.0)


def test_nothing_is_like_a_reference_that_is_no_python_3() -> None:
    assert asyncio.run(likeness("print 1", "print(1)")) == {}


def test_a_program_that_does_not_parse_has_its_tokens_only() -> None:
    result = codebleu(ADD, ADD + ")")
    assert (result["syntax"], result["flow"]) == (0.0, 0.0)
    assert 0.0 < result["codebleu"] < 0.5


@pytest.mark.parametrize("hostile", ["(" * 100_000, "-" * 100_000 + "1", "x\0y", ""])
def test_hostile_programs_are_worth_little_and_do_no_harm(hostile: str) -> None:
    assert asyncio.run(likeness(ADD, hostile))["codebleu"] < 0.1
    assert asyncio.run(likeness(ADD, ADD))["codebleu"] == pytest.approx(1.0)
