"""Parse tokens into a shape. Every function raises Unreadable for tokens that are not of its kind."""

import itertools
from collections.abc import Sequence

import sympy

from .brackets import Tokens, among, listed, matching, split, trimmed, turned_round
from .quantities import valued
from .reader import read
from .relations import combined, compared, is_lettered, is_name
from .shapes import Equation, Items, Matrix, Region, Shape, Value, region_of
from .tokens import Token, Unreadable, canonical
from .vocabulary import FLIPPED, FOREIGN, RELATIONS
from .words import based, ratio, worded

NUMBER_SETS = {
    r"\mathbb{R}": sympy.S.Reals, r"\R": sympy.S.Reals, r"\mathbb{Z}": sympy.S.Integers,
    r"\mathbb{N}": sympy.S.Naturals, r"\emptyset": sympy.S.EmptySet,
}  # fmt: skip
MAX_ITEMS, MAX_SIGNS = 64, 3
ROWS = ("cases", "aligned", "align", "align*", "gathered", "split")


def shape_of(tokens: Tokens) -> Shape:
    """Return the shape of the tokens."""
    tokens = trimmed(turned_round(tokens))
    if not tokens:
        raise Unreadable("nothing")
    parts, joined_by_or = listed(tokens)
    if len(parts) == 1:
        return one_shape(parts[0])
    shapes = [shape for part in parts for shape in items_of(part)]
    if len(shapes) > MAX_ITEMS:
        raise Unreadable("too many items")
    regions = [shape for shape in shapes if isinstance(shape, Region)]
    if len(regions) == len(shapes) == len(parts):
        return combined(regions, joined_by_or, any(token.text.lower() == "and" for token in tokens))
    return Items(tuple(shapes), alternatives=joined_by_or)


def items_of(part: Tokens) -> tuple[Shape, ...]:
    """Return one item of a list, or the several that `\\pm` makes of it."""
    shape = one_shape(part)
    return shape.items if isinstance(shape, Items) and not shape.brackets else (shape,)


def one_shape(tokens: Tokens) -> Shape:
    """Return the shape of tokens that are no list."""
    if not tokens or split(tokens, lambda token: token.text in FOREIGN)[1]:
        raise Unreadable("nothing, or a relation that is not looked into")
    if any(token.text == r"\pm" for token in tokens) and not is_set(tokens):
        return Items(tuple(shape_of(version) for version in signs(tokens)))
    if split(tokens, among(*RELATIONS))[1]:
        parts, relations = split(tokens, among(*RELATIONS))
        if not all(parts):
            raise Unreadable("a relation without a side")
        if relations == [r"\in"]:
            return contained(parts[0], parts[1])
        if set(relations) <= {"=", r"\approx"}:
            return equated(parts, relations)
        if set(relations) <= FLIPPED.keys():
            return compared(parts, relations)
        raise Unreadable("relations of several kinds")
    for kind in (united, framed, bracketed, worded, based, ratio):
        shape = kind(tokens)
        if shape is not None:
            return shape
    return valued(tokens)


def is_set(tokens: Tokens) -> bool:
    return tokens[0].text == r"\{" and matching(tokens, 0) == len(tokens) - 1


def signs(tokens: Tokens) -> list[Tokens]:
    """Return the tokens with each `\\pm` as plus and as minus; `\\mp` is the opposite of the sign before it."""
    indices = [index for index, token in enumerate(tokens) if token.text == r"\pm"]
    if len(indices) > MAX_SIGNS:
        raise Unreadable("too many signs")
    return [
        signed(tokens, dict(zip(indices, combination, strict=True)))
        for combination in itertools.product("+-", repeat=len(indices))
    ]


def signed(tokens: Tokens, chosen: dict[int, str]) -> Tokens:
    changed, latest = list(tokens), "+"
    for index, token in enumerate(tokens):
        latest = chosen.get(index, latest)
        if token.text == r"\pm":
            changed[index] = Token("mark", latest)
        elif token.text == r"\mp":
            changed[index] = Token("mark", "-" if latest == "+" else "+")
    return changed


def contained(name: Tokens, rest: Tokens) -> Shape:
    """Parse a name and the region or set that contains it."""
    shape = shape_of(rest)
    if not is_name(name):
        raise Unreadable("not a name")
    region = None if isinstance(shape, Items) and shape.brackets == "{}" else region_of(shape)
    return Region(region.points, canonical(name)) if region else Equation(canonical(name), (shape,))


def equated(parts: Sequence[Tokens], relations: Sequence[str]) -> Shape:
    """Parse a chain of equal sides; a side that is only approximately equal to the one before it is left out."""
    sides = [parts[0]] + [part for part, sign in zip(parts[1:], relations, strict=True) if sign == "="]
    if is_name(parts[0]) and len(sides) == 1:
        sides = list(parts)
    if len(sides) == 1:
        return shape_of(sides[0])
    if len(sides) == 2 and is_name(sides[1]) and not is_name(sides[0]):
        sides.reverse()
    side_difference = difference(sides)
    if is_name(sides[0]):
        return Equation(
            canonical(sides[0]), tuple(shape_of(part) for part in sides[1:]), is_lettered(sides[0]), side_difference
        )
    return Equation("", tuple(shape_of(part) for part in sides), False, side_difference)


def difference(sides: Sequence[Tokens]) -> sympy.Expr | None:
    """Return the first of two sides minus the second; None if one of them is no expression."""
    try:
        return read(sides[0]) - read(trimmed(sides[1])) if len(sides) == 2 else None
    except Unreadable:
        return None


def united(tokens: Tokens) -> Region | None:
    """Parse unions and differences of intervals, sets and number sets."""
    parts, operations = split(tokens, among(r"\cup", r"\setminus"))
    if len(tokens) == 1 and tokens[0].text in NUMBER_SETS:
        return Region(NUMBER_SETS[tokens[0].text])
    if not operations:
        return None
    regions = [region_of(shape_of(part)) for part in parts]
    points = [region.points for region in regions if region]
    if len(points) != len(parts):
        raise Unreadable("a union of what is no set")
    total = points[0]
    for operation, more in zip(operations, points[1:], strict=True):
        total = sympy.Union(total, more) if operation == r"\cup" else sympy.Complement(total, more)
    return Region(total)


def framed(tokens: Tokens) -> Shape | None:
    """Parse matrices, with a number in front or not, and systems of equations."""
    start = next((index for index, token in enumerate(tokens) if token.text == r"\begin"), None)
    if start is None or matching(tokens, start) != len(tokens) - 1:
        return None
    fence = tokens[start + 1].text
    rows = [row for row in split(tokens[start + 2 : -1], among("\\\\"))[0] if row]
    if fence in ROWS and start == 0:
        return Items(tuple(shape_of([token for token in row if token.text != "&"]) for row in rows))
    if not fence.endswith(("matrix", "array")):
        raise Unreadable(f"an environment {fence}")
    cells = tuple(tuple(shape_of(cell) for cell in split(row, among("&"))[0]) for row in rows)
    return Matrix(scaled(cells, tokens[:start]), fence == "vmatrix")


def scaled(rows: tuple[tuple[Shape, ...], ...], factor: Tokens) -> tuple[tuple[Shape, ...], ...]:
    """Multiply the entries by the number in front of the matrix."""
    if not factor:
        return rows
    number = sympy.Integer(-1) if canonical(factor) == "-" else read(factor)
    return tuple(tuple(multiplied(cell, number) for cell in row) for row in rows)


def multiplied(cell: Shape, number: sympy.Expr) -> Value:
    if not isinstance(cell, Value):
        raise Unreadable("a matrix of what are no numbers")
    return Value(tuple(number * reading for reading in cell.readings))


def bracketed(tokens: Tokens) -> Shape | None:
    """Parse coordinates, intervals, sets, and a single shape in brackets."""
    if tokens[0].text not in ("(", "[", r"\{", r"\langle") or matching(tokens, 0) != len(tokens) - 1:
        return None
    brackets = (tokens[0].text + tokens[-1].text).replace("\\langle", "<").replace("\\rangle", ">").replace("\\", "")
    inner = tokens[1:-1]
    if brackets == "{}" and not inner:
        return Region(sympy.S.EmptySet)
    if not inner:
        raise Unreadable("nothing between brackets")
    if brackets == "{}" and (condition := condition_of(inner)):
        return condition
    parts = split(inner, among(",", ";"))[0]
    if len(parts) == 1 and (brackets == "()" or inner[0].text == r"\begin"):
        return shape_of(inner)
    return Items(tuple(shape for part in parts for shape in items_of(trimmed(part))), brackets)


def condition_of(tokens: Tokens) -> Region | None:
    """Parse a set that is given by a condition: `x \\mid x > 3`."""
    for bar in ("|", ":"):
        parts = split(tokens, among(bar))[0]
        if len(parts) == 2 and is_name(split(parts[0], among(r"\in"))[0][0]):
            shape = shape_of(parts[1])
            return Region(shape.points) if isinstance(shape, Region) else None
    return None
