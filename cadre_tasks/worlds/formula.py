"""Expressions over whole numbers, as in answers of language models: read strictly, computed within bounds.

`parse("2*x + 3", ("x",))` gives an expression, or None for what is none; `value(expression, {"x": 4})` gives 11, or
None where it has no value (a division by zero) or one beyond BOUND. Nothing is evaluated as Python: the text is read
into a tree, and only the nodes that are named here mean something. Truth is 1 and 0.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping

LONGEST = 300  # letters; no law is longer than 120
BOUND = 10**12
POWERS = range(5)
OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
SIGNS: dict[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "abs": abs}


class NoValue(Exception):
    """An expression has no value here, or one beyond the bound."""


def parse(text: str, names: Collection[str]) -> ast.expr | None:
    """Return a text as an expression over the names, or None if it is none."""
    if len(text) > LONGEST or not text.isascii():
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return tree if readable(tree, names) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def readable(tree: ast.AST, names: Collection[str]) -> bool:
    """Return True if every node belongs to the grammar."""
    match tree:
        case ast.Constant(value=int(number)):
            return abs(number) <= BOUND
        case ast.Name(id=name):
            return name in names
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=inner):
            return readable(inner, names)
        case ast.BinOp(left=left, op=sign, right=right):
            # Only a small constant exponent, so that no power grows beyond what a step can compute.
            small = isinstance(right, ast.Constant) and right.value in POWERS
            is_allowed = type(sign) in OPERATORS and (not isinstance(sign, ast.Pow) or small)
            return is_allowed and readable(left, names) and readable(right, names)
        case ast.BoolOp(values=values):
            return all(readable(it, names) for it in values)
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return type(sign) in SIGNS and readable(left, names) and readable(right, names)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return all(readable(it, names) for it in (test, body, orelse))
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as values, keywords=[]):
            fits = name in FUNCTIONS and (len(values) == 1) == (name == "abs")
            return fits and all(readable(it, names) for it in values)
    return False


def value(tree: ast.expr, inputs: Mapping[str, int]) -> int | None:
    """Return the expression's value, or None if it has none."""
    try:
        return computed(tree, inputs)
    except (NoValue, ZeroDivisionError, RecursionError):
        return None


def computed(tree: ast.AST, inputs: Mapping[str, int]) -> int:
    """Return the value of a readable expression. Raises NoValue beyond the bound, and ZeroDivisionError."""
    # Checked at every node, so that intermediate values stay small too.
    number = int(_computed(tree, inputs))
    if abs(number) > BOUND:
        raise NoValue
    return number


def _computed(tree: ast.AST, inputs: Mapping[str, int]) -> int:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return inputs[name]
        case ast.UnaryOp(op=sign, operand=inner):
            number = computed(inner, inputs)
            return int(not number) if isinstance(sign, ast.Not) else -number if isinstance(sign, ast.USub) else number
        case ast.BinOp(left=left, op=sign, right=right):
            return OPERATORS[type(sign)](computed(left, inputs), computed(right, inputs))
        case ast.BoolOp(op=sign, values=values):
            truths = [bool(computed(it, inputs)) for it in values]
            return all(truths) if isinstance(sign, ast.And) else any(truths)
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return SIGNS[type(sign)](computed(left, inputs), computed(right, inputs))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return computed(body if computed(test, inputs) else orelse, inputs)
        case ast.Call(func=ast.Name(id=name), args=values):
            return FUNCTIONS[name](*(computed(it, inputs) for it in values))
    raise NoValue
