"""Normalise the spelling of a text: Unicode signs become LaTeX, and grouping between digits is removed."""

import re
import unicodedata

from .vocabulary import LOWERED, RAISED, SIGNS

SIGN = re.compile("[" + "".join(SIGNS) + "]")
RAISED_RUN, LOWERED_RUN = re.compile(f"[{''.join(RAISED)}]+"), re.compile(f"[{''.join(LOWERED)}]+")
VULGAR = re.compile("[¼½¾⅐-⅞]")

THIN = r"(?:\\[,;:! ]|~|\\thinspace\b)"
# The numerator of a mixed number, `2 128/243`, is no group.
GROUPS = re.compile(
    rf"(?<![\d.,])\d{{1,3}}(?:(?:,\s*\\!|\{{,\}})\s*\d{{3}}|(?:{THIN}|\s)\s*\d{{3}}(?!\s*/\s*\d))+(?!\d)"
)
DECIMAL_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
COMMAS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:,{THIN}?\d{{3}})+(?!\d|,\d)")
EULER_OR_TEN = re.compile(r"(?<![\w.\\}])(\d+)e(-\d)(?![\d.])")

UNIT = re.compile(r"(?<=[\d.])j|\bI\b")
PYTHON_COMPLEX = re.compile(r"[\s()+\-*/\d.]*(?:(?:sqrt\(\d+\)|\d\.?j|\bI\b)[\s()+\-*/\d.]*)+")

ORDINAL = "st|nd|rd|th"
REWRITTEN = (
    (re.compile(r"(?<!\\)\\[()\[\]]"), " "),  # what sets mathematics apart from text
    (re.compile(r"^\s*\*\*([^*]+)\*\*\s*$"), r"\1"),  # bold
    (re.compile(r"^\s*(`{1,3})([^`]+)\1\s*$"), r"\2"),  # code
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)"), r"\\times "),
    (re.compile(r"(\\\\)\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]"), r"\1"),  # a row's end with room below it
    (re.compile(r"(?<=[\])])\s*U\s*(?=[\[(])"), r"\\cup "),
    (re.compile(r">=|=>"), r"\\ge "),
    (re.compile(r"<=|=<"), r"\\le "),
    (re.compile(r"(?<=\s)!=|(?<!\w)!=(?=\s)"), r"\\ne "),
    (re.compile(r"=="), "="),
    (re.compile(rf"(?<=\d)\s*\^\s*\{{\s*(?:\\(?:text|mathrm|textrm)\s*\{{)?\s*(?:{ORDINAL})\s*\}}?\s*\}}"), ""),
    (re.compile(r"\{([^{}]*)\\choose([^{}]*)\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"\{([^{}]*)\\over\b([^{}]*)\}|^([^{}]*)\\over\b([^{}]*)$"), r"\\frac{\1\3}{\2\4}"),
    (re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf)\{\s*\(([A-Z])\)\s*\}"), r"(\1) "),  # a choice
    (re.compile(r"\^\s*\{?\s*\\degree\b\s*\}?|\\(?:text)?degree\b|(?<=\d)\s*\\deg\b"), r"^{\\circ}"),
    (re.compile(r"(?<=\d)\s*\^\s*(?:o\b|\{\s*o\s*\}|\{?\\(?:text|mathrm)\{o\}\}?)"), r"^{\\circ}"),
)


def spelled(text: str) -> str:
    """Return the text in ASCII and LaTeX, without thin spaces between the digits of numbers."""
    text = VULGAR.sub(vulgar, SIGN.sub(lambda match: SIGNS[match[0]], text))
    text = RAISED_RUN.sub(lambda match: "^{" + "".join(RAISED[mark] for mark in match[0]) + "}", text)
    text = LOWERED_RUN.sub(lambda match: "_{" + "".join(LOWERED[mark] for mark in match[0]) + "}", text)
    text = unicodedata.normalize("NFKC", text)
    for pattern, meaning in REWRITTEN:
        text = pattern.sub(meaning, text)
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)  # escaped once too often
        text = GROUPS.sub(digits_of, text)
    return DECIMAL_COMMA.sub(".", text)


def from_python(text: str) -> str:
    """Return a complex number of Python or sympy with `i` as its unit, any other text unchanged."""
    return UNIT.sub("i", text) if PYTHON_COMPLEX.fullmatch(text) else text


def vulgar(match: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", match[0]).split("⁄")
    return rf"\frac{{{above}}}{{{below}}}"


def digits_of(match: re.Match[str]) -> str:
    return re.sub(r"\D", "", match[0])


def readings(text: str) -> list[str]:
    """Return the readings of an ambiguous text: `1,234` is one number or two, `2e-1` is 0.2 or 2e minus 1."""
    texts = [spelled(text)]
    for rewrite in (without_commas, without_inner_commas, with_power_of_ten):
        texts += [changed for changed in map(rewrite, texts) if changed not in texts]
    return texts


def without_commas(text: str) -> str:
    """Remove commas that may group digits, but not between brackets, where they separate coordinates."""
    return COMMAS.sub(lambda match: match[0] if is_bracketed(text, match.start()) else digits_of(match), text)


def without_inner_commas(text: str) -> str:
    """Remove commas that may group digits between brackets too, if others have a space behind them: `(1,000, 2)`."""
    return COMMAS.sub(digits_of, text) if re.search(r",\s", text) else text


def is_bracketed(text: str, index: int) -> bool:
    prefix = text[:index]
    opened = sum(prefix.count(mark) for mark in ("(", "[", r"\{"))
    return opened > sum(prefix.count(mark) for mark in (")", "]", r"\}"))


def with_power_of_ten(text: str) -> str:
    return EULER_OR_TEN.sub(r"\1.e\2", text)
