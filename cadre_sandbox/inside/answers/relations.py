"""Parse names, and inequalities of names and numbers."""

import re
from collections.abc import Sequence

import sympy

from .brackets import Tokens, matching, trimmed, without_scripts
from .reader import read
from .shapes import Inequality, Items, Region, Shape
from .tokens import Unreadable, canonical
from .vocabulary import FLIPPED, GREEK

DERIVATIVE = re.compile(r"\\fracd[a-z]?d[a-z]")
NAMING = GREEK | set("()[]{},|'^*") | {r"\angle", r"\triangle", r"\overline", r"\hat", r"\bar", r"\vec", r"\top"}
KINDS_OF_NAMES = ("letter", "word", "text")


def is_name(tokens: Tokens) -> bool:
    """Return True if the tokens are only a name: `x`, `f(x)`, `m_{\\max}`, `AB`, `(x, y)`, `\\angle ABC`, "area"."""
    main = list(without_scripts(tokens))
    if called(main) or DERIVATIVE.fullmatch(re.sub("[{} ]", "", canonical(main))):
        return True
    if not main or len(main) > 16 or not all(token.kind in KINDS_OF_NAMES or token.text in NAMING for token in main):
        return False
    first = main[0]
    if first.text == "(":
        return any(token.text == "," for token in main)
    if first.kind == "letter" or first.text in GREEK:
        return len(main) == 1 or main[1].text in ("(", "'", "^") or all(token.text.isupper() for token in main)
    return (
        first.kind == "text" or first.text in (r"\angle", r"\triangle", r"\overline", "|", "[") or first.text.isupper()
    )


def called(tokens: Tokens) -> bool:
    """Return True if the tokens are a letter with arguments: `f(2)`, `P(A)`."""
    return (
        len(tokens) > 3
        and tokens[0].kind == "letter"
        and tokens[1].text == "("
        and matching(tokens, 1) == len(tokens) - 1
    )


def is_lettered(name: Tokens) -> bool:
    """Return True if a name is one letter, with arguments or without, or a tuple of such."""
    first = name[0]
    is_single = len(name) == 1 or name[1].kind not in KINDS_OF_NAMES
    return (first.kind == "letter" and is_single) or first.text in GREEK or first.text == "("


def combined(regions: Sequence[Region], joined_by_or: bool, joined_by_and: bool) -> Region:
    """Combine several conditions on one number; those joined by a comma are alternatives if they exclude each other."""
    points = [region.points for region in regions]
    both = sympy.Intersection(*points)
    either = joined_by_or or (both is sympy.S.EmptySet and not joined_by_and)
    return Region(sympy.Union(*points) if either else both, regions[0].name)


def compared(parts: Sequence[Tokens], relations: Sequence[str]) -> Shape:
    """Parse inequalities; they are a region if they bound one name by numbers."""
    triples = [(parts[index], relation, parts[index + 1]) for index, relation in enumerate(relations)]
    bounds = [bound(*triple) for triple in triples]
    names = {region.name for region in bounds if region}
    if all(bounds) and len(names) == 1:
        return combined([region for region in bounds if region], False, True)
    shapes = tuple(inequality(*triple) for triple in triples)
    return shapes[0] if len(shapes) == 1 else Items(shapes)


def bound(left_side: Tokens, relation: str, right_side: Tokens) -> Region | None:
    """Return the region of an inequality of a name and a number; None for any other."""
    if is_name(right_side) and not is_name(left_side):
        return bound(right_side, FLIPPED[relation], left_side)
    if not is_name(left_side):
        return None
    end = read(trimmed(right_side))
    if end.free_symbols:
        return None
    if left_side[0].text == left_side[-1].text == "|":
        above, below = half_line(relation, end), half_line(FLIPPED[relation], -end)
        join = sympy.Union if relation in (">", r"\ge") else sympy.Intersection
        return Region(join(above, below), canonical(left_side[1:-1]))
    return Region(half_line(relation, end), canonical(left_side))


def half_line(relation: str, end: sympy.Expr) -> sympy.Set:
    if end.is_extended_real is False:
        raise Unreadable("a bound that is no real number")
    below = sympy.Interval(-sympy.oo, end, True, relation != r"\le")
    above = sympy.Interval(end, sympy.oo, relation != r"\ge", True)
    if relation == r"\ne":
        return sympy.Union(below, above)
    return below if relation in ("<", r"\le") else above


def inequality(left_side: Tokens, relation: str, right_side: Tokens) -> Inequality:
    if relation in ("<", r"\le"):
        left_side, right_side = right_side, left_side
    return Inequality(read(left_side) - read(right_side), relation in "<>", relation == r"\ne")
