"""Score one answer with reasoning-gym, in a child of a warm parent that has the package loaded.

The answer was written by a model, and some generators evaluate it as Python or with sympy, which evaluates Python too.
Here both accept only literals and arithmetic; behind that are the child's layers and limits.
"""

import ast
import json
import os
import re
import sys
from typing import Any

# A warm parent may have one thread only, or unshare(CLONE_NEWUSER) fails. numpy would start others at its import.
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
import sympy
import sympy.parsing.sympy_parser as parser

MAX_LETTERS = 4000  # of what is evaluated
PLAIN = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load,
    ast.operator, ast.unaryop,
)  # fmt: skip
FORMULA = re.compile(r"(?!.*(__|[\w)]\s*\.\s*[A-Za-z_]))[\w\s+\-*/^().,=<>\[\]{}|&~!]*", re.DOTALL)
parse = parser.parse_expr


def plain_eval(text: str, *_: Any) -> Any:
    """Evaluate literals and arithmetic, as a replacement of `eval`. Raises ValueError for anything else."""
    tree = ast.parse(text, mode="eval")
    if len(text) > MAX_LETTERS or not all(isinstance(node, PLAIN) for node in ast.walk(tree)):
        raise ValueError("expected literals and arithmetic alone")
    return eval(compile(tree, "<answer>", "eval"), {"__builtins__": {}})  # noqa: S307 - of what was just looked through


def plain_parse_expr(text: str, *arguments: Any, **keywords: Any) -> Any:
    """Parse a formula with `sympy.parse_expr`. Raises ValueError for text with quotes, attributes or dunder names."""
    if len(text) > MAX_LETTERS or not FORMULA.fullmatch(text):
        raise ValueError("expected a formula")
    return parse(text, *arguments, **keywords)


# Before the generators are imported, so that `from sympy import parse_expr` imports the replacement.
sympy.parse_expr = parser.parse_expr = plain_parse_expr
import reasoning_gym  # noqa: E402

from . import codec  # noqa: E402

# A module's globals shadow the built-in `eval`.
for name, module in list(sys.modules.items()):
    if name.startswith("reasoning_gym."):
        vars(module).setdefault("eval", plain_eval)


def drop_reference(number: Any) -> None:
    """Decode the number of an object as None: only its plain value is used."""


def plain(_: None, value: Any) -> Any:
    """Return the plain value of an object, such as numpy's str."""
    return value


def score(dataset: str, options: dict[str, Any], problem: Any, said: str, nonce: str) -> str:
    """Write the score of the answer to a problem, 0 to 1, in a line with the nonce; 0 if it cannot be parsed.

    The problem is sent encoded by the codec, because some generators draw other problems in another process.
    """
    problems = reasoning_gym.create_dataset(dataset, seed=0, size=1, **options)
    try:
        value = float(problems.score_answer(answer=said, entry=codec.decode(problem, drop_reference, shadow=plain)))
    except Exception:  # noqa: BLE001 - generators raise what they like over an answer that they cannot read
        value = 0.0
    os.write(1, f"{nonce} {json.dumps(value)}\n".encode("ascii"))
    return ""
