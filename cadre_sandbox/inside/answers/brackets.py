"""Where tokens part: at commas, relations and signs that no bracket holds."""

import re
from collections.abc import Callable, Iterator, Sequence

from .tokens import Token, Unreadable
from .vocabulary import CLOSERS, CLOSING

Tokens = Sequence[Token]

CONJUNCTION = re.compile(r"[,;]?\s*(and|or)\s*[,;]?", re.IGNORECASE)


def matching(tokens: Tokens, start: int) -> int:
    """The place of the bracket that closes the one at `start`; `(0, 1]` is a pair too. Raises Unreadable."""
    depth = 0
    for place in range(start, len(tokens)):
        depth += (tokens[place].text in CLOSERS) - (tokens[place].text in CLOSING)
        if depth == 0:
            return place
    raise Unreadable("a bracket is not closed")


def split(tokens: Tokens, is_separator: Callable[[Token], bool]) -> tuple[list[Tokens], list[str]]:
    """The parts between separators outside of brackets, and the separators. Raises Unreadable."""
    depth, start = 0, 0
    parts: list[Tokens] = []
    separators: list[str] = []
    for place, token in enumerate(tokens):
        depth += (token.text in CLOSERS) - (token.text in CLOSING)
        if depth < 0:
            break
        if depth == 0 and is_separator(token):
            parts.append(tokens[start:place])
            separators.append(token.text)
            start = place + 1
    if depth != 0:
        raise Unreadable("brackets that do not match")
    return [*parts, tokens[start:]], separators


def among(*signs: str) -> Callable[[Token], bool]:
    """Whether a token is one of the signs."""
    return lambda token: token.text in signs


def is_comma(token: Token) -> bool:
    """What parts a list: a comma, a semicolon, "and", "or"."""
    if token.kind in ("text", "word"):
        return CONJUNCTION.fullmatch(token.text) is not None
    return token.text in (",", ";", r"\vee", r"\wedge")


def listed(tokens: Tokens) -> tuple[list[Tokens], bool]:
    """The parts of a list, and whether "or" joins them. Two separators in a row, as in "a, and b", are one."""
    parts, separators = split(tokens, is_comma)
    kept = [part for part in parts if part]
    doubled = sum(is_double(separators, place) for place, part in enumerate(parts) if not part)
    if len(kept) + doubled != len(parts):
        raise Unreadable("an empty item in a list")
    return kept, any("or" in sign.lower() or sign == r"\vee" for sign in separators)


def is_double(separators: list[str], place: int) -> bool:
    """Whether the empty part at a place only parts a comma from an "and"."""
    return 0 < place < len(separators) and separators[place - 1] == "," and separators[place] not in (",", ";")


def trimmed(tokens: Tokens) -> Tokens:
    """Without the stops at the end, braces around everything, and `\\approx` in front."""
    while tokens:
        if tokens[-1].text in (".", ",", ";", "\\\\") or is_marked(tokens):
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


def is_marked(tokens: Tokens) -> bool:
    """Whether the tokens are the letter of a choice with half a pair of brackets: `A)`."""
    return len(tokens) == 2 and tokens[0].kind == "letter" and tokens[1].text == ")"


def turned_round(tokens: Tokens) -> Tokens:
    """Brackets that are turned outwards for open ends, `]0, 1[`, as round ones."""
    changed = list(tokens)
    for place, token in enumerate(tokens):
        before = tokens[place - 1].text if place else r"\cup"
        after = tokens[place + 1].text if place + 1 < len(tokens) else r"\cup"
        if token.text == "]" and before in (r"\cup", r"\in", "="):
            changed[place] = Token("mark", "(")
        elif token.text == "[" and after == r"\cup":
            changed[place] = Token("mark", ")")
    return changed


def without_scripts(tokens: Tokens) -> Iterator[Token]:
    """The tokens without subscripts."""
    place = 0
    while place < len(tokens):
        if tokens[place].text == "_" and place + 1 < len(tokens):
            place = matching(tokens, place + 1) + 1 if tokens[place + 1].text in CLOSERS else place + 2
            continue
        yield tokens[place]
        place += 1
