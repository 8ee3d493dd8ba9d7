"""Which asserts give a function what shown calls give it, however they spell it.

A program of the standard library alone that runs in the sandbox: it evaluates the asserts on a right program and
records what the function is given, by parameter, and what it returns. `cadre_tasks.code.inspect` asks it. A call is a
copy of a shown one if what it is given is equal, or is the same in another spelling (`same`) for the same answer; or if
a text shows both in words, as "for 3 it is 9" does.
"""

import ast
import cmath
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
from typing import Any, TypeGuard

HOLDING = (list, tuple, set, frozenset, dict, range, deque)
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
UNORDERED = (set, frozenset, dict)
NUMBERS = (bool, int, float, Decimal, Fraction)
CLOSE = 1e-4  # two numbers that differ by less are one, unless both are whole
LINES = 4  # over which the arguments of an example may stand
# What an assert on values may name (`cadre_tasks.code.source`), beside what is built in.
NAMES = {kind.__name__: kind for kind in (Counter, OrderedDict, defaultdict, deque, Decimal, Fraction)} | {"math": math}
MOST_CALLS, MOST_SCALARS = 2000, 5000  # of a test; of a value
GAP = 8  # words that may stand between the values of an example in a text
TOKEN = re.compile(
    r"""(?P<quoted>"[^"\n]*"|(?<!\w)'[^'\n]*'(?!\w))|(?P<number>[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?)|"""
    r"(?P<word>[^\W\d]\w*|[-=]+>|[→➞⇒=:\n])"
)
# Where an example's arguments begin, after `Input:` or as `name = value`; and what stands about such an example.
ARGUMENTS = re.compile(
    r"""\binputs?\s*\d*\W*?:[\s*`]*(?=[-\[({"'\w])|(?<![\w.,(\[])(?=[A-Za-z_]\w*\s*=(?!=))""", re.IGNORECASE
)
EXAMPLE = re.compile(r"input|output|result|returns?\b|answer|gives|expected|[-=]>|[→➞⇒]", re.IGNORECASE)
ABOUT = 80  # letters before and after
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
        # An iterator is read once: its items are recorded, and the function gets an iterator over them.
        runs = [hasattr(type(value), "__next__") for value in (*arguments, *keywords.values())]
        held = [listed(value) for value in (*arguments, *keywords.values())]
        bound = self.signature.bind(*held[: len(arguments)], **dict(zip(keywords, held[len(arguments) :], strict=True)))
        bound.apply_defaults()
        given, answer = copied(dict(bound.arguments)), RAISED
        handed = [iter(value) if run else value for value, run in zip(held, runs, strict=True)]
        arguments, keywords = (
            tuple(handed[: len(arguments)]),
            dict(zip(keywords, handed[len(arguments) :], strict=True)),
        )
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


def listed(value: Any) -> Any:
    """Return the items of an iterator or of a dictionary's view as a list, and any other value as it is."""
    if isinstance(value, VIEWS) or hasattr(type(value), "__next__"):
        return [listed(item) for item in itertools.islice(value, MOST_SCALARS)]
    if type(value) in (list, tuple):
        return type(value)(map(listed, value))
    return value


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
    for values_given in arguments_in(text):
        if len(values_given) <= len(recorder.signature.parameters):
            known += recorder.calls_of(f"{entry}(*{values_given!r})", entry)
    tokens = tokens_of(text)
    made = [recorder.calls_of(line, entry) for line in lines]
    return [
        place
        for place, calls in enumerate(made)
        if any(
            is_in_words(one, tokens) or is_sentence(one, text) or any(is_copy(one, other) for other in known)
            for one in calls
        )
    ]


def arguments_in(text: str) -> list[list[Any]]:
    """Return the arguments of examples such as `Input: nums = [3, 2], target = 5`, on one line or on several."""
    found: list[list[Any]] = []
    for match in ARGUMENTS.finditer(text):
        if not EXAMPLE.search(text[max(0, match.start() - ABOUT) : match.end() + ABOUT]):
            continue
        lines = text[match.end() :].splitlines()[:LINES]
        for count in range(1, len(lines) + 1):
            line = ", ".join(one.strip(" `*.,;") for one in lines[:count])
            try:
                call = ast.parse(f"f({line})", mode="eval").body
                assert isinstance(call, ast.Call)
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                found.append([SAID[node.id] if is_said(node) else ast.literal_eval(node) for node in given])
            except (SyntaxError, ValueError, TypeError, AssertionError, MemoryError, RecursionError):
                continue
    return [given for given in found if given]


def is_said(node: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id in SAID


def is_copy(one: Call, other: Call) -> bool:
    """Whether a call says what another does."""
    if one.given.keys() != other.given.keys():
        return False
    if all(equal(value, other.given[name]) for name, value in one.given.items()):
        return True
    if not all(same(value, other.given[name]) for name, value in one.given.items()):
        return False
    if any(isinstance(value, bytes | bytearray) for value in one.given.values()) and same(
        letters(one.answer), other.answer
    ):
        return True
    return one.answer is other.answer or same(one.answer, other.answer)


def letters(value: Any) -> Any:
    """Return what a function of a text gives where it was given bytes: letters for their numbers."""
    if type(value) is int and 0 <= value < 256:
        return chr(value)
    return type(value)(map(letters, value)) if type(value) in (list, tuple, set) else value


def equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - values of a program compare as they like
        return False


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, or hold the same scalars one after the other, in any order where one of them has
    none; in whatever kinds of containers, a text being one of letters, and numbers that are not whole to four digits.
    Texts of the same words are the same."""
    if equal(one, other):
        return True
    if isinstance(one, str) and isinstance(other, str) and one.split() == other.split() != []:
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
    if equal(one, other):
        return True
    if not isinstance(one, (*NUMBERS, complex)) or not isinstance(other, (*NUMBERS, complex)):
        return False
    try:
        if isinstance(one, complex) or isinstance(other, complex):
            return cmath.isclose(complex(one), complex(other), rel_tol=CLOSE, abs_tol=1e-9)
        whole = one == int(one) and other == int(other)
        return not whole and math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-9)
    except (OverflowError, ValueError):  # of infinity and what is no number
        return False


def spellings(value: Any) -> list[list[list[Any]]]:
    """The scalars of each item of a value, in the ways in which it may be read: a text as its letters or the number
    that it spells, bytes as numbers or letters, a dictionary as its keys or its items."""
    if isinstance(value, str):
        return [[[letter] for letter in value], *([[[number]]] if (number := number_of(value)) is not None else [])]
    if isinstance(value, bytes | bytearray):
        return [[[number] for number in value], [[letter] for letter in value.decode("latin-1")]]
    if isinstance(value, dict):
        listed_values = spellings(list(value.values())) if is_list_like(value) else []
        return [*spellings(list(value)), *spellings(list(value.items())), *listed_values]
    if isinstance(value, HOLDING):
        held = [spellings(item) for item in itertools.islice(value, MOST_SCALARS)]
        return [[list(itertools.chain.from_iterable(ways[which])) for ways in held] for which in (0, -1)]
    return [[[value]]]


def is_list_like(value: dict[Any, Any]) -> bool:
    """Whether a dictionary has the places of a list as its keys."""
    return bool(value) and sorted(value, key=repr) == sorted(range(len(value)), key=repr)


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


def is_sentence(call: Call, text: str) -> bool:
    """Whether a text has the words of a call's only argument and then, a few words later, those of its answer."""
    if len(call.told) != 1 or not isinstance(call.told[0], str) or not isinstance(call.answer, str):
        return False
    given, answer = call.told[0].split(), call.answer.split()
    if len(given) < 2 or not answer or given == answer:
        return False
    said = [word.strip(".,;:!?`*\"'()") for word in text.split()]
    for start in range(len(said)):
        end = start + len(given)
        if said[start:end] == given:
            return any(said[place : place + len(answer)] == answer for place in range(end + 1, end + 1 + GAP))
    return False


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
        return (
            isinstance(shown, str) and (shown == value or shown.split() == value.split() != []) and len(value) > word
        )  # a mere word needs two letters, a quoted text one
    if word or isinstance(shown, str):
        return False
    if any(isinstance(one, bool) or one is None for one in (shown, value)):
        return shown is value
    return same_scalar(shown, value)


if __name__ == "__main__":
    asked, out = json.loads(sys.stdin.read()), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what programs print is no answer
    os.write(out, json.dumps(respelt(**asked)).encode())
