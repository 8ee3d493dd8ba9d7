"""From tokens to a value with its unit."""

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
    """The value that the tokens are, in every reading of theirs. Raises Unreadable."""
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
    return Value(readings_of(core), measure, decimals, digits)


def readings_of(core: Tokens) -> tuple[Expr, ...]:
    """What the tokens mean, first as a mathematician would have it."""
    bare_log = any(token.text == r"\log" for token in core)
    slashed = any(token.text == "/" for token in core)
    customs = [
        Custom(tight, log)
        for tight in ((True, False) if slashed else (True,))
        for log in ((None, 10) if bare_log else (None,))
    ]
    return tuple(dict.fromkeys(read(core, custom) for custom in customs))


def without_currency(tokens: Tokens) -> tuple[Tokens, Measure]:
    """The tokens without the sign of a currency in front, and that currency."""
    place = 1 if tokens and tokens[0].text in "+-" else 0
    if place < len(tokens) and tokens[place].text in CURRENCIES:
        return [*tokens[:place], *tokens[place + 1 :]], measured(CURRENCIES[tokens[place].text])
    return tokens, NONE


def fractions_of_units(tokens: Tokens) -> Tokens:
    """`\\frac{\\text{m}}{\\text{s}}` at the end as one text."""
    texts = [token.text for token in tokens[-7:] if token.kind == "text"]
    others = [token.text for token in tokens[-7:] if token.kind != "text"]
    if len(texts) != 2 or others != [r"\frac", *"{}{}"]:
        return tokens
    return [*tokens[:-7], Token("text", "/".join(texts))]


def unit_start(tokens: Tokens) -> int:
    """Where the unit begins that the tokens end with; their number where there is none."""
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token.text in CLOSERS) - (token.text in CLOSING)
        if place and depth == 0 and begins_unit(tokens, place):
            if all(is_of_unit(tokens, other) for other in range(place, len(tokens))):
                return place
            if tokens[place].kind == "text":
                raise Unreadable("text between numbers")
    return len(tokens)


def begins_unit(tokens: Tokens, place: int) -> bool:
    token = tokens[place]
    if token.kind == "text" or token.text in ("%", r"\cent"):
        return True
    if token.kind == "word":
        return singular(token.text) in UNMISTAKABLE or (token.spaced and len(token.text) > 2)
    rest = [other.text for other in tokens[place : place + 4]]
    is_degree = rest[:2] == ["^", r"\circ"] or rest == ["^", "{", r"\circ", "}"]
    return is_degree and not any(other.text in FUNCTIONS for other in tokens[:place])


def is_of_unit(tokens: Tokens, place: int) -> bool:
    token = tokens[place]
    if token.kind == "number":
        return tokens[place - 1].text in ("^", "{", "-")
    return token.kind in ("text", "word", "letter") or token.text in IN_UNITS or token.text in TRAILING


def text_of(unit: Tokens) -> str:
    """The tokens of a unit as text that `measured` reads."""
    parts = [TRAILING.get(token.text, token.text) for token in unit if token.text not in "{}"]
    text = " ".join(parts).replace(r"\cdot", " ").replace(r"\times", " ")
    return re.sub(r"\^\s*\\circ", "°", text)


def decimal_of(core: Tokens) -> tuple[int | None, int]:
    """Digits behind the point and significant digits of a decimal fraction; (None, 0) for anything else."""
    number = core[-1].text if core and core[-1].kind == "number" else ""
    signed = len(core) == 1 or (len(core) == 2 and core[0].text in "+-")
    if not signed or "." not in number or "e" in number.lower():
        return None, 0
    whole, _, behind = number.partition(".")
    return len(behind), len((whole + behind).lstrip("0"))


def repeated(core: Tokens) -> Expr | None:
    """A decimal fraction without an end: `0.1\\overline{6}`, `0.333\\ldots`."""
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
    """The number that begins with the digits `start` and goes on with `period` again and again."""
    behind = len(start.partition(".")[2])
    return Rational(start.removesuffix(".") or "0") + Rational(int(period), (10 ** len(period) - 1) * 10**behind)
