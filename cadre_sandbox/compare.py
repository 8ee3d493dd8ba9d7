"""Compare a program's output with the expected one, with the usual tolerances of graders of such tasks."""

import math
import re
from decimal import Decimal
from itertools import chain
from typing import Literal

Comparison = Literal["words", "contests", "lines"]
DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d{1,3})?", re.ASCII)
MAX_NUMBER = 400  # characters, enough for any float printed in full; longer tokens are compared as text


def same_output(got: str, expected: str, comparison: Comparison = "words") -> bool:
    """Return True if the outputs are equal line by line or word by word.

    Lines are compared without surrounding space and without empty lines at the end. Words may differ by 1e-6,
    absolutely or relatively, where a decimal fraction is expected; an integer may be written as a decimal: `4.0`.
    With `contests`, as CodeContests' tester has it, the case of letters does not count and words may differ by 1e-5;
    with `lines`, as LiveCodeBench's, words stand in the same line and numbers are equal as decimals.
    """
    if comparison == "contests":
        got, expected = got.casefold(), expected.casefold()
    if lines(got) == lines(expected):
        return True
    tolerance = {"words": 1e-6, "contests": 1e-5, "lines": 0.0}[comparison]
    parts = (map(str.split, lines(text)) if comparison == "lines" else [text.split()] for text in (got, expected))
    got_lines, expected_lines = map(list, parts)
    return [*map(len, got_lines)] == [*map(len, expected_lines)] and all(
        same_word(got_word, expected_word, tolerance)
        for got_word, expected_word in zip(chain(*got_lines), chain(*expected_lines), strict=True)
    )


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def same_word(got: str, expected: str, tolerance: float) -> bool:
    if got == expected:
        return True
    if not (is_number(got) and is_number(expected)):
        return False
    # Integers are compared exactly: a float would round those above 2**53.
    if not tolerance or not any(mark in expected for mark in ".eE"):
        return Decimal(got) == Decimal(expected)
    value, target = float(got), float(expected)
    return math.isfinite(target) and abs(value - target) <= tolerance * max(1.0, abs(target))


def is_number(word: str) -> bool:
    return len(word) <= MAX_NUMBER and DECIMAL.fullmatch(word) is not None
