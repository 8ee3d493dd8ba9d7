"""Which asserts give a function what shown calls give it, however they spell it.

A program of the standard library alone that runs in the sandbox: it evaluates the asserts on a right program and
remembers by parameter what the function is given. `cadre.rewards.inspect` asks it.
"""

import copy
import inspect
import json
import math
import os
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

HOLDING = (list, tuple, set, frozenset, dict, range, deque, bytes, bytearray)
# What an assert on values may name (`cadre.rewards.source`), beside what is built in.
NAMES = {kind.__name__: kind for kind in (Counter, OrderedDict, defaultdict, deque, Decimal, Fraction)} | {"math": math}


class Heard:
    """A function that remembers what it is given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.signature = function, inspect.signature(function)
        self.given: list[dict[str, Any]] = []

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        bound = self.signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        self.given.append(copy.deepcopy(dict(bound.arguments)))
        return self.function(*arguments, **keywords)

    def in_(self, code: str, name: str) -> list[dict[str, Any]]:
        """What a statement that calls it by `name` gives it, whatever comes of the statement."""
        self.given = []
        try:
            exec(compile(code, "<test>", "exec"), {**NAMES, name: self})  # noqa: S102 - behind the sandbox's layers
        except Exception:  # noqa: BLE001 - a test may fail in any way; what it gave before is what counts
            return self.given
        return self.given


def respelt(right: str, entry: str, shown: list[str], lines: list[str]) -> list[int]:
    """The places of those `lines` that give `entry` anything that the calls `shown` give it."""
    scope: dict[str, Any] = {"__name__": "solution"}
    exec(compile(right, "<right>", "exec"), scope)  # noqa: S102 - behind the sandbox's layers
    heard = Heard(scope[entry])
    known = [given for call in shown for given in heard.in_(call, entry)]
    told = [heard.in_(line, entry) for line in lines]
    return [place for place, given in enumerate(told) if any(same(one, other) for one in given for other in known)]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, or hold the same one after the other, in whatever kind of container."""
    try:
        if bool(one == other):
            return True
    except Exception:  # noqa: BLE001 - values of a program compare as they like
        return False
    held = isinstance(one, HOLDING) and isinstance(other, HOLDING) and len(one) == len(other)
    if not held or (isinstance(one, dict) and isinstance(other, dict)):
        return held and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return all(same(mine, theirs) for mine, theirs in zip(one, other, strict=True))


if __name__ == "__main__":
    asked, out = json.loads(sys.stdin.read()), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what programs print is no answer
    os.write(out, json.dumps(respelt(**asked)).encode())
