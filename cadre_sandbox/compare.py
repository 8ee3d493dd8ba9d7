"""Compare a program's output with the expected one, with the usual tolerances of graders of such tasks."""

import math
import re
from decimal import Decimal

TOLERANCE = 1e-6
DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d{1,3})?", re.ASCII)
MAX_NUMBER = 400  # characters, enough for any float printed in full; longer tokens are compared as text


def same_output(got: str, expected: str) -> bool:
    """Return True if the outputs are equal line by line or word by word.

    Lines are compared without surrounding space and without empty lines at the end. Words may differ by 1e-6,
    absolutely or relatively, where a decimal fraction is expected; an integer may be written as a decimal: `4.0`.
    """
    if lines(got) == lines(expected):
        return True
    got_words, expected_words = got.split(), expected.split()
    return len(got_words) == len(expected_words) and all(
        same_word(got_word, expected_word) for got_word, expected_word in zip(got_words, expected_words, strict=True)
    )


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def same_word(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if not (is_number(got) and is_number(expected)):
        return False
    # Integers are compared exactly: a float would round those above 2**53.
    if not any(mark in expected for mark in ".eE"):
        return Decimal(got) == Decimal(expected)
    value, target = float(got), float(expected)
    return math.isfinite(target) and abs(value - target) <= TOLERANCE * max(1.0, abs(target))


def is_number(word: str) -> bool:
    return len(word) <= MAX_NUMBER and DECIMAL.fullmatch(word) is not None
