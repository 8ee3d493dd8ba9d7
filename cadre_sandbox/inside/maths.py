"""Compare mathematical answers, in a child of a warm parent that has sympy and math-verify loaded.

`answers` parses the answers and accepts only what it can read completely; math-verify compares the expressions in them.
Its own timeout needs SIGALRM and the main thread; it is switched off, and the child's limits replace it.
"""

import logging
import string
from collections.abc import Sequence

import math_verify
from sympy import Expr

from .answers import parse, spelling, tokens, words
from .answers.compare import Comparison
from .answers.shapes import Shape, Value

# They log at length what they cannot parse, which is a normal result here.
for library in ("math_verify", "latex2sympy2_extended"):
    logging.getLogger(library).setLevel(logging.CRITICAL + 1)

# Compared once in the warm parent, so that children inherit what sympy and math-verify import late.
WARM_UP = (
    ("42", "42"), ("-3.5", "-7/2"), (r"\frac{1}{2}", "0.5"), (r"2\sqrt{3}", r"\sqrt{12}"), ("f(x+1)", "f(1+x)"),
    (r"(1, \frac{\pi}{2})", r"(1, \pi/2)"), ("x^2+2x-1", "-1+x^2+2x"), (r"[0,1)\cup(2,\infty)", r"(2,\infty)\cup[0,1)"),
    ("1,2", "2,1"), (r"\sin^2 x + \cos x", r"1-\cos^2 x+\cos x"), (r"x < 3", "3 > x"), ("y = 2x", "2y - 4x = 0"),
    ("90^\\circ", "\\frac{\\pi}{2}"), (r"\ln 2 + e^{t}/3", r"\frac{e^t}{3}+\ln 2"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
)  # fmt: skip


def same_answer(gold: str, answer: str, tolerance: float = 0.0) -> bool:
    """Return True if `answer` is equivalent to `gold`; both are LaTeX or plain text, without a box around them.

    tolerance   largest allowed absolute difference of numbers
    """
    golds, answers = tokenise_readings(gold), tokenise_readings(answer)
    answers += tokenise_readings(converted) if (converted := spelling.from_python(answer)) != answer else []
    if {tokens.canonical(reading) for reading in golds} & {tokens.canonical(reading) for reading in answers} - {""}:
        return True
    comparison = Comparison(math_verify_agrees, tolerance)
    gold_shapes = parse_readings(
        [version for reading in golds for version in (reading, *(words.labelled(reading) or ()))]
    )
    answer_shapes = parse_readings([version for reading in answers for version in choose_reading(reading, gold_shapes)])
    return any(comparison.same(first, second) for first in gold_shapes for second in answer_shapes)


def choose_reading(answer: list[tokens.Token], golds: list[Shape]) -> list[Sequence[tokens.Token]]:
    """Return an answer and, if it gives a choice's letter and value, the one of both that the gold answer gives."""
    parts = words.labelled(answer)
    if parts is None:
        return [answer]
    letters = string.ascii_uppercase
    has_letter = any(isinstance(gold, Value) and str(gold.readings[0]) in letters for gold in golds)
    return [answer, parts[0] if has_letter else parts[1]]


def tokenise_readings(text: str) -> list[list[tokens.Token]]:
    """Return the tokens of every spelling of a text; none if it cannot be tokenised."""
    try:
        return [tokens.tokenise(reading) for reading in spelling.readings(text)]
    except tokens.Unreadable:
        return []


def parse_readings(readings: Sequence[Sequence[tokens.Token]]) -> list[Shape]:
    """Return the shapes of the readings, without those that cannot be parsed."""
    shapes = []
    for reading in readings:
        try:
            shapes.append(parse.shape_of(reading))
        except tokens.Unreadable:
            continue
    return shapes


def math_verify_agrees(first: Expr, second: Expr) -> bool:
    """Return math-verify's verdict on two expressions; the gold one comes first, as the order matters to it."""
    return bool(math_verify.verify(first, second, timeout_seconds=None))


for gold_example, example in WARM_UP:
    same_answer(gold_example, example)
