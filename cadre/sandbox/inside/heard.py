"""Which asserts give a function what shown calls give it, however they spell it.

A program of the standard library alone that runs in the sandbox: it evaluates the asserts on a right program and
records what the function is given, by parameter, and what it returns. `cadre.rewards.inspect` asks it. A call is a copy
of a shown one if what it is given is equal, or is the same in another spelling (`same`) for the same answer; or if a
text shows both in words, as "for 3 it is 9" does.
"""

import copy
import inspect
import itertools
import json
import math
import os
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

HOLDING = (list, tuple, set, frozenset, dict, range, deque)
UNORDERED = (set, frozenset, dict)
NUMBERS = (bool, int, float, Decimal, Fraction)
# What an assert on values may name (`cadre.rewards.source`), beside what is built in.
NAMES = {kind.__name__: kind for kind in (Counter, OrderedDict, defaultdict, deque, Decimal, Fraction)} | {"math": math}
MOST_CALLS, MOST_SCALARS = 2000, 5000  # of a test; of a value
GAP = 8  # words that may stand between the values of an example in a text
TOKEN = re.compile(
    r"""(?P<quoted>"[^"\n]*"|(?<!\w)'[^'\n]*'(?!\w))|(?P<number>[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?)|"""
    r"(?P<word>[^\W\d]\w*|[-=]+>|[→➞⇒=:\n])"
)
SAID: dict[str, Any] = {"true": True, "yes": True, "false": False, "no": False, "none": None, "null": None}
RAISED = object()  # the answer of a call that raised


@dataclass(frozen=True)
class Call:
    """What a function was given, by parameter and then apart from defaults (`told`), and what it returned."""

    given: dict[str, Any]
    told: list[Any]
    answer: Any


class Recorder:
    """A function that remembers its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.signature = function, inspect.signature(function)
        self.calls: list[Call] = []

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        bound = self.signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        given, answer = copied(dict(bound.arguments)), RAISED
        defaults = {name: parameter.default for name, parameter in self.signature.parameters.items()}
        told = [value for name, value in given.items() if not equal(value, defaults[name])]
        try:
            answer = self.function(*arguments, **keywords)
            return answer
        finally:
            if len(self.calls) < MOST_CALLS:
                self.calls.append(Call(given, told, copied(answer)))

    def calls_of(self, code: str, name: str) -> list[Call]:
        """The calls of a statement that calls it by `name`, whatever comes of the statement."""
        self.calls = []
        try:
            exec(compile(code, "<test>", "exec"), {**NAMES, name: self})  # noqa: S102 - behind the sandbox's layers
        except Exception:  # noqa: BLE001 - a test may fail in any way; what it gave before is what counts
            return self.calls
        return self.calls


def copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - values of a program may be copied as they like
        return value


def respelt(right: str, entry: str, shown: list[str], lines: list[str], text: str = "") -> list[int]:
    """The places of those `lines` that make a call of `entry` that the calls `shown` make, or that the text has."""
    scope: dict[str, Any] = {"__name__": "solution"}
    exec(compile(right, "<right>", "exec"), scope)  # noqa: S102 - behind the sandbox's layers
    recorder = Recorder(scope[entry])
    known = [call for line in shown for call in recorder.calls_of(line, entry)]
    tokens = tokens_of(text)
    made = [recorder.calls_of(line, entry) for line in lines]
    return [
        place
        for place, calls in enumerate(made)
        if any(is_in_words(one, tokens) or any(is_copy(one, other) for other in known) for one in calls)
    ]


def is_copy(one: Call, other: Call) -> bool:
    """Whether a call says what another does."""
    if one.given.keys() != other.given.keys():
        return False
    if all(equal(value, other.given[name]) for name, value in one.given.items()):
        return True
    alike = all(same(value, other.given[name]) for name, value in one.given.items())
    return alike and (one.answer is other.answer or same(one.answer, other.answer))


def equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - values of a program compare as they like
        return False


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, or hold the same scalars one after the other, in any order where one of them has
    none; in whatever kinds of containers, a text being one of letters, and numbers to six digits."""
    if equal(one, other):
        return True
    unordered = isinstance(one, UNORDERED) or isinstance(other, UNORDERED)
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = list(one.items()), list(other.items())
    for mine, theirs in itertools.product(spellings(one), spellings(other)):
        if unordered:
            mine, theirs = (sorted(rows, key=order) for rows in (mine, theirs))
        left, right = (list(itertools.chain.from_iterable(rows)) for rows in (mine, theirs))
        held = len(left) == len(right) and all(map(same_scalar, left, right))
        if held and (left or len(mine) == len(theirs)):  # [[], []] is not []
            return True
    return False


def order(row: list[Any]) -> list[tuple[bool, float, str]]:
    """What the scalars of one item are sorted by."""
    return [(True, float(one), "") if isinstance(one, NUMBERS) else (False, 0.0, repr(one)) for one in row]


def same_scalar(one: Any, other: Any) -> bool:
    if isinstance(one, NUMBERS) and isinstance(other, NUMBERS):
        try:
            return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
        except OverflowError:
            return False
    return equal(one, other)


def spellings(value: Any) -> list[list[list[Any]]]:
    """The scalars of each item of a value, in the ways in which it may be read: a text as its letters or the number
    that it spells, bytes as numbers or letters, a dictionary as its keys or its items."""
    if isinstance(value, str):
        return [[[letter] for letter in value], *([[[number]]] if (number := number_of(value)) is not None else [])]
    if isinstance(value, bytes | bytearray):
        return [[[number] for number in value], [[letter] for letter in value.decode("latin-1")]]
    if isinstance(value, dict):
        return [*spellings(list(value)), *spellings(list(value.items()))]
    if isinstance(value, HOLDING):
        held = [spellings(item) for item in itertools.islice(value, MOST_SCALARS)]
        return [[list(itertools.chain.from_iterable(ways[which])) for ways in held] for which in (0, -1)]
    return [[[value]]]


def number_of(text: str) -> float | None:
    try:
        return float(text) if any(map(str.isdigit, text)) else None
    except ValueError:
        return None


Token = tuple[Any, bool]  # a value, and whether it can be skipped as a mere word


def tokens_of(text: str) -> list[Token]:
    """The numbers, quoted texts and words of a text. Words for true, false and none are values."""
    found: list[Token] = []
    for match in TOKEN.finditer(text):
        word = match[0]
        if match["quoted"]:
            found.append((word[1:-1], False))
        elif match["number"]:
            found.append((float(word), False))
        else:
            found.append((SAID[word.lower()], False) if word.lower() in SAID else (word, True))
    return found


def is_in_words(call: Call, tokens: list[Token]) -> bool:
    """Whether a text has what a call is given and what it returns beside each other, with few words between."""
    if call.answer is RAISED:
        return False
    given, answer = list(values(call.told)), list(values(call.answer))
    if not given or not answer or equal(given, answer) or len(given) + len(answer) > len(tokens):
        return False
    return appear(given, answer, tokens) or appear(answer, given, tokens)


def values(value: Any) -> Iterator[Any]:
    """What a value holds, texts as a whole."""
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, HOLDING):
        for item in itertools.islice(value, MOST_SCALARS):
            yield from values(item)
    else:
        yield value


def appear(first: list[Any], second: list[Any], tokens: list[Token]) -> bool:
    """Whether the values come one after another, with a word or a sign between the first ones and the second."""
    starts = (place for place, token in enumerate(tokens) if shows(token, first[0]))
    return any(follow(first[1:] + second, len(first) - 1, tokens[place + 1 :]) for place in starts)


def follow(wanted: list[Any], second: int, tokens: list[Token]) -> bool:
    """Whether the values come next in the tokens, with nothing but words between: something before that one which is
    `second`, as the items of one list are no call and its answer."""
    place = 0
    for number, value in enumerate(wanted):
        begun = place
        while place < len(tokens) and not shows(tokens[place], value):
            if not tokens[place][1] or place - begun == GAP:
                return False
            place += 1
        if place == len(tokens) or (number == second and place == begun):
            return False
        place += 1
    return True


def shows(token: Token, value: Any) -> bool:
    """Whether a token stands for a value; a word only for a text of its letters, which one letter is too few for."""
    shown, word = token
    if isinstance(value, str):
        return shown == value and len(value) > word  # a mere word needs two letters, a quoted text one
    if word or isinstance(shown, str):
        return False
    if any(isinstance(one, bool) or one is None for one in (shown, value)):
        return shown is value
    return same_scalar(shown, value)


if __name__ == "__main__":
    asked, out = json.loads(sys.stdin.read()), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what programs print is no answer
    os.write(out, json.dumps(respelt(**asked)).encode())
