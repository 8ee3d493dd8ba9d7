"""From text to tokens: what a command does to the look alone is gone, text is kept apart from mathematics."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .vocabulary import (
    ALONE,
    ALSO_UNITS,
    DROPPED,
    DROPPED_WITH_ARGUMENT,
    LETTERINGS,
    SAME,
    SPOKEN,
    TEXTS,
    TRANSPARENT,
)


class Unreadable(Exception):
    """A text that means nothing here. It equals nothing but itself."""


class Token(NamedTuple):
    """One sign of an answer. `kind` is number, letter, word, text, command or mark; `spaced`: a space comes before it.

    For example `Token("number", "3.5", False)`, `Token("text", "feet", True)`, `Token("command", "\\\\frac", False)`.
    """

    kind: str
    text: str
    spaced: bool = False


NUMBER = r"(?:\d+\.(?!\.)\d*|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?|\d+(?:[eE](?:\+?\d+|-\d\d+)(?![\d.]))?"
SCAN = re.compile(
    rf"(?P<space>\s+|~)|(?P<command>\\[a-zA-Z]+\*?|\\.)|(?P<number>{NUMBER})|(?P<word>[a-zA-Z]+)|(?P<mark>.)", re.DOTALL
)
MAX_DEPTH = 40

BEFORE_TEXT = {r"\%": "%", r"\$": "$", r"\#": "#", r"\&": "and", "~": " ", r"\ ": " ", r"\,": " "}

UPRIGHT = re.compile(
    r"\s*([a-zA-Z]+(\^\d)?\s*/\s*[a-zA-Z]+(\^\d)?|[a-zA-Z]+\s+[a-zA-Z]+\s*\^\{?-\d\}?|[ap]\.?\s?m\.?)\s*"
)
CHOICES = re.compile(r"\s*\(?[A-Z]\)?(\s*(,|,?\s*\b(and|or)\b|&)\s*\(?[A-Z]\)?)+\s*")  # A, (B) and C
COUNTED = re.compile(r"\s*(-?\d[\d.,/]*)(\s+[a-zA-Z .]+)")  # 3 hours
NAMES = r"[A-Za-z]{2,}(\s+[A-Za-z]+)?"
LISTED = re.compile(rf"\s*{NAMES}(\s*(,|,?\s*\band\b)\s*{NAMES})+\s*")  # Alice, Bob and Carol


def tokenise(text: str, depth: int = 0) -> list[Token]:
    """The tokens of a spelled text. Raises Unreadable for braces that do not match and for endless nesting."""
    if depth > MAX_DEPTH:
        raise Unreadable("nested too deep")
    tokens: list[Token] = []
    place, spaced = 0, False
    while place < len(text):
        found = SCAN.match(text, place)
        assert found is not None
        kind, part, place = str(found.lastgroup), found[0], found.end()
        if kind == "space" or part in DROPPED:
            place += part in (r"\left", r"\right") and text[place : place + 1] == "."
            spaced = True
            continue
        if part in DROPPED_WITH_ARGUMENT:
            place = argument(text, place)[1]
            continue
        if part == r"\textcolor":
            place = argument(text, place)[1]
        new, place = expanded(kind, part, text, place, depth)
        tokens += [token._replace(spaced=token.spaced or spaced) if token is new[0] else token for token in new]
        spaced = False
    return tokens


def expanded(kind: str, part: str, text: str, place: int, depth: int) -> tuple[list[Token], int]:
    """What one sign of the text becomes, and the place after it."""
    if part in TEXTS or part in TRANSPARENT or part == r"\textcolor":
        inner, place = argument(text, place)
        if inner.strip() in ALSO_UNITS and "operator" not in part:
            return [Token("text", inner.strip(), inner[0].isspace())], place
        return (texted(inner, depth) if part in TEXTS else tokenise(inner, depth + 1)), place
    if part in (r"\begin", r"\end"):
        name, place = argument(text, place)
        if name == "array":
            place = argument(text, place)[1] if part == r"\begin" else place
        return [Token("command", part)] + [Token("fence", name.strip())] * (part == r"\begin"), place
    if part in LETTERINGS:
        inner, place = argument(text, place)
        return [Token("letter", f"{part}{{{inner.strip()}}}")], place
    if kind == "command":
        same = SAME.get(part, part)
        return [Token("command" if same.startswith("\\") else kind_of(same), same)], place
    if kind == "word":
        return list(worded(part)), place
    return [Token(kind, part)], place


def kind_of(sign: str) -> str:
    return "letter" if sign.isalpha() else "mark"


def worded(word: str) -> Iterator[Token]:
    """A run of letters: a function or a constant by name, one letter, or a word that may be a product."""
    if word in SPOKEN or word.lower() in ("infinity", "sqrt"):
        yield Token("command", SPOKEN[word if word in SPOKEN else word.lower()])
    else:
        yield Token("letter" if len(word) == 1 else "word", word)


def texted(text: str, depth: int) -> list[Token]:
    """Text set upright: mathematics where it has no words, otherwise one token of text."""
    for sign, plain in BEFORE_TEXT.items():
        text = text.replace(sign, plain)
    text = text.replace("$", r"\$") if "$" in text and r"\$" not in text else text
    parts = CHOICES.fullmatch(text) and re.sub(r"and|or|&", ",", text)
    if parts:
        return tokenise(parts, depth + 1)
    words = re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]+", text)
    if len(words) == 1 and words[0] in SPOKEN and words[0] == text.strip():
        return list(worded(words[0]))
    if counted := COUNTED.fullmatch(text):
        return [*tokenise(counted[1], depth + 1), *texted(counted[2], depth)]
    lone = len(words) == 1 and text.strip() == words[0] not in ALONE
    if all(len(word) == 1 or word in ("and", "or") for word in words) and not (lone or UPRIGHT.fullmatch(text)):
        return tokenise(text, depth + 1)
    if LISTED.fullmatch(text):
        pieces = [" ".join(piece.split()) for piece in re.split(r"(,\s*and\b|,|\band\b)", text)]
        return [Token("mark" if piece == "," else "text", piece) for piece in pieces]
    return [Token("text", " ".join(text.split()), text[:1].isspace())]


def argument(text: str, place: int) -> tuple[str, int]:
    """What the braces at a place hold, or the next sign where there are none, and the place after it."""
    while place < len(text) and text[place].isspace():
        place += 1
    if text[place : place + 1] != "{":
        found = SCAN.match(text, place)
        sign = found[0] if found and found.lastgroup == "command" else text[place : place + 1]
        return sign, place + len(sign)
    depth = 0
    for end in range(place, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0) if text[end - 1] != "\\" else 0
        if depth == 0:
            return text[place + 1 : end], end + 1
    raise Unreadable("a brace is not closed")


def canonical(tokens: Sequence[Token]) -> str:
    """The tokens as one text, equal for answers that differ in their look alone."""
    parts: list[str] = []
    for place, token in enumerate(tokens):
        lone_open = token.text == "{" and tokens[place + 2 : place + 3] and tokens[place + 2].text == "}"
        lone_close = token.text == "}" and place >= 2 and tokens[place - 2].text == "{"
        if not (lone_open or lone_close):
            parts.append(token.text.lower().strip() if token.kind == "text" else token.text)
    return " ".join(parts)
