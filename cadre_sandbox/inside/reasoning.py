"""Scores one answer by reasoning-gym, in a child of a warm parent that has the package loaded.

The answer is a model's, and some generators evaluate it as Python, or as sympy does, which is no less. Here both take
literals and arithmetic alone; the child's layers and limits stand behind that.
"""

import ast
import json
import os
import re
import sys
from typing import Any

# A warm parent has one thread: what a child unshares asks for that. numpy begins others as it is imported.
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
    """`eval` of literals and what arithmetic makes of them. Raises ValueError for anything else."""
    tree = ast.parse(text, mode="eval")
    if len(text) > MAX_LETTERS or not all(isinstance(node, PLAIN) for node in ast.walk(tree)):
        raise ValueError("expected literals and arithmetic alone")
    return eval(compile(tree, "<answer>", "eval"), {"__builtins__": {}})  # noqa: S307 - of what was just looked through


def plain_parse_expr(text: str, *arguments: Any, **keywords: Any) -> Any:
    """`sympy.parse_expr` of a formula. Raises ValueError for what has quotes, attributes or names of Python's own."""
    if len(text) > MAX_LETTERS or not FORMULA.fullmatch(text):
        raise ValueError("expected a formula")
    return parse(text, *arguments, **keywords)


# Before the generators are imported, which take the names from there; those that evaluate find ours first.
sympy.parse_expr = parser.parse_expr = plain_parse_expr
import reasoning_gym  # noqa: E402

from . import codec  # noqa: E402

for name, module in list(sys.modules.items()):
    if name.startswith("reasoning_gym."):
        vars(module).setdefault("eval", plain_eval)


def nothing(place: Any) -> None:
    """What stands for an object that is a plain value too, of which only that is wanted."""


def plain(_: None, value: Any) -> Any:
    """The plain value that an object is, such as a text of numpy's."""
    return value


def score(dataset: str, options: dict[str, Any], problem: Any, said: str, nonce: str) -> str:
    """Write what the answer to a problem is worth, 0 to 1, in a line with the nonce; 0 where the generator cannot read
    it. The problem is given as the codec has it: some generators draw otherwise in another process."""
    problems = reasoning_gym.create_dataset(dataset, seed=0, size=1, **options)
    try:
        worth = float(problems.score_answer(answer=said, entry=codec.decode(problem, nothing, shadow=plain)))
    except Exception:  # noqa: BLE001 - generators raise what they like over an answer that they cannot read
        worth = 0.0
    os.write(1, f"{nonce} {json.dumps(worth)}\n".encode("ascii"))
    return ""
