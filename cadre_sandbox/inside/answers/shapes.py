"""The kinds of answers: a value, words, a list, coordinates, an interval, an equation ..."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from .measures import NONE, Measure

VALUELESS = (sympy.nan, sympy.zoo)  # what 0/0 and 1/0 come to
INFINITE = (*VALUELESS, sympy.oo, -sympy.oo)


@dataclass(frozen=True)
class Value:
    """A quantity: the expressions that it may be read as, its unit, and how many digits it gives if it is a decimal.

    For example `Value((Rational(27, 10),), NONE, 1, 2)` for 2.7.
    """

    readings: tuple[Expr, ...]
    measure: Measure = NONE
    decimals: int | None = None  # digits behind the point of a decimal fraction
    digits: int = 0  # its significant digits


@dataclass(frozen=True)
class Words:
    """An answer in words, in lower case and without spaces; `product` where it may be one of letters too."""

    text: str
    product: Value | None = None


@dataclass(frozen=True)
class Items:
    """Several answers. `brackets` is "" for a list, "{}" for a set; "()", "[]", "(]", "[)", "<>" are of some order.

    `alternatives`: "or" joins them, so that they may be one answer in several forms.
    """

    items: tuple[Shape, ...]
    brackets: str = ""
    alternatives: bool = False


@dataclass(frozen=True)
class Region:
    """A set of numbers that is more than a list of them; `name` is what lies in it, where that is said."""

    points: sympy.Set
    name: str = ""


@dataclass(frozen=True)
class Equation:
    """Sides that are equal. `name` is the first side where that is only a name, and then not among the sides.

    `lettered`: the name is one letter, perhaps with arguments, not a run of capitals or words.
    """

    name: str
    sides: tuple[Shape, ...]
    lettered: bool = True
    difference: Expr | None = None  # of two sides that are expressions


@dataclass(frozen=True)
class Inequality:
    """`above > 0`, or `>= 0` where it is not strict, or `!= 0` where it is `unequal`."""

    above: Expr
    strict: bool
    unequal: bool = False


@dataclass(frozen=True)
class Matrix:
    """Rows of entries; a `determinant` stands between bars."""

    rows: tuple[tuple[Shape, ...], ...]
    determinant: bool = False


@dataclass(frozen=True)
class Based:
    """Digits with the base that they are of: 52_8."""

    digits: str
    base: int


@dataclass(frozen=True)
class Ratio:
    """Terms with colons between: 3 : 4."""

    terms: tuple[Shape, ...]


Shape = Value | Words | Items | Region | Equation | Inequality | Matrix | Based | Ratio


def region_of(shape: Shape) -> Region | None:
    """Return a shape as a set of numbers: an interval, the members of a set or list, a number; None for any other."""
    if isinstance(shape, Region):
        return shape
    items = shape if isinstance(shape, Items) else Items((shape,))
    ends = [item.readings[0] for item in items.items if isinstance(item, Value)]
    if len(ends) != len(items.items) or any(end.is_extended_real is False or end.has(*VALUELESS) for end in ends):
        return None
    if items.brackets in ("", "{}"):
        return Region(sympy.FiniteSet(*ends))
    if len(ends) != 2 or items.brackets not in ("()", "(]", "[)", "[]"):
        return None
    return Region(sympy.Interval(*ends, items.brackets[0] == "(", items.brackets[1] == ")"))


def pieces(points: sympy.Set) -> list[sympy.Set]:
    """Return the intervals and single points of a set, in ascending order; none if it has other parts or NaN."""
    parts = points.args if isinstance(points, sympy.Union) else (points,)
    is_readable = all(isinstance(part, sympy.Interval | sympy.FiniteSet) and not part.has(*VALUELESS) for part in parts)
    return sorted(parts, key=lowest) if is_readable else []


def lowest(part: sympy.Set) -> tuple[Any, ...]:
    """Return a sort key for the lower end of a piece; `inf` fails if it cannot tell a number from 0."""
    ends = part.args if isinstance(part, sympy.FiniteSet) else (part.start,)
    return min(sympy.default_sort_key(end.evalf()) for end in ends)


def listed_rows(shape: Shape) -> tuple[tuple[Shape, ...], ...]:
    """Return the rows of a list of lists, as Python prints a matrix; none for any other shape."""
    rows = shape.items if isinstance(shape, Items) and shape.brackets == "[]" else ()
    listed = tuple(row.items for row in rows if isinstance(row, Items) and row.brackets == "[]")
    return listed if len(listed) == len(rows) else ()


def finite(term: Expr) -> bool:
    """Return True if a term of a ratio is finite, so that others can be multiplied by it."""
    return not term.has(*INFINITE)
