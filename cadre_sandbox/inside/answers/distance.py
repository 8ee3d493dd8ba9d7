"""How far two expressions are apart, by numbers that are put in for their letters."""

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
    """How far two expressions are apart at most, relatively, with numbers put in for their letters. None where they
    cannot be computed."""
    largest = 0.0
    for point in points(first, second):
        one, other = (expression.subs(point).evalf(DIGITS) for expression in (first, second))
        if not (one.is_number and other.is_number and one.is_finite and other.is_finite):
            return None
        size = max(abs(one), abs(other))
        largest = max(largest, float(abs(one - other) / size) if size else 0.0)
    return largest


def points(first: Expr, second: Expr) -> list[dict[Expr, Expr]]:
    """What is put in for the letters of two expressions: small numbers above 0, and where something is rounded, greater
    or an absolute value, which has several parts, numbers of both signs and many sizes, whole ones among them; whole
    ones alone where letters that count are rounded."""
    letters = sorted(first.free_symbols | second.free_symbols, key=str)
    if not letters:
        return [{}]
    values, tries = POINTS, TRIES
    if any(one.has(sympy.floor, sympy.ceiling, sympy.Abs, sympy.Max, sympy.Min) for one in (first, second)):
        rounded = any(one.has(sympy.floor, sympy.ceiling) for one in (first, second))
        counted = rounded and all(str(letter)[0] in COUNTED for letter in letters)
        values, tries = WHOLE if counted else BENT, TRIES_IN_PARTS
    return [
        {letter: values[(place + 3 * shift) % len(values)] for place, letter in enumerate(letters)}
        for shift in range(tries)
    ]
