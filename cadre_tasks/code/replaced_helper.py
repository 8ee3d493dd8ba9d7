"""Replaces a helper by one that answers of the right type without its work, to find out whether a program needs it.

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
    """A function in the place of `original`. Calls that it makes of itself are its own affair."""
    import copy
    import functools
    import itertools
    import types

    most = 1000  # items of an iterator that are kept
    scalars = (bool, int, float, complex, str, bytes)
    containers = (list, dict, set, frozenset, bytearray)
    kept: list[Any] = []  # answers that differ, the latest last
    depth = 0

    def copied(value: Any) -> Any:
        try:
            return copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - what a model wrote may be copied as it likes
            return value

    def equal(one: Any, other: Any) -> bool:
        try:
            return type(one) is type(other) and (one is other or bool(one == other) or vars(one) == vars(other))
        except Exception:  # noqa: BLE001 - and compared
            return False

    def answer(arguments: Any, keywords: Any) -> tuple[Any, bool]:
        """Its own answer, and whether that is an iterator, of which the items are returned."""
        nonlocal depth
        depth += 1
        try:
            value = original(*arguments, **keywords)
            runs = hasattr(type(value), "__next__")
            return (list(itertools.islice(value, most)) if runs else value), runs
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
        for given in (*arguments, *keywords.values()):
            if type(given) is type(value):
                return given
        raise RuntimeError("no argument of the type")

    def latest_other(value: Any) -> Any:
        return next((one for one in reversed(kept) if not equal(one[0], value)), None)

    @functools.wraps(original)
    def aux(*arguments: Any, **keywords: Any) -> Any:
        if depth or kind == "genuine":
            return original(*arguments, **keywords)
        if kind == "once" and kept:
            raise RuntimeError("called again")
        if kind == "once":
            kept.append((None, False))
            return original(*arguments, **keywords)
        if kind in ("zero", "first") and kept:
            return handed(*kept[0])
        same = kind.endswith("_same")
        own, runs = answer(*(arguments, keywords) if same or kind == "first" else copied((arguments, keywords)))
        if kind == "first" and runs:
            own = own[:1] * len(own)
        if kind == "first" and isinstance(own, types.FunctionType):
            own = cadre_replaced(own, kind)
        keeps = handed(own, False)
        if kind == "zero":
            kept.append((zero(own), runs))
            return handed(*kept[0])
        if kind == "other":
            return handed(changed(own), runs)
        if kind.startswith("identity"):
            other = (identity(own, arguments, keywords), runs)
        else:
            other = latest_other(own) or (own, runs)
            if len(kept) < most and not any(equal(keeps, one[0]) for one in kept[-2:]):
                kept.append((keeps, runs))
        if kind == "zero_same":
            other = (zero(own), runs)
        if same and not equal(other[0], own):
            raise RuntimeError("it would differ")
        return (iter(own) if runs else own) if same or kind == "first" else handed(*other)

    return aux


def cadre_gates() -> Any:
    """A test that comes out as it did when it was first made at a place."""
    outcomes: dict[int, bool] = {}

    def gate(place: int, test: Any) -> bool:
        if place not in outcomes:
            outcomes[place] = bool(test())
        return outcomes[place]

    return gate


def cadre_once(function: Any) -> Any:
    """The function, that raises when it is called with other arguments than at first."""
    first: list[str] = []

    def called(*arguments: Any, **keywords: Any) -> Any:
        first[:] = first or [repr((arguments, keywords))]
        if repr((arguments, keywords)) != first[0]:
            raise RuntimeError("called otherwise")
        return function(*arguments, **keywords)

    return called


cadre_gate = cadre_gates()
