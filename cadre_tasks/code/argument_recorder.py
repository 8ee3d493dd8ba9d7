"""Finds asserts that repeat a shown call of a function, in any spelling.

A program of the standard library alone that runs in the sandbox: it evaluates the asserts on a right program and
records the function's arguments, by parameter, and its return value. `cadre_tasks.code.inspect` runs it. A call is a
copy of a shown one if its arguments are equal, or are the same in another spelling (`same`) with the same answer; or if
a text shows both in words, as in "for 3 it is 9".
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
LINES = 4  # the most lines that the arguments of an example may take
# The names that an assert on values may use beside the builtins (`cadre_tasks.code.source`).
NAMES = {kind.__name__: kind for kind in (Counter, OrderedDict, defaultdict, deque, Decimal, Fraction)} | {"math": math}
MOST_CALLS, MOST_SCALARS = 2000, 5000  # of a test; of a value
GAP = 8  # words that may stand between the values of an example in a text
TOKEN = re.compile(
    r"""(?P<quoted>"[^"\n]*"|(?<!\w)'[^'\n]*'(?!\w))|(?P<number>[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?)|"""
    r"(?P<word>[^\W\d]\w*|[-=]+>|[→➞⇒=:\n])"
)
# The beginning of an example's arguments, after `Input:` or as `name = value`; and words found near an example.
ARGUMENTS = re.compile(
    r"""\binputs?\s*\d*\W*?:[\s*`]*(?=[-\[({"'\w])|(?<![\w.,(\[])(?=[A-Za-z_]\w*\s*=(?!=))""", re.IGNORECASE
)
EXAMPLE = re.compile(r"input|output|result|returns?\b|answer|gives|expected|[-=]>|[→➞⇒]", re.IGNORECASE)
ABOUT = 80  # letters before and after
LITERALS: dict[str, Any] = {"true": True, "yes": True, "false": False, "no": False, "none": None, "null": None}
RAISED = object()  # the answer of a call that raised


@dataclass(frozen=True)
class Call:
    """The arguments of a call by parameter, those that differ from their defaults (`explicit`), and the return
    value."""

    arguments: dict[str, Any]
    explicit: list[Any]
    answer: Any


class Recorder:
    """A function that remembers its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.signature = function, inspect.signature(function)
        self.calls: list[Call] = []

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        # An iterator is read once: its items are recorded, and the function gets an iterator over them.
        is_iterator = [hasattr(type(value), "__next__") for value in (*arguments, *keywords.values())]
        items = [as_lists(value) for value in (*arguments, *keywords.values())]
        bound = self.signature.bind(
            *items[: len(arguments)], **dict(zip(keywords, items[len(arguments) :], strict=True))
        )
        bound.apply_defaults()
        # Copied before the call, as the function may change its arguments.
        recorded, answer = copied(dict(bound.arguments)), RAISED
        passed = [iter(value) if iterates else value for value, iterates in zip(items, is_iterator, strict=True)]
        arguments, keywords = (
            tuple(passed[: len(arguments)]),
            dict(zip(keywords, passed[len(arguments) :], strict=True)),
        )
        defaults = {name: parameter.default for name, parameter in self.signature.parameters.items()}
        explicit = [value for name, value in recorded.items() if not equal(value, defaults[name])]
        try:
            answer = self.function(*arguments, **keywords)
            return answer
        finally:
            # A recursive function calls itself through the recorder and could fill the memory.
            if len(self.calls) < MOST_CALLS:
                self.calls.append(Call(recorded, explicit, copied(answer)))

    def calls_of(self, code: str, name: str) -> list[Call]:
        """Run a statement with this function under `name` and return the recorded calls, also if the statement
        fails."""
        self.calls = []
        try:
            exec(compile(code, "<test>", "exec"), {**NAMES, name: self})  # noqa: S102 - behind the sandbox's layers
        except Exception:  # noqa: BLE001 - a test may fail in any way; the calls before count
            return self.calls
        return self.calls


def as_lists(value: Any) -> Any:
    """Return the items of an iterator or of a dictionary's view as a list, and any other value as it is."""
    if isinstance(value, VIEWS) or hasattr(type(value), "__next__"):
        return [as_lists(item) for item in itertools.islice(value, MOST_SCALARS)]
    if type(value) in (list, tuple):
        return type(value)(map(as_lists, value))
    return value


def copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - values of a program may be copied as they like
        return value


def respelt(right: str, entry: str, shown: list[str], lines: list[str], text: str = "") -> list[int]:
    """Return the indices of those `lines` that make a call of `entry` which the calls `shown` make or the text
    contains."""
    scope: dict[str, Any] = {"__name__": "solution"}
    exec(compile(right, "<right>", "exec"), scope)  # noqa: S102 - behind the sandbox's layers
    recorder = Recorder(scope[entry])
    shown_calls = [call for line in shown for call in recorder.calls_of(line, entry)]
    for values_given in arguments_in(text):
        if len(values_given) <= len(recorder.signature.parameters):
            shown_calls += recorder.calls_of(f"{entry}(*{values_given!r})", entry)
    tokens = tokens_of(text)
    calls_of_lines = [recorder.calls_of(line, entry) for line in lines]
    return [
        index
        for index, calls in enumerate(calls_of_lines)
        if any(
            is_in_words(call, tokens) or is_sentence(call, text) or any(is_copy(call, shown) for shown in shown_calls)
            for call in calls
        )
    ]


def arguments_in(text: str) -> list[list[Any]]:
    """Return the arguments of examples such as `Input: nums = [3, 2], target = 5`, on one line or on several."""
    examples: list[list[Any]] = []
    for match in ARGUMENTS.finditer(text):
        if not EXAMPLE.search(text[max(0, match.start() - ABOUT) : match.end() + ABOUT]):
            continue
        lines = text[match.end() :].splitlines()[:LINES]
        for count in range(1, len(lines) + 1):
            line = ", ".join(part.strip(" `*.,;") for part in lines[:count])
            try:
                call = ast.parse(f"f({line})", mode="eval").body
                assert isinstance(call, ast.Call)
                expressions = [*call.args, *(keyword.value for keyword in call.keywords)]
                examples.append(
                    [LITERALS[node.id] if is_literal(node) else ast.literal_eval(node) for node in expressions]
                )
            except (SyntaxError, ValueError, TypeError, AssertionError, MemoryError, RecursionError):
                continue
    return [expressions for expressions in examples if expressions]


def is_literal(node: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id in LITERALS


def is_copy(call: Call, shown: Call) -> bool:
    """Return True if two calls are the same up to spelling."""
    if call.arguments.keys() != shown.arguments.keys():
        return False
    if all(equal(value, shown.arguments[name]) for name, value in call.arguments.items()):
        return True
    if not all(same(value, shown.arguments[name]) for name, value in call.arguments.items()):
        return False
    # With bytes a function answers in numbers where the shown example has letters.
    if any(isinstance(value, bytes | bytearray) for value in call.arguments.values()) and same(
        letters(call.answer), shown.answer
    ):
        return True
    return call.answer is shown.answer or same(call.answer, shown.answer)


def letters(value: Any) -> Any:
    """Return what a function of a text gives where it was given bytes: letters for their numbers."""
    if type(value) is int and 0 <= value < 256:
        return chr(value)
    return type(value)(map(letters, value)) if type(value) in (list, tuple, set) else value


def equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001 - values of a program compare as they like
        return False


def same(first: Any, second: Any) -> bool:
    """Return True if two values are equal, or hold the same scalars one after the other, in any order if one of them is
    unordered. Kinds of containers do not matter, a text counts as a container of letters, and numbers that are not
    whole are compared to four digits. Texts of the same words are the same."""
    if equal(first, second):
        return True
    if isinstance(first, str) and isinstance(second, str) and first.split() == second.split() != []:
        return True
    unordered = isinstance(first, UNORDERED) or isinstance(second, UNORDERED)
    if isinstance(first, dict) and isinstance(second, dict):
        first, second = list(first.items()), list(second.items())
    for first_rows, second_rows in itertools.product(spellings(first), spellings(second)):
        if unordered:
            # Only if one of them has no order: [1, 2] equals {2, 1}, but not [2, 1].
            first_rows, second_rows = (sorted(rows, key=order) for rows in (first_rows, second_rows))
        left, right = (list(itertools.chain.from_iterable(rows)) for rows in (first_rows, second_rows))
        equal_scalars = len(left) == len(right) and all(map(same_scalar, left, right))
        if equal_scalars and (left or len(first_rows) == len(second_rows)):  # [[], []] is not []
            return True
    return False


def order(row: list[Any]) -> list[tuple[bool, float, str]]:
    """Return the sort key of the scalars of one item."""
    # Numbers come last, by value; everything else first, by its text.
    return [(True, float(scalar), "") if isinstance(scalar, NUMBERS) else (False, 0.0, repr(scalar)) for scalar in row]


def same_scalar(left: Any, right: Any) -> bool:
    if equal(left, right):
        return True
    if not isinstance(left, (*NUMBERS, complex)) or not isinstance(right, (*NUMBERS, complex)):
        return False
    try:
        if isinstance(left, complex) or isinstance(right, complex):
            return cmath.isclose(complex(left), complex(right), rel_tol=CLOSE, abs_tol=1e-9)
        both_whole = left == int(left) and right == int(right)
        return not both_whole and math.isclose(left, right, rel_tol=CLOSE, abs_tol=1e-9)
    except (OverflowError, ValueError):  # of infinity and what is no number
        return False


def spellings(value: Any) -> list[list[list[Any]]]:
    """Return the scalars of each item of a value, once for each way to read it: a text as its letters or as the number
    that it spells, bytes as numbers or letters, a dictionary as its keys or its items."""
    if isinstance(value, str):
        return [[[letter] for letter in value], *([[[number]]] if (number := number_of(value)) is not None else [])]
    if isinstance(value, bytes | bytearray):
        return [[[number] for number in value], [[letter] for letter in value.decode("latin-1")]]
    if isinstance(value, dict):
        # One whose keys are the indices of a list is a list too.
        is_list_like = bool(value) and sorted(value, key=repr) == sorted(range(len(value)), key=repr)
        listed_values = spellings(list(value.values())) if is_list_like else []
        return [*spellings(list(value)), *spellings(list(value.items())), *listed_values]
    if isinstance(value, HOLDING):
        item_spellings = [spellings(item) for item in itertools.islice(value, MOST_SCALARS)]
        # All items in their first spelling, and all in their last, such as texts as numbers.
        return [[list(itertools.chain.from_iterable(ways[index])) for ways in item_spellings] for index in (0, -1)]
    return [[[value]]]


def number_of(text: str) -> float | None:
    try:
        # float() takes "nan" and "infinity" too, which are words here.
        return float(text) if any(map(str.isdigit, text)) else None
    except ValueError:
        return None


Token = tuple[Any, bool]  # a value, and whether it can be skipped as a mere word


def tokens_of(text: str) -> list[Token]:
    """Return the numbers, quoted texts and words of a text. Words for true, false and none become values."""
    tokens: list[Token] = []
    for match in TOKEN.finditer(text):
        word = match[0]
        if match["quoted"]:
            tokens.append((word[1:-1], False))
        elif match["number"]:
            tokens.append((float(word), False))
        else:
            tokens.append((LITERALS[word.lower()], False) if word.lower() in LITERALS else (word, True))
    return tokens


def is_in_words(call: Call, tokens: list[Token]) -> bool:
    """Return True if a text has the arguments of a call and its return value near each other, with few words
    between."""
    if call.answer is RAISED:
        return False
    arguments, answer = list(values(call.explicit)), list(values(call.answer))
    # A text that has a value twice shows no call that returns its argument.
    if not arguments or not answer or equal(arguments, answer) or len(arguments) + len(answer) > len(tokens):
        return False
    return values_appear(arguments, answer, tokens) or values_appear(answer, arguments, tokens)


def is_sentence(call: Call, text: str) -> bool:
    """Return True if a text has the words of a call's only argument and, a few words later, those of its return
    value."""
    if len(call.explicit) != 1 or not isinstance(call.explicit[0], str) or not isinstance(call.answer, str):
        return False
    argument, answer = call.explicit[0].split(), call.answer.split()
    if len(argument) < 2 or not answer or argument == answer:
        return False
    words = [word.strip(".,;:!?`*\"'()") for word in text.split()]
    for start in range(len(words)):
        end = start + len(argument)
        if words[start:end] == argument:
            return any(words[position : position + len(answer)] == answer for position in range(end + 1, end + 1 + GAP))
    return False


def values(value: Any) -> Iterator[Any]:
    """Yield the scalars of a value; texts are not split."""
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, HOLDING):
        for item in itertools.islice(value, MOST_SCALARS):
            yield from values(item)
    else:
        yield value


def values_appear(first: list[Any], second: list[Any], tokens: list[Token]) -> bool:
    """Return True if the values occur one after another, with a word or a sign between the first ones and the
    second."""
    starts = (position for position, token in enumerate(tokens) if shows(token, first[0]))
    return any(values_follow(first[1:] + second, len(first) - 1, tokens[position + 1 :]) for position in starts)


def values_follow(expected: list[Any], second: int, tokens: list[Token]) -> bool:
    """Return True if the values come next in the tokens with only words between them. Before the value with the index
    `second` there must be at least one word, as the items of one list are not a call and its answer."""
    position = 0
    for number, value in enumerate(expected):
        start = position
        while position < len(tokens) and not shows(tokens[position], value):
            if not tokens[position][1] or position - start == GAP:
                return False
            position += 1
        if position == len(tokens) or (number == second and position == start):
            return False
        position += 1
    return True


def shows(token: Token, value: Any) -> bool:
    """Return True if a token stands for a value. A mere word stands only for a text of its letters, two at the
    least."""
    shown, is_word = token
    if isinstance(value, str):
        return (
            isinstance(shown, str) and (shown == value or shown.split() == value.split() != []) and len(value) > is_word
        )  # a mere word needs two letters, a quoted text one
    if is_word or isinstance(shown, str):
        return False
    if any(isinstance(item, bool) or item is None for item in (shown, value)):
        return shown is value
    return same_scalar(shown, value)


if __name__ == "__main__":
    request, out = json.loads(sys.stdin.read()), os.dup(1)
    # Programs may print to stdout, where only the answer belongs.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.write(out, json.dumps(respelt(**request)).encode())
