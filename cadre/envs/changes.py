"""Where two states of an object differ: which attribute a call has changed."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

DEPTH = 12
MUTABLE = (dict, list, set, bytearray)


def kept(value: Any) -> Any:
    """Return a copy to compare with later; None where there is no copying it."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever cannot be copied is not compared
        return None


def of_class(kind: type) -> dict[str, Any]:
    """Return copies of the lists, dicts and sets that a class of the user's, or one of its parents, holds itself."""
    return {
        f"{one.__name__}.{name}": (value, kept(value))
        for one in kind.__mro__
        if not one.__module__.startswith(("cadre.", "builtins"))
        for name, value in vars(one).items()
        if isinstance(value, MUTABLE) and not name.startswith("__")
    }


def changed_of_class(before: Mapping[str, Any]) -> str:
    """Return the path of the first of these that is another than it was, or nothing."""
    return next((path for name, (now, was) in before.items() if (path := difference(was, now, name))), "")


def difference(before: Any, after: Any, path: str, depth: int = DEPTH) -> str:
    """Return the path of the first part of a value that is another than before: `self.board.cells[3]`; or nothing."""
    if before is after or depth == 0:
        return ""
    if type(before) is not type(after):
        return path
    if isinstance(before, Mapping):
        for key in before:
            if key not in after:
                return f"{path}[{key!r}]"
            if found := difference(before[key], after[key], f"{path}[{key!r}]", depth - 1):
                return found
        return next((f"{path}[{key!r}]" for key in after if key not in before), "")
    if isinstance(before, list | tuple):
        for index, (one, other) in enumerate(zip(before, after, strict=False)):
            if found := difference(one, other, f"{path}[{index}]", depth - 1):
                return found
        return path if len(before) != len(after) else ""
    if isinstance(before, random.Random):
        return path if before.getstate() != after.getstate() else ""
    if hasattr(before, "tolist"):  # an array
        return difference(before.tolist(), after.tolist(), path, depth - 1)
    kind: Any = type(before)
    if kind.__eq__ is object.__eq__:
        return of_attributes(before, after, path, depth)
    return path if before != after else ""


def of_attributes(before: Any, after: Any, path: str, depth: int = DEPTH) -> str:
    """The same of what two objects hold."""
    was, now = getattr(before, "__dict__", {}), getattr(after, "__dict__", {})
    for name in was:
        if name in now and (found := difference(was[name], now[name], f"{path}.{name}", depth - 1)):
            return found
    return ""
