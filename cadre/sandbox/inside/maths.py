"""Compares mathematical answers with math-verify, in a child of a warm parent that has it loaded.

math-verify's own time-out needs SIGALRM and the main thread; it is switched off here, and the child's limits stand in.
"""

import logging

import math_verify

logging.disable(logging.CRITICAL)


# Parsed once in the warm parent: its grammar's caches fill, and every child inherits them.
WARM_UP = (
    "42",
    "-3.5",
    "\\frac{1}{2}",
    "2\\sqrt{3}",
    "(1, \\frac{\\pi}{2})",
    "x^2+2x-1",
    "[0,1)\\cup(2,\\infty)",
    "1,2",
)


def same_answer(gold: str, answer: str) -> bool:
    """Whether `answer` means the same as `gold`, both as LaTeX or plain text, without a box around them."""
    expected = math_verify.parse(f"${gold}$", parsing_timeout=None)
    given = math_verify.parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
    return bool(expected) and bool(given) and math_verify.verify(expected, given, timeout_seconds=None)


for example in WARM_UP:
    same_answer(example, example)
