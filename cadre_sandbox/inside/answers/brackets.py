"""Split tokens at commas, relations and signs outside of brackets."""

import re
from collections.abc import Callable, Iterator, Sequence

from .tokens import Token, Unreadable
from .vocabulary import CLOSERS, CLOSING

Tokens = Sequence[Token]

CONJUNCTION = re.compile(r"[,;]?\s*(and|or)\s*[,;]?", re.IGNORECASE)


def matching(tokens: Tokens, start: int) -> int:
    """Return the index of the bracket that closes the one at `start`; `(0, 1]` is a pair too. Raises Unreadable."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += (tokens[index].text in CLOSERS) - (tokens[index].text in CLOSING)
        if depth == 0:
            return index
    raise Unreadable("a bracket is not closed")


def split(tokens: Tokens, is_separator: Callable[[Token], bool]) -> tuple[list[Tokens], list[str]]:
    """Return the parts between separators outside of brackets, and the separators. Raises Unreadable."""
    depth, start = 0, 0
    parts: list[Tokens] = []
    separators: list[str] = []
    for index, token in enumerate(tokens):
        depth += (token.text in CLOSERS) - (token.text in CLOSING)
        if depth < 0:
            break
        if depth == 0 and is_separator(token):
            parts.append(tokens[start:index])
            separators.append(token.text)
            start = index + 1
    if depth != 0:
        raise Unreadable("brackets that do not match")
    return [*parts, tokens[start:]], separators


def among(*signs: str) -> Callable[[Token], bool]:
    """Return a predicate: True if a token is one of the signs."""
    return lambda token: token.text in signs


def is_comma(token: Token) -> bool:
    """Return True for a separator of a list: a comma, a semicolon, "and", "or"."""
    if token.kind in ("text", "word"):
        return CONJUNCTION.fullmatch(token.text) is not None
    return token.text in (",", ";", r"\vee", r"\wedge")


def listed(tokens: Tokens) -> tuple[list[Tokens], bool]:
    """Return the items of a list, and True if "or" joins them. Two separators in a row, as in "a, and b", are one."""
    parts, separators = split(tokens, is_comma)
    items = [part for part in parts if part]
    doubled = sum(is_double(separators, index) for index, part in enumerate(parts) if not part)
    if len(items) + doubled != len(parts):
        raise Unreadable("an empty item in a list")
    return items, any("or" in sign.lower() or sign == r"\vee" for sign in separators)


def is_double(separators: list[str], index: int) -> bool:
    """Return True if the empty part at an index lies between a comma and an "and" or "or"."""
    return 0 < index < len(separators) and separators[index - 1] == "," and separators[index] not in (",", ";")


def trimmed(tokens: Tokens) -> Tokens:
    """Return the tokens without stops at the end, braces around everything, and `\\approx` in front."""
    while tokens:
        # The letter of a choice may stand with a closing bracket alone: `A)`.
        is_marked = len(tokens) == 2 and tokens[0].kind == "letter" and tokens[1].text == ")"
        if is_marked or tokens[-1].text in (".", ",", ";", "\\\\"):
            tokens = tokens[:-1]
        elif tokens[0].text == "{" and matching(tokens, 0) == len(tokens) - 1:
            if split(tokens[1:-1], among("|", ":"))[1]:
                return [Token("command", r"\{"), *tokens[1:-1], Token("command", r"\}")]
            tokens = tokens[1:-1]
        elif tokens[0].text == r"\approx":
            tokens = tokens[1:]
        else:
            break
    return tokens


def turned_round(tokens: Tokens) -> Tokens:
    """Replace brackets that are turned outwards for open ends, `]0, 1[`, by round ones."""
    changed = list(tokens)
    for index, token in enumerate(tokens):
        previous = tokens[index - 1].text if index else r"\cup"
        following = tokens[index + 1].text if index + 1 < len(tokens) else r"\cup"
        if token.text == "]" and previous in (r"\cup", r"\in", "="):
            changed[index] = Token("mark", "(")
        elif token.text == "[" and following == r"\cup":
            changed[index] = Token("mark", ")")
    return changed


def without_scripts(tokens: Tokens) -> Iterator[Token]:
    """Yield the tokens without subscripts."""
    index = 0
    while index < len(tokens):
        if tokens[index].text == "_" and index + 1 < len(tokens):
            index = matching(tokens, index + 1) + 1 if tokens[index + 1].text in CLOSERS else index + 2
            continue
        yield tokens[index]
        index += 1
