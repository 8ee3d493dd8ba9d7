"""Compares mathematical answers, in a child of a warm parent that has sympy and math-verify loaded.

The answers are read by `answers`, which takes nothing that it cannot read whole; math-verify compares the expressions
in them. Its own time-out needs SIGALRM and the main thread; it is switched off, and the child's limits stand in.
"""

import logging
import string
from collections.abc import Sequence

import math_verify
from sympy import Expr

from .answers import parse, spelling, tokens, words
from .answers.compare import Comparison
from .answers.shapes import Shape, Value

# They tell at length of what they cannot read, which is an answer here and no event.
for library in ("math_verify", "latex2sympy2_extended"):
    logging.getLogger(library).setLevel(logging.CRITICAL + 1)

# Compared once in the warm parent: what sympy and math-verify import late is there then, and every child inherits it.
WARM_UP = (
    ("42", "42"), ("-3.5", "-7/2"), (r"\frac{1}{2}", "0.5"), (r"2\sqrt{3}", r"\sqrt{12}"), ("f(x+1)", "f(1+x)"),
    (r"(1, \frac{\pi}{2})", r"(1, \pi/2)"), ("x^2+2x-1", "-1+x^2+2x"), (r"[0,1)\cup(2,\infty)", r"(2,\infty)\cup[0,1)"),
    ("1,2", "2,1"), (r"\sin^2 x + \cos x", r"1-\cos^2 x+\cos x"), (r"x < 3", "3 > x"), ("y = 2x", "2y - 4x = 0"),
    ("90^\\circ", "\\frac{\\pi}{2}"), (r"\ln 2 + e^{t}/3", r"\frac{e^t}{3}+\ln 2"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
)  # fmt: skip


def same_answer(gold: str, answer: str, tolerance: float = 0.0) -> bool:
    """Whether `answer` means the same as `gold`, both as LaTeX or plain text, without a box around them.

    tolerance   how far numbers may be apart, absolutely
    """
    golds, answers = tokenised(gold), tokenised(answer)
    answers += tokenised(plain) if (plain := spelling.from_python(answer)) != answer else []
    if {tokens.canonical(one) for one in golds} & {tokens.canonical(one) for one in answers} - {""}:
        return True
    comparison = Comparison(verified, tolerance)
    meant = read_all([version for one in golds for version in (one, *(words.labelled(one) or ()))])
    shapes = read_all([version for one in answers for version in without_label(one, meant)])
    return any(comparison.same(first, second) for first in meant for second in shapes)


def without_label(answer: list[tokens.Token], golds: list[Shape]) -> list[Sequence[tokens.Token]]:
    """An answer that gives a choice's letter and its value as the one of them that the gold answer is."""
    parts = words.labelled(answer)
    if parts is None:
        return [answer]
    return [answer, parts[0] if any(is_letter(gold) for gold in golds) else parts[1]]


def is_letter(gold: Shape) -> bool:
    """Whether a gold answer is a choice."""
    return isinstance(gold, Value) and str(gold.readings[0]) in string.ascii_uppercase


def tokenised(text: str) -> list[list[tokens.Token]]:
    """The tokens of every spelling of a text; none where it cannot even be cut into tokens."""
    try:
        return [tokens.tokenise(reading) for reading in spelling.readings(text)]
    except tokens.Unreadable:
        return []


def read_all(readings: Sequence[Sequence[tokens.Token]]) -> list[Shape]:
    """What the readings mean, those left out that mean nothing."""
    shapes = []
    for reading in readings:
        try:
            shapes.append(parse.shape_of(reading))
        except tokens.Unreadable:
            continue
    return shapes


def verified(first: Expr, second: Expr) -> bool:
    """math-verify's opinion on two expressions. The order matters to it: the gold one first."""
    return bool(math_verify.verify(first, second, timeout_seconds=None))


for gold_example, example in WARM_UP:
    same_answer(gold_example, example)
