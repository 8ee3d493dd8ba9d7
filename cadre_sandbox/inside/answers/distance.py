"""Measure the difference of two expressions by inserting numbers for their letters."""

from __future__ import annotations

import sympy
from sympy import Expr

POINTS = [sympy.Rational(part, 100) for part in (37, 171, 293, 519, 83, 337, 761, 113, 241, 59)]
WHOLE = list(map(sympy.Integer, (2, 5, 3, 10, 4, 31, 7, 6, 57, 12, 101)))
BENT = [sympy.Rational(part, 100) for part in (37, -171, 5100, 300, -4037, 83, 1200, -600, 761, -59, 2350)]
COUNTED = "ijklmnpqKMN"  # letters that stand for whole numbers where a rounding is looked at
TRIES, TRIES_IN_PARTS = 4, 11
DIGITS = 50


def distance(first: Expr, second: Expr) -> float | None:
    """Return the largest relative difference of two expressions over several numbers for their letters.

    Returns None if they cannot be computed.
    """
    largest = 0.0
    for point in points(first, second):
        first_value, second_value = (expression.subs(point).evalf(DIGITS) for expression in (first, second))
        if not (first_value.is_number and second_value.is_number and first_value.is_finite and second_value.is_finite):
            return None
        size = max(abs(first_value), abs(second_value))
        largest = max(largest, float(abs(first_value - second_value) / size) if size else 0.0)
    return largest


def points(first: Expr, second: Expr) -> list[dict[Expr, Expr]]:
    """Return the numbers to insert for the letters of two expressions.

    They are small and positive. Expressions with a rounding, a maximum or an absolute value have several parts and get
    numbers of both signs and many sizes, integers among them; if all letters count something, integers alone.
    """
    letters = sorted(first.free_symbols | second.free_symbols, key=str)
    if not letters:
        return [{}]
    values, tries = POINTS, TRIES
    if any(
        expression.has(sympy.floor, sympy.ceiling, sympy.Abs, sympy.Max, sympy.Min) for expression in (first, second)
    ):
        rounded = any(expression.has(sympy.floor, sympy.ceiling) for expression in (first, second))
        counted = rounded and all(str(letter)[0] in COUNTED for letter in letters)
        values, tries = WHOLE if counted else BENT, TRIES_IN_PARTS
    return [
        {letter: values[(index + 3 * shift) % len(values)] for index, letter in enumerate(letters)}
        for shift in range(tries)
    ]
