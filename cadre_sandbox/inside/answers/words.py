"""Answers in words: numbers, sets and choices too; times of the day, digits with a base, ratios."""

import re

import sympy

from .brackets import Tokens, is_comma, split
from .quantities import valued
from .shapes import Based, Ratio, Region, Shape, Value, Words
from .tokens import Token
from .vocabulary import NUMERALS

SPOKEN_SETS = {
    "allrealnumbers": sympy.S.Reals, "allreals": sympy.S.Reals, "realnumbers": sympy.S.Reals,
    "allintegers": sympy.S.Integers, "integers": sympy.S.Integers, "emptyset": sympy.S.EmptySet,
    "nosolution": sympy.S.EmptySet, "nosolutions": sympy.S.EmptySet, "norealsolution": sympy.S.EmptySet,
    "norealsolutions": sympy.S.EmptySet,
}  # fmt: skip
CHOICE = re.compile(r"(?:choice|option|answer):?\(?([a-z])\)?")
CLOCK = re.compile(r"\d{1,2}(:\d\d)+([ap]m)?")
AFTER_A_FACTOR = frozenset("+*/^=<>!|)_'")


def worded(tokens: Tokens) -> Shape | None:
    """Parse words, numbers and sets in words, and times of the day; None for anything else."""
    if not all(token.kind in ("word", "text", "letter", "number") or token.text in ".,:'!?-\"()" for token in tokens):
        return None
    text = loose(tokens)
    # Of two numbers with a colon, only one that no ratio has makes a time: 6:05 is not 12:10.
    if CLOCK.fullmatch(text) and (text[-1] == "m" or text.count(":") > 1 or ":0" in text):
        return Words(text.lstrip("0"))
    if tokens[0].kind == "number" or not is_spoken(tokens):
        return None
    if (number := text.replace("-", "")) in NUMERALS:
        return Value((sympy.Integer(NUMERALS.index(number)),))
    if text in SPOKEN_SETS:
        return Region(SPOKEN_SETS[text])
    letters = len(tokens) == 1 and tokens[0].kind == "word" and re.fullmatch("[a-z]{2,3}", tokens[0].text)
    if choice := CHOICE.fullmatch(text):
        return Value((sympy.Symbol(choice[1].upper(), real=True),))
    return Words(text, valued(tokens) if letters else None)


def is_spoken(tokens: Tokens) -> bool:
    """Return True if there is a word: text, or a run of letters that is more than a product of two."""
    return any(is_text(token) or (token.kind == "word" and len(token.text) > 2) for token in tokens) or any(
        token.text.lower() in ("no", "on", "or") for token in tokens
    )


def is_text(token: Token) -> bool:
    return token.kind == "text" and len(token.text) > 1


def loose(tokens: Tokens) -> str:
    """Return the tokens as text in lower case, without an article, spaces and stops."""
    text = " ".join(token.text for token in tokens).lower()
    text = re.sub(r"^(an?|the) (?=\w\w)", "", re.sub(r"(?<!\d)\.|\.(?!\d)|[,!?'\"]", "", text).strip())
    return "".join(text.split())


def based(tokens: Tokens) -> Shape | None:
    """Parse digits with a base, 52_8; None for anything else."""
    indices = [index for index, token in enumerate(tokens) if token.text == "_"]
    prefix = [token for token in tokens[: indices[0]] if token.text not in "()-"] if indices else []
    if len(indices) != 1 or not any(token.kind == "number" for token in prefix):
        return None
    digits = "".join(token.text for token in prefix).lower()
    name = "".join(token.text for token in tokens[indices[0] + 1 :] if token.text not in "{}").lower()
    base = NUMERALS.index(name) if name in NUMERALS else int(name) if name.isdigit() and len(name) < 3 else 0
    if not digits.isalnum() or base < 2:
        return None
    return Based("-" * (tokens[0].text == "-") + digits.lstrip("0"), base)


def ratio(tokens: Tokens) -> Ratio | None:
    """Parse terms separated by colons; None for anything else."""
    parts = split(tokens, lambda token: token.text == ":" or (token.kind != "command" and token.text == "to"))[0]
    return Ratio(tuple(valued(part) for part in parts)) if len(parts) > 1 and all(parts) else None


def labelled(tokens: Tokens) -> tuple[Tokens, Tokens] | None:
    """Return the letter of a choice and its value if an answer gives both: `(C) 27`, `C. 27`; else None."""
    texts = [token.text for token in tokens[:4]]
    start = 3 if texts[:1] == ["("] and texts[2:3] == [")"] else 2 if texts[1:2] and texts[1] in ").:" else 0
    rest = tokens[start:]
    has_value = any(token.kind in ("number", "text") for token in rest)
    if not (start and has_value and rest[0].spaced) or is_comma(rest[0]) or rest[0].text in AFTER_A_FACTOR:
        return None
    letter = tokens[start - 2]
    return ([letter], rest) if len(letter.text) == 1 and letter.text.isupper() else None
