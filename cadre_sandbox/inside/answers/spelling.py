"""Other spellings of the same text: Unicode signs as LaTeX, and digits without what groups them."""

import re
import unicodedata

from .vocabulary import LOWERED, RAISED, SIGNS

SIGN = re.compile("[" + "".join(SIGNS) + "]")
RAISED_RUN, LOWERED_RUN = re.compile(f"[{''.join(RAISED)}]+"), re.compile(f"[{''.join(LOWERED)}]+")
VULGAR = re.compile("[¼½¾⅐-⅞]")

THIN = r"(?:\\[,;:! ]|~|\\thinspace\b)"
GROUPS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:(?:,\s*\\!|\{{,\}}|{THIN}|\s)\s*\d{{3}})+(?![\d])")
DECIMAL_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
COMMAS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:,{THIN}?\d{{3}})+(?![\d,])")
EULER_OR_TEN = re.compile(r"(?<![\w.\\}])(\d+)e(-\d)(?![\d.])")

UNIT = re.compile(r"(?<=[\d.])j|\bI\b")
PYTHON_COMPLEX = re.compile(r"[\s()+\-*/\d.]*(?:(?:sqrt\(\d+\)|\d\.?j|\bI\b)[\s()+\-*/\d.]*)+")

ORDINAL = "st|nd|rd|th"
REWRITTEN = (
    (re.compile(r"(?<!\\)\\[()\[\]]"), " "),  # what sets mathematics apart from text
    (re.compile(r"^\s*\*\*([^*]+)\*\*\s*$"), r"\1"),  # bold
    (re.compile(r"^\s*(`{1,3})([^`]+)\1\s*$"), r"\2"),  # code
    (re.compile(r"\*\*"), "^"),
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
    """The text in ASCII and LaTeX, numbers without thin spaces between their digits."""
    text = VULGAR.sub(vulgar, SIGN.sub(lambda found: SIGNS[found[0]], text))
    text = RAISED_RUN.sub(lambda found: "^{" + "".join(RAISED[mark] for mark in found[0]) + "}", text)
    text = LOWERED_RUN.sub(lambda found: "_{" + "".join(LOWERED[mark] for mark in found[0]) + "}", text)
    text = unicodedata.normalize("NFKC", text)
    for pattern, meaning in REWRITTEN:
        text = pattern.sub(meaning, text)
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)  # escaped once too often
        text = GROUPS.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    return DECIMAL_COMMA.sub(".", text)


def from_python(text: str) -> str:
    """A complex number as Python or sympy prints it, with `i` for the unit; any other text as it is."""
    return UNIT.sub("i", text) if PYTHON_COMPLEX.fullmatch(text) else text


def vulgar(found: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", found[0]).split("⁄")
    return rf"\frac{{{above}}}{{{below}}}"


def readings(text: str) -> list[str]:
    """The spellings that an ambiguous text may have: `1,234` is a number or two, `2e-1` is 0.2 or less than 2e."""
    texts = [spelled(text)]
    for other in (without_commas, with_power_of_ten):
        texts += [changed for changed in map(other, texts) if changed not in texts]
    return texts


def without_commas(text: str) -> str:
    """Commas that may group digits taken out, but not between brackets, where they part coordinates."""
    return COMMAS.sub(
        lambda found: found[0] if is_bracketed(text, found.start()) else re.sub(r"\D", "", found[0]), text
    )


def is_bracketed(text: str, place: int) -> bool:
    before = text[:place]
    opened = sum(before.count(mark) for mark in ("(", "[", r"\{"))
    return opened > sum(before.count(mark) for mark in (")", "]", r"\}"))


def with_power_of_ten(text: str) -> str:
    return EULER_OR_TEN.sub(r"\1.e\2", text)
