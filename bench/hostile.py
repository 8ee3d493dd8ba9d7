"""Text that a model could write to break its trainer: a seeded generator, in kinds that each attack something else."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator

Kind = Callable[[random.Random], str]

# Characters that parsers, terminals and encoders treat in a way of their own.
ODD = [
    *map(chr, range(32)),
    "\x7f\x85\xa0\xad",
    "​‌‍‎‏‪‮⁦⁩﻿",
    "\ud800",
    "\udfff",
    "\U0010ffff",
    "é",
    "ﬁ",
    "İ",
    "ß",
    "٣",
    "²",
    "−",
    "  ",
]
# What the bundled environments look for in an answer.
MARKS = [
    "```python\n",
    "```",
    "\\boxed{",
    "}",
    "Moves:",
    "Grid:",
    "def solve():",
    "assert ",
    "=== leader ===",
    "1. ",
    "2) ",
    "VERDICT:",
    "APPROVE",
    "UDLR",
    "1234",
    "$",
    "\\frac{1}{",
    "<think>",
    "</think>",
    "Input:",
    "Output:",
    "###",
    "Report 1",
    "def check(candidate):",
    "print(1)",
]
NESTED = [("(", ")"), ("[", "]"), ("{", "}"), ("\\boxed{", "}"), ("\\frac{", "}{2}"), ("<a>", "</a>"), ("lambda:", "")]
NUMBERS = ["N", "\\boxed{N}", "1eN", "N**N", "N!", "0.N", "-N", "1/N", "10^{N}", "\\sqrt[N]2"]
PROGRAMS = [
    "print('RRD')",
    "import os; os._exit(0)",
    "raise SystemExit(3)",
    "while True: pass",
    "print('x' * 10**7)",
    "import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\x00')",
    "def f(): f()\nf()",
    "x = [0] * 10**9",
    "import threading; [threading.Thread(target=input).start() for _ in range(50)]",
    "print(input())",
    "import random; print(random.random())",
    "raise BaseException('\\ud800')",
]


def noise(draw: random.Random) -> str:
    return "".join(draw.choice(ODD + list(string.printable)) for _ in range(draw.randrange(200)))


def marks(draw: random.Random) -> str:
    return "".join(draw.choice(MARKS + ODD + [" ", "\n", "1", "U"]) for _ in range(draw.randrange(60)))


def nested(draw: random.Random) -> str:
    opening, closing = draw.choice(NESTED)
    depth = draw.choice([10, 1000, 20_000])
    return opening * depth + draw.choice(["1", "", "x"]) + closing * draw.choice([0, depth, depth + 1])


def long(draw: random.Random) -> str:
    unit = draw.choice(["U", "9", " ", "\n", "a b ", "1,", "\\", "(a|a)*", "assert f(1) == 1\n", "x" * 97 + "\n", "é"])
    return draw.choice(["", *MARKS]) + unit * (draw.choice([1000, 65_536, 1_000_000]) // len(unit))


def program(draw: random.Random) -> str:
    text = draw.choice(PROGRAMS)
    return draw.choice([text, f"```python\n{text}\n```", f"```python\n{text}", f"```\n{text}\n```\n" * 3])


def number(draw: random.Random) -> str:
    digits = "9" * draw.choice([1, 40, 5000])
    return draw.choice(NUMBERS).replace("N", digits)


def repeated(draw: random.Random) -> str:
    """A mark so often that anything quadratic in it shows."""
    return draw.choice(MARKS) * draw.choice([100, 20_000])


KINDS: dict[str, tuple[Kind, float]] = {
    "noise": (noise, 4.0),
    "marks": (marks, 4.0),
    "nested": (nested, 0.3),
    "long": (long, 0.2),
    "program": (program, 1.0),
    "number": (number, 1.0),
    "repeated": (repeated, 0.2),
}


def texts(seed: str) -> Iterator[tuple[str, str]]:
    """(kind, text) without end, the same for the same seed."""
    draw = random.Random(seed)
    names = list(KINDS)
    weights = [KINDS[name][1] for name in names]
    while True:
        (name,) = draw.choices(names, weights)
        yield name, KINDS[name][0](draw)
