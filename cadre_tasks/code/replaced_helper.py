"""Replaces a helper by one that returns values of the right type without its work, to test if a program needs it.

The text of this file goes between a helper and the function that calls it (`cadre_tasks.code.grade_pairs`), so it runs
in the sandbox, in one process with both, and is of the standard library alone.

genuine     the helper's own answers, as ever: a function that notices looks at the helper otherwise than by calling it
zero        the zero of the type that it answers with first: 0, '', [], False, None, and so on for each of a tuple
first       its first answer, every time; where that works later, as functions and iterators do, the first that it gives
other       its own answer, changed within its type: one more, not it, an item or a letter more
lagged      the latest of its earlier answers that differs from the one that is due
identity    the first argument that is of the answer's type
once        its own answer to its first call, and an error at any other
`..._same`  its own answers, and an error at the first that the replacement of that name would change
"""

from typing import Any


def cadre_replaced(original: Any, kind: str) -> Any:
    """Return a function in place of `original`. Calls that `original` makes of itself are not replaced."""
    import copy
    import functools
    import itertools
    import types

    max_items = 1000  # items of an iterator that are kept
    scalars = (bool, int, float, complex, str, bytes)
    containers = (list, dict, set, frozenset, bytearray)
    stored: list[Any] = []  # answers that differ, the latest last
    depth = 0

    def copied(value: Any) -> Any:
        try:
            return copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - what a model wrote may be copied as it likes
            return value

    def equal(left: Any, right: Any) -> bool:
        try:
            return type(left) is type(right) and (left is right or bool(left == right) or vars(left) == vars(right))
        except Exception:  # noqa: BLE001 - and compared
            return False

    def answer(arguments: Any, keywords: Any) -> tuple[Any, bool]:
        """Return the helper's own answer, an iterator as the list of its items, and True if it was an iterator."""
        nonlocal depth
        depth += 1
        try:
            value = original(*arguments, **keywords)
            runs = hasattr(type(value), "__next__")
            return (list(itertools.islice(value, max_items)) if runs else value), runs
        finally:
            depth -= 1

    def handed(value: Any, runs: bool) -> Any:
        return iter(copied(value)) if runs else copied(value)

    def zero(value: Any) -> Any:
        if value is None or type(value) in scalars or type(value) in containers:
            return None if value is None else type(value)()
        if type(value) is tuple:
            return tuple(map(zero, value))
        raise RuntimeError("no zero")

    def changed(value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return 0 if value is None else not value
        if isinstance(value, (int, float, complex)):
            return value + 1
        if isinstance(value, str):
            return value + "?"
        if isinstance(value, bytes):
            return value + b"?"
        if isinstance(value, tuple):
            return tuple(map(changed, value)) or (None,)
        if isinstance(value, list):
            return [*value, None]
        if isinstance(value, (set, frozenset)):
            return value | {None}
        if isinstance(value, dict):
            return {**value, None: None}
        raise RuntimeError("no other")

    def identity(value: Any, arguments: Any, keywords: Any) -> Any:
        for argument in (*arguments, *keywords.values()):
            if type(argument) is type(value):
                return argument
        raise RuntimeError("no argument of the type")

    @functools.wraps(original)
    def aux(*arguments: Any, **keywords: Any) -> Any:
        # A recursive helper calls itself through the replaced name; only the outermost call is replaced.
        if depth or kind == "genuine":
            return original(*arguments, **keywords)
        if kind == "once" and stored:
            raise RuntimeError("called again")
        if kind == "once":
            stored.append((None, False))
            return original(*arguments, **keywords)
        if kind in ("zero", "first") and stored:
            return handed(*stored[0])
        must_equal = kind.endswith("_same")
        result, is_iterator = answer(
            *(arguments, keywords) if must_equal or kind == "first" else copied((arguments, keywords))
        )
        if kind == "first" and is_iterator:
            result = result[:1] * len(result)
        if kind == "first" and isinstance(result, types.FunctionType):
            result = cadre_replaced(result, kind)
        snapshot = handed(result, False)
        if kind == "zero":
            stored.append((zero(result), is_iterator))
            return handed(*stored[0])
        if kind == "other":
            return handed(changed(result), is_iterator)
        if kind.startswith("identity"):
            replacement = (identity(result, arguments, keywords), is_iterator)
        else:
            others = (entry for entry in reversed(stored) if not equal(entry[0], result))
            replacement = next(others, (result, is_iterator))
            if len(stored) < max_items and not any(equal(snapshot, entry[0]) for entry in stored[-2:]):
                stored.append((snapshot, is_iterator))
        if kind == "zero_same":
            replacement = (zero(result), is_iterator)
        if must_equal and not equal(replacement[0], result):
            raise RuntimeError("it would differ")
        return (iter(result) if is_iterator else result) if must_equal or kind == "first" else handed(*replacement)

    return aux


def cadre_gates() -> Any:
    """Return a function that repeats the first outcome of each test."""
    outcomes: dict[int, bool] = {}

    def gate(site: int, test: Any) -> bool:
        if site not in outcomes:
            outcomes[site] = bool(test())
        return outcomes[site]

    return gate


def cadre_once(function: Any) -> Any:
    """Return the function with an error for any call whose arguments differ from those of the first call."""
    first: list[str] = []

    def called(*arguments: Any, **keywords: Any) -> Any:
        first[:] = first or [repr((arguments, keywords))]
        if repr((arguments, keywords)) != first[0]:
            raise RuntimeError("called otherwise")
        return function(*arguments, **keywords)

    return called


cadre_gate = cadre_gates()
