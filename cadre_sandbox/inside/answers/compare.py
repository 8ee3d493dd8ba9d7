"""Compare two shapes. The first is the gold answer; it alone decides what an answer may leave out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy
from sympy import Expr

from .distance import DIGITS, distance
from .measures import measured
from .shapes import (
    VALUELESS,
    Based,
    Equation,
    Inequality,
    Items,
    Matrix,
    Ratio,
    Region,
    Shape,
    Value,
    Words,
    finite,
    listed_rows,
    pieces,
    region_of,
)

PERCENT, DEGREES, RADIANS = measured("%"), measured("°"), measured("radian")
DEGREES_A_RADIAN = 180 / sympy.pi
ZERO, ONE, HUNDREDTH = sympy.Integer(0), sympy.Integer(1), sympy.Rational(1, 100)
Verify = Callable[[Expr, Expr], bool]
SAME, NEAR = 1e-40, 1e-9
FLOAT_DIGITS, NOISE = 12, 1e-12
ENOUGH_DIGITS = 6  # of a decimal fraction that stands for a number without an end


@dataclass(frozen=True)
class Comparison:
    """Compares shapes. `verify` returns math-verify's verdict on two expressions; numbers may differ by `tolerance`."""

    verify: Verify
    tolerance: float = 0.0

    def same(self, gold: Shape, answer: Shape) -> bool:
        """Return True if the answer is equivalent to the gold answer."""
        if isinstance(gold, Equation) or isinstance(answer, Equation):
            return self.same_equation(gold, answer)
        if isinstance(gold, Matrix) and (rows := listed_rows(answer)):
            return self.same_matrix(gold, Matrix(rows))
        if isinstance(answer, Matrix) and (rows := listed_rows(gold)):
            return self.same_matrix(Matrix(rows), answer)
        if isinstance(gold, Region) or isinstance(answer, Region):
            return self.same_region(gold, answer)
        if isinstance(gold, Items) or isinstance(answer, Items):
            return self.same_items(gold, answer)
        match gold, answer:
            case Value(), Value():
                return self.same_value(gold, answer)
            case Words(), Words():
                return gold.text == answer.text
            case (Words(product=Value() as product), Value() as other) | (
                Value() as product,
                Words(product=Value() as other),
            ):
                return self.same_value(product, other)
            case Matrix(), Matrix():
                return self.same_matrix(gold, answer)
            case Ratio(), _:
                return self.same_ratio(gold, answer)
            case Value(), Ratio(terms=(_, _)):
                return self.same_ratio(answer, gold)
            case Based(), Value():
                return gold.digits == str(answer.readings[0])  # the question says to what base
            case Value(), Based(base=10):
                return str(gold.readings[0]) == answer.digits
            case Inequality(), Inequality():
                factor = self.multiple(gold.above, answer.above)
                alike = (gold.strict, gold.unequal) == (answer.strict, answer.unequal)
                return alike and factor is not None and (gold.unequal or bool(factor > 0))
        return gold == answer

    # --- equations and regions ---

    def same_equation(self, gold: Shape, answer: Shape) -> bool:
        if isinstance(gold, Equation) and isinstance(answer, Equation):
            if gold.name and gold.name == answer.name:
                return self.all_same(gold.sides[-1], answer.sides)
            first, second = gold.difference, answer.difference
            return first is not None and second is not None and self.multiple(first, second) is not None
        if isinstance(answer, Equation):
            return self.all_same(gold, answer.sides)
        assert isinstance(gold, Equation)
        if gold.name:
            return (gold.lettered or is_quantity(gold.sides[-1])) and self.same(gold.sides[-1], answer)
        return is_quantity(gold.sides[-1]) and self.all_same(answer, gold.sides)

    def all_same(self, gold: Shape, sides: Sequence[Shape]) -> bool:
        return all(self.same(gold, side) for side in sides)

    def multiple(self, first: Expr, second: Expr) -> Expr | None:
        """Return the number by which the first is multiplied to give the second; None if there is none."""
        if first == 0 or second == 0 or first.free_symbols != second.free_symbols:
            return None
        factor = sympy.simplify(second / first)
        return factor if factor.is_number and factor.is_finite and factor != 0 else None

    def same_region(self, gold: Shape, answer: Shape) -> bool:
        first, second = region_of(gold), region_of(answer)
        if first is None or second is None:
            return False
        if first.name and second.name and first.name != second.name:
            return False
        return self.same_points(first.points, second.points)

    def same_points(self, gold: sympy.Set, answer: sympy.Set) -> bool:
        """Return True if two sets have the same pieces, with equal ends."""
        first, second = pieces(gold), pieces(answer)
        return gold == answer or (len(first) == len(second) > 0 and all(map(self.same_piece, first, second)))

    def same_piece(self, gold: sympy.Set, answer: sympy.Set) -> bool:
        if not (isinstance(gold, sympy.Interval) and isinstance(answer, sympy.Interval)):
            return bool(gold == answer)
        alike = (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
        return alike and self.equal(gold.start, answer.start) and self.equal(gold.end, answer.end)

    # --- several answers ---

    def same_items(self, gold: Shape, answer: Shape) -> bool:
        if not isinstance(gold, Items) and isinstance(answer, Items) and answer.alternatives:
            return self.all_same(gold, answer.items)
        first, second = coordinates(as_items(gold), as_items(answer))
        if first.brackets == second.brackets == "{}":
            return self.covers(first.items, second.items) and self.covers(second.items, first.items)
        if not may_stand_for(first.brackets, second.brackets, len(first.items)):
            return False
        if first.brackets in ("", "{}"):
            unmatched = list(second.items)
            for item in first.items:
                index = next((index for index, candidate in enumerate(unmatched) if self.same(item, candidate)), None)
                if index is None:
                    return False
                del unmatched[index]
            return not unmatched
        return len(first.items) == len(second.items) and all(map(self.same, first.items, second.items))

    def covers(self, gold: Sequence[Shape], answer: Sequence[Shape]) -> bool:
        """Return True if every item of the first is in the second."""
        return all(any(self.same(item, candidate) for candidate in answer) for item in gold)

    def same_matrix(self, gold: Matrix, answer: Matrix) -> bool:
        shapes = [[len(row) for row in matrix.rows] for matrix in (gold, answer)]
        if shapes[0] != shapes[1] or gold.determinant != answer.determinant:
            return False
        return all(
            self.same(*pair) for rows in zip(gold.rows, answer.rows, strict=True) for pair in zip(*rows, strict=True)
        )

    def same_ratio(self, gold: Ratio, answer: Shape) -> bool:
        """3 : 4 is 6 : 8, and as a fraction 3/4."""
        first = [plain(term) for term in gold.terms]
        second = (
            [plain(term) for term in answer.terms] if isinstance(answer, Ratio) else [plain(answer), sympy.Integer(1)]
        )
        if len(first) != len(second) or not all(map(finite, first + second)):
            return False
        if self.equal(first[0], ZERO) or self.equal(second[0], ZERO):  # products with it are 0, whatever the others are
            return all(map(self.equal, first, second))
        return all(
            self.equal(first[0] * answer_term, gold_term * second[0])
            for gold_term, answer_term in zip(first, second, strict=True)
        )

    # --- values ---

    def same_value(self, gold: Value, answer: Value) -> bool:
        for size in sizes(gold, answer):
            for first in gold.readings:
                for second in answer.readings:
                    scaled = second * size if size != 1 else second
                    if self.equal(first, scaled) or (size == 1 and rounds(gold, answer, first, second)):
                        return True
        return False

    def equal(self, first: Expr, second: Expr) -> bool:
        """Return True if two expressions are equal, by math-verify and by numbers inserted for their letters.

        An expression without a value, such as 0/0, compares unequal to everything, itself included.
        """
        if first.has(*VALUELESS) or second.has(*VALUELESS):
            return False
        if first == second:
            return True
        if first.is_Rational and second.is_Rational:
            return self.tolerance > 0 and abs(first - second) <= self.tolerance
        difference = distance(first, second)
        if difference is None:
            return self.verify(first, second)
        if self.tolerance and not first.free_symbols and not second.free_symbols:
            return abs(complex(first - second)) <= self.tolerance
        return difference < SAME or (difference < NEAR and self.verify(first, second))


def sizes(gold: Value, answer: Value) -> list[Expr]:
    """Return the factors that may convert the answer to the gold answer's unit; none if the units differ in kind."""
    gold_unit, answer_unit = gold.measure, answer.measure
    if gold_unit.kinds == answer_unit.kinds:
        return [sympy.Rational(answer_unit.size / gold_unit.size)]
    if {gold_unit, answer_unit} == {DEGREES, RADIANS}:
        return [DEGREES_A_RADIAN if gold_unit == DEGREES else 1 / DEGREES_A_RADIAN]
    if not (gold_unit.bare or answer_unit.bare):
        return []
    if answer_unit == PERCENT:
        return [HUNDREDTH, *([ONE] if all(reading.is_number and abs(reading) > 1 for reading in gold.readings) else [])]
    return [
        ONE,
        *{PERCENT: [1 / HUNDREDTH], DEGREES: [DEGREES_A_RADIAN]}.get(gold_unit, []),
        *([1 / DEGREES_A_RADIAN] if answer_unit == DEGREES else []),
    ]


def rounds(gold: Value, answer: Value, first: Expr, second: Expr) -> bool:
    """Return True if one is a decimal fraction of at least six digits to which the other, without an end, rounds.

    Floats of other programs may differ in their last digits.
    """
    decimals = [value.decimals if value.digits >= ENOUGH_DIGITS else None for value in (gold, answer)]
    most_decimals = max((count for count in decimals if count is not None), default=0)
    if (
        most_decimals < ENOUGH_DIGITS
        or not (first.is_real and second.is_real)
        or first.free_symbols | second.free_symbols
    ):
        return False
    difference = abs(sympy.N(first - second, DIGITS))
    if most_decimals >= FLOAT_DIGITS and difference <= NOISE * abs(first):
        return True
    exact = gold.decimals is None or answer.decimals is None
    return exact and bool(difference <= sympy.Rational(1, 2 * 10**most_decimals))


def is_quantity(shape: Shape) -> bool:
    """Return True if a shape contains a number, so that it is an answer without the name in front of it."""
    if isinstance(shape, Value):
        return all(bool(reading.atoms(sympy.Number)) for reading in shape.readings)
    return isinstance(shape, Items | Region | Matrix)


def plain(shape: Shape) -> Expr:
    """Return the expression of a value; NaN for anything else."""
    return shape.readings[0] if isinstance(shape, Value) else sympy.nan


def as_items(shape: Shape) -> Items:
    """Return a shape as a list, of one item if need be; a vector as coordinates."""
    if isinstance(shape, Items):
        return shape
    if isinstance(shape, Matrix) and not shape.determinant and (len(shape.rows) == 1 or len(shape.rows[0]) == 1):
        return Items(tuple(cell for row in shape.rows for cell in row), "()")
    return Items((shape,))


def may_stand_for(gold: str, answer: str, count: int) -> bool:
    """Return True if one kind of brackets may replace another: any for a list, none that makes another interval."""
    if gold == answer or (gold == "" and (answer == "{}" or count != 2)):
        return True
    if gold == "{}":
        return answer == ""
    return answer in ("()", "[]", "<>") and gold in ("()", "[]", "<>") and (count > 2 or "<>" in (gold, answer))


def names_of(items: Items) -> list[str]:
    """Return the name of each item of a list, as in `x = 1`; an empty text for an item without a name."""
    return [item.name if isinstance(item, Equation) else "" for item in items.items]


def distinct(names: list[str]) -> bool:
    """Return True if all items have different names, so that their values could be coordinates."""
    return len(names) > 1 and all(names) and len(set(names)) == len(names)


def coordinates(gold: Items, answer: Items) -> tuple[Items, Items]:
    """Return both lists; if only one has names, `x = 1, y = 2`, its values become coordinates: `(1, 2)`."""
    if gold.brackets == "()" and distinct(names_of(answer)):
        return gold, in_order(answer)
    if gold.brackets or not distinct(names_of(gold)) or any(names_of(answer)):
        return gold, answer
    return in_order(gold) if answer.brackets else Items(gold.items, "()"), Items(answer.items, "()")


def in_order(items: Items) -> Items:
    """Return named values as coordinates, in the order of their names."""
    ordered = sorted(zip(names_of(items), items.items, strict=True), key=lambda pair: pair[0])
    return Items(tuple(item.sides[-1] for _, item in ordered if isinstance(item, Equation)), "()")
