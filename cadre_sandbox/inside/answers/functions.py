"""The constants and functions that are known by name, as sympy has them."""

from collections.abc import Callable

import sympy
from sympy import Expr, Function

CONSTANTS: dict[str, Expr] = {r"\pi": sympy.pi, r"\infty": sympy.oo, "e": sympy.E, "i": sympy.I}
TRIGONOMETRIC: dict[str, Callable[..., Expr]] = {
    r"\sin": sympy.sin, r"\cos": sympy.cos, r"\tan": sympy.tan, r"\cot": sympy.cot, r"\sec": sympy.sec,
    r"\csc": sympy.csc,
}  # fmt: skip
INVERSE: dict[str, Callable[..., Expr]] = {
    r"\sin": sympy.asin, r"\cos": sympy.acos, r"\tan": sympy.atan, r"\cot": sympy.acot, r"\sec": sympy.asec,
    r"\csc": sympy.acsc,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Expr]] = {
    **TRIGONOMETRIC, r"\arcsin": sympy.asin, r"\arccos": sympy.acos, r"\arctan": sympy.atan, r"\sinh": sympy.sinh,
    r"\cosh": sympy.cosh, r"\tanh": sympy.tanh, r"\ln": sympy.log, r"\log": sympy.log, r"\exp": sympy.exp,
    r"\cis": lambda angle: sympy.exp(sympy.I * angle), r"\lg": lambda value: sympy.log(value, 10),
    r"\abs": sympy.Abs, r"\floor": sympy.floor, r"\ceil": sympy.ceiling,
}  # fmt: skip
OF_SEVERAL: dict[str, Callable[..., Expr]] = {
    r"\max": sympy.Max, r"\min": sympy.Min, r"\gcd": Function("gcd"), r"\lcm": Function("lcm"),
}  # fmt: skip
