"""Compares a program's output with the expected one, with the tolerances that graders of such tasks usually have."""

import math
import re
from decimal import Decimal

TOLERANCE = 1e-6
DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d{1,3})?", re.ASCII)
MAX_NUMBER = 40  # longer tokens are compared as text


def same_output(got: str, expected: str) -> bool:
    """Equal line by line, apart from space around the lines and empty ones at the end; or equal word by word, where
    a word that is expected to be a decimal fraction may differ by 1e-6, absolutely or relatively, and a whole number
    may be written as one: `4.0` for `4`.
    """
    if lines(got) == lines(expected):
        return True
    ours, theirs = got.split(), expected.split()
    return len(ours) == len(theirs) and all(same_word(one, other) for one, other in zip(ours, theirs, strict=True))


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def same_word(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if not (is_number(got) and is_number(expected)):
        return False
    if not is_fraction(expected):
        return Decimal(got) == Decimal(expected)
    value, wanted = float(got), float(expected)
    return math.isfinite(wanted) and abs(value - wanted) <= TOLERANCE * max(1.0, abs(wanted))


def is_number(word: str) -> bool:
    return len(word) <= MAX_NUMBER and DECIMAL.fullmatch(word) is not None


def is_fraction(word: str) -> bool:
    return any(mark in word for mark in ".eE")
