"""Split a text into tokens: commands that only affect the layout are dropped, text and mathematics are separated."""

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
    """A text that cannot be parsed. It equals only itself."""


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
    """Return the tokens of a spelled text. Raises Unreadable for unbalanced braces and for nesting above MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise Unreadable("nested too deep")
    tokens: list[Token] = []
    index, spaced = 0, False
    while index < len(text):
        match = SCAN.match(text, index)
        assert match is not None
        kind, part, index = str(match.lastgroup), match[0], match.end()
        if kind == "space" or part in DROPPED:
            index += part in (r"\left", r"\right") and text[index : index + 1] == "."
            spaced = True
            continue
        if part in DROPPED_WITH_ARGUMENT:
            index = argument(text, index)[1]
            continue
        if part == r"\textcolor":
            index = argument(text, index)[1]
        new, index = expanded(kind, part, text, index, depth)
        tokens += [token._replace(spaced=token.spaced or spaced) if token is new[0] else token for token in new]
        spaced = False
    return tokens


def expanded(kind: str, part: str, text: str, index: int, depth: int) -> tuple[list[Token], int]:
    """Return the tokens of one sign of the text, and the index after it."""
    if part in TEXTS or part in TRANSPARENT or part == r"\textcolor":
        inner, index = argument(text, index)
        if inner.strip() in ALSO_UNITS and "operator" not in part:
            return [Token("text", inner.strip(), inner[0].isspace())], index
        return (texted(inner, depth) if part in TEXTS else tokenise(inner, depth + 1)), index
    if part in (r"\begin", r"\end"):
        name, index = argument(text, index)
        if name == "array":
            index = argument(text, index)[1] if part == r"\begin" else index
        return [Token("command", part)] + [Token("fence", name.strip())] * (part == r"\begin"), index
    if part in LETTERINGS:
        inner, index = argument(text, index)
        return [Token("letter", f"{part}{{{inner.strip()}}}")], index
    if kind == "command":
        same = SAME.get(part, part)
        return [Token("command" if same.startswith("\\") else ("letter" if same.isalpha() else "mark"), same)], index
    if kind == "word":
        return list(worded(part)), index
    return [Token(kind, part)], index


def worded(word: str) -> Iterator[Token]:
    """Yield the token of a run of letters: a function or constant, one letter, or a word that may be a product."""
    if word in SPOKEN or word.lower() in ("infinity", "sqrt"):
        yield Token("command", SPOKEN[word if word in SPOKEN else word.lower()])
    else:
        yield Token("letter" if len(word) == 1 else "word", word)


def texted(text: str, depth: int) -> list[Token]:
    """Return the tokens of upright text: mathematics if it has no words, otherwise one token of text."""
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
        items = [" ".join(item.split()) for item in re.split(r"(,\s*and\b|,|\band\b)", text)]
        return [Token("mark" if item == "," else "text", item) for item in items]
    return [Token("text", " ".join(text.split()), text[:1].isspace())]


def argument(text: str, index: int) -> tuple[str, int]:
    """Return the content of the braces at an index, or the next sign without braces, and the index after it."""
    while index < len(text) and text[index].isspace():
        index += 1
    if text[index : index + 1] != "{":
        match = SCAN.match(text, index)
        sign = match[0] if match and match.lastgroup == "command" else text[index : index + 1]
        return sign, index + len(sign)
    depth = 0
    for end in range(index, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0) if text[end - 1] != "\\" else 0
        if depth == 0:
            return text[index + 1 : end], end + 1
    raise Unreadable("a brace is not closed")


def canonical(tokens: Sequence[Token]) -> str:
    """Return the tokens as one text, equal for answers that differ only in their layout."""
    parts: list[str] = []
    for index, token in enumerate(tokens):
        lone_open = token.text == "{" and tokens[index + 2 : index + 3] and tokens[index + 2].text == "}"
        lone_close = token.text == "}" and index >= 2 and tokens[index - 2].text == "{"
        if not (lone_open or lone_close):
            parts.append(token.text.lower().strip() if token.kind == "text" else token.text)
    return " ".join(parts)
