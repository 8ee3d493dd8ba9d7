"""A job of kind `solution`: load a program, then answer the calls that the tester makes over a socket.

The process is the solution's own to spoil: it holds no expected value, no test and no verdict.
"""

import itertools
import json
import operator
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from . import codec, wire
from .boundary import Raised, Returned, attempt
from .program import FILE_NAME, PATH, execute

MAX_ITEMS = 100_000
# What a program is made of has no attributes for a test but those that the program gave it: tests may not read it.
MADE_OF = (
    types.FunctionType, types.MethodType, types.CodeType, types.FrameType, types.TracebackType, types.GeneratorType,
    types.CoroutineType, types.AsyncGeneratorType, types.ModuleType, types.CellType,
)  # fmt: skip


class Kept:
    """The objects that stay with the solution, each under one number for as long as it lives."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.places: dict[int, int] = {}

    def keep(self, value: Any) -> int:
        """The number that stands for an object."""
        place = self.places.setdefault(id(value), len(self.objects))
        if place == len(self.objects):
            self.objects.append(value)
        return place


def serve(job: dict[str, Any], peer: socket.socket | None) -> None:
    """Run `job["program"]` as a module, say which names it has, and answer until the tester hangs up."""
    assert peer is not None
    names = sys.modules.setdefault("solution", types.ModuleType("solution")).__dict__
    names["__file__"] = PATH
    loaded = attempt(lambda: execute(job["program"], FILE_NAME, names))
    public = [name for name in names if not name.startswith("__")]
    send(peer, {"names": public} if isinstance(loaded, Returned) else failure(loaded))
    kept = Kept()
    while (call := receive(peer)) is not None:
        send(peer, {"id": call["id"], **answer(call, names, kept)})


def answer(call: dict[str, Any], names: dict[str, Any], kept: Kept) -> dict[str, Any]:
    """Do what one call asks: its value, or what it raised, and what has become of its arguments if they changed."""
    passed: list[Any] = []

    def work() -> Any:
        target = names[call["name"]] if "name" in call else kept.objects[call["object"]]
        passed.extend(codec.decode(call["passed"], kept.objects.__getitem__))
        arguments, keywords = passed
        return codec.encode(OPERATIONS[call["operation"]](target, *arguments, **keywords), kept.keep)

    outcome = attempt(work)
    told = {"value": outcome.value} if isinstance(outcome, Returned) else failure(outcome)
    changed = attempt(lambda: codec.encode(passed, kept.keep)) if may_change(call, passed) else None
    if isinstance(changed, Returned) and changed.value != call["passed"]:
        told["passed"] = changed.value
    return told


def may_change(call: dict[str, Any], passed: list[Any]) -> bool:
    """Whether a call can have changed what was passed to it."""
    values = [*passed[0], *passed[1].values()] if passed and call["operation"] == "call" else []
    return any(type(value) not in codec.UNCHANGING for value in values)


def apply(target: Any, /, *arguments: Any, **keywords: Any) -> Any:
    return target(*arguments, **keywords)


def attribute(target: Any, name: str) -> Any:
    """An attribute that is the program's own doing: nothing that tells how the program is written."""
    own = vars(target) if isinstance(target, types.FunctionType) else {}
    if name.startswith("__") or (isinstance(target, MADE_OF) and name not in own):
        raise AttributeError(f"{type(target).__name__!r} object has no attribute {name!r}")
    return getattr(target, name)


def set_attribute(target: Any, name: str, value: Any) -> None:
    if name.startswith("__"):
        raise AttributeError(f"{type(target).__name__!r} object has no attribute {name!r}")
    setattr(target, name, value)


def plain(target: Any) -> Any:
    """The list, dictionary or set that an object is by inheritance. Raises TypeError for any other object."""
    for kind, held in HELD.items():
        if isinstance(target, kind):
            return held(target)
    raise TypeError(f"{type(target).__name__!r} object is no plain value")


HELD: dict[type, Callable[[Any], Any]] = {
    list: lambda value: list.__getitem__(value, slice(None)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set().union(value),
}


def items(target: Any) -> list[Any]:
    """The items of an iterable; only so many, as it may have no end."""
    return list(itertools.islice(target, MAX_ITEMS))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": apply,
    "get": attribute,
    "set": set_attribute,
    "plain": plain,
    "items": items,
    "length": len,
    "at": operator.getitem,
}


def failure(raised: Raised) -> dict[str, Any]:
    """What the tester needs to raise it again on its side."""
    return {"error": raised.builtin, "message": raised.message, "type": type(raised.error).__name__}


def send(peer: socket.socket, message: dict[str, Any]) -> None:
    """As `wire.send`, by the calls that a confined process has."""
    peer.sendall(wire.pack(message))


def receive(peer: socket.socket) -> dict[str, Any] | None:
    try:
        (length,) = wire.HEADER.unpack(wire.read_exactly(peer, wire.HEADER.size))
    except EOFError:
        return None
    return json.loads(wire.read_exactly(peer, length))
