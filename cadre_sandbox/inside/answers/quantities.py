"""Parse tokens into a value with its unit."""

import re

from sympy import Expr, Rational

from .brackets import Tokens
from .functions import FUNCTIONS
from .measures import NONE, UNMISTAKABLE, Measure, measured, singular
from .reader import Custom, read
from .shapes import Value
from .tokens import Token, Unreadable
from .vocabulary import CLOSERS, CLOSING

CURRENCIES = {"$": "dollar", r"\euro": "euro", r"\pounds": "sterling", "¥": "yen", "₹": "rupee"}
TRAILING = {"%": "%", r"\cent": "¢"}
IN_UNITS = frozenset("^{}/*.-'") | {r"\cdot", r"\times", r"\circ"}
REPEATING = (r"\overline", r"\bar", r"\dot")
ENOUGH_THREES = 3


def valued(tokens: Tokens) -> Value:
    """Return the value of the tokens, with all of its readings. Raises Unreadable."""
    tokens, money = without_currency(fractions_of_units(tokens))
    start = unit_start(tokens)
    core, unit = tokens[:start], tokens[start:]
    measure = measured(text_of(unit)) if unit else money
    if unit and not money.bare and measure.kinds not in ((), money.kinds):
        raise Unreadable("two units")
    measure = measure if money.bare else money
    repeating = repeated(core)
    if repeating is not None:
        return Value((repeating,), measure)
    decimals, digits = decimal_of(core)
    # First the reading of a mathematician.
    bare_log = any(token.text == r"\log" for token in core)
    slashed = any(token.text == "/" for token in core)
    customs = [
        Custom(tight, log)
        for tight in ((True, False) if slashed else (True,))
        for log in ((None, 10) if bare_log else (None,))
    ]
    return Value(tuple(dict.fromkeys(read(core, custom) for custom in customs)), measure, decimals, digits)


def without_currency(tokens: Tokens) -> tuple[Tokens, Measure]:
    """Return the tokens without the currency sign in front, and that currency."""
    index = 1 if tokens and tokens[0].text in "+-" else 0
    if index < len(tokens) and tokens[index].text in CURRENCIES:
        return [*tokens[:index], *tokens[index + 1 :]], measured(CURRENCIES[tokens[index].text])
    return tokens, NONE


def fractions_of_units(tokens: Tokens) -> Tokens:
    """Replace `\\frac{\\text{m}}{\\text{s}}` at the end by one text."""
    texts = [token.text for token in tokens[-7:] if token.kind == "text"]
    commands = [token.text for token in tokens[-7:] if token.kind != "text"]
    if len(texts) != 2 or commands != [r"\frac", *"{}{}"]:
        return tokens
    return [*tokens[:-7], Token("text", "/".join(texts))]


def unit_start(tokens: Tokens) -> int:
    """Return the index at which the unit at the end of the tokens begins; their number if there is no unit."""
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token.text in CLOSERS) - (token.text in CLOSING)
        if index and depth == 0 and begins_unit(tokens, index):
            if all(is_of_unit(tokens, later) for later in range(index, len(tokens))):
                return index
            if tokens[index].kind == "text":
                raise Unreadable("text between numbers")
    return len(tokens)


def begins_unit(tokens: Tokens, index: int) -> bool:
    token = tokens[index]
    if token.kind == "text" or token.text in ("%", r"\cent"):
        return True
    if token.kind == "word":
        return singular(token.text) in UNMISTAKABLE or (token.spaced and len(token.text) > 2)
    rest = [later.text for later in tokens[index : index + 4]]
    is_degree = rest[:2] == ["^", r"\circ"] or rest == ["^", "{", r"\circ", "}"]
    return is_degree and not any(later.text in FUNCTIONS for later in tokens[:index])


def is_of_unit(tokens: Tokens, index: int) -> bool:
    token = tokens[index]
    if token.kind == "number":
        return tokens[index - 1].text in ("^", "{", "-")
    return token.kind in ("text", "word", "letter") or token.text in IN_UNITS or token.text in TRAILING


def text_of(unit: Tokens) -> str:
    """Return the tokens of a unit as text for `measured`."""
    parts = [TRAILING.get(token.text, token.text) for token in unit if token.text not in "{}"]
    text = " ".join(parts).replace(r"\cdot", " ").replace(r"\times", " ")
    return re.sub(r"\^\s*\\circ", "°", text)


def decimal_of(core: Tokens) -> tuple[int | None, int]:
    """Return the decimal places and the significant digits of a decimal fraction; (None, 0) for anything else."""
    number = core[-1].text if core and core[-1].kind == "number" else ""
    signed = len(core) == 1 or (len(core) == 2 and core[0].text in "+-")
    if not signed or "." not in number or "e" in number.lower():
        return None, 0
    integer_digits, _, decimal_digits = number.partition(".")
    return len(decimal_digits), len((integer_digits + decimal_digits).lstrip("0"))


def repeated(core: Tokens) -> Expr | None:
    """Return a repeating decimal, `0.1\\overline{6}` or `0.333\\ldots`; None for anything else."""
    sign = -1 if core and core[0].text == "-" else 1
    core = core[1:] if core and core[0].text in "+-" else core
    if len(core) < 2 or core[0].kind != "number" or "." not in core[0].text:
        return None
    start = core[0].text
    if [token.text for token in core[1:]] == [r"\ldots"]:
        last = start[-1]
        period = last if start.endswith(last * ENOUGH_THREES) and last.isdigit() else ""
    else:
        inner = [token for token in core[2:] if token.text not in "{}"]
        period = inner[0].text if core[1].text in REPEATING and len(inner) == 1 else ""
    return sign * endless(start, period) if period.isdigit() else None


def endless(start: str, period: str) -> Rational:
    """Return the decimal that begins with the digits `start` and repeats `period`."""
    behind = len(start.partition(".")[2])
    return Rational(start.removesuffix(".") or "0") + Rational(int(period), (10 ** len(period) - 1) * 10**behind)
