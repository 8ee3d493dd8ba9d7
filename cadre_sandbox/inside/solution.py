"""A job of kind `solution`: load a program, then answer the calls that the tester makes over a socket.

The solution may do anything to this process: it holds no expected value, no test and no verdict.
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
# Of these objects tests may read only the attributes that the program itself has set: not its code, closures or frames.
MADE_OF = (
    types.FunctionType, types.MethodType, types.CodeType, types.FrameType, types.TracebackType, types.GeneratorType,
    types.CoroutineType, types.AsyncGeneratorType, types.ModuleType, types.CellType,
)  # fmt: skip


class ObjectRegistry:
    """The objects that stay in this process, each under one number for the life of the process."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}

    def keep(self, value: Any) -> int:
        """Return the number of an object, a new one if it has none."""
        # Holding every object keeps its id from being used again by another.
        number = self.numbers.setdefault(id(value), len(self.objects))
        if number == len(self.objects):
            self.objects.append(value)
        return number


def serve(job: dict[str, Any], peer: socket.socket | None) -> None:
    """Run `job["program"]` as a module, send the names that it defines, and answer calls until the tester is done."""
    assert peer is not None
    names = sys.modules.setdefault("solution", types.ModuleType("solution")).__dict__
    names["__file__"] = PATH
    loaded = attempt(lambda: execute(job["program"], FILE_NAME, names))
    public = [name for name in names if not name.startswith("__")]
    send(peer, {"names": public} if isinstance(loaded, Returned) else describe_failure(loaded))
    registry = ObjectRegistry()
    while (call := receive(peer)) is not None:
        send(peer, {"id": call["id"], **answer(call, names, registry)})


def answer(call: dict[str, Any], names: dict[str, Any], registry: ObjectRegistry) -> dict[str, Any]:
    """Do one call and return its value or its exception, and the arguments if the call has changed them."""
    passed: list[Any] = []

    def work() -> Any:
        target = names[call["name"]] if "name" in call else registry.objects[call["object"]]
        passed.extend(codec.decode(call["passed"], registry.objects.__getitem__))
        arguments, keywords = passed
        return codec.encode(OPERATIONS[call["operation"]](target, *arguments, **keywords), registry.keep)

    outcome = attempt(work)
    reply = {"value": outcome.value} if isinstance(outcome, Returned) else describe_failure(outcome)
    changed = attempt(lambda: codec.encode(passed, registry.keep)) if can_change_arguments(call, passed) else None
    if isinstance(changed, Returned) and changed.value != call["passed"]:
        reply["passed"] = changed.value
    return reply


def can_change_arguments(call: dict[str, Any], passed: list[Any]) -> bool:
    """Return True if a call can have changed its arguments."""
    values = [*passed[0], *passed[1].values()] if passed and call["operation"] == "call" else []
    return any(type(value) not in codec.UNCHANGING for value in values)


def call_target(target: Any, /, *arguments: Any, **keywords: Any) -> Any:
    return target(*arguments, **keywords)


def get_attribute(target: Any, name: str) -> Any:
    """Return an attribute that the program has set; raise AttributeError for one that reveals the program's code."""
    own_attributes = vars(target) if isinstance(target, types.FunctionType) else {}
    if name.startswith("__") or (isinstance(target, MADE_OF) and name not in own_attributes):
        raise AttributeError(f"{type(target).__name__!r} object has no attribute {name!r}")
    return getattr(target, name)


def set_attribute(target: Any, name: str, value: Any) -> None:
    if name.startswith("__"):
        raise AttributeError(f"{type(target).__name__!r} object has no attribute {name!r}")
    setattr(target, name, value)


def read_plain(target: Any) -> Any:
    """Return the content of an object whose class inherits from list, dict or set. Raises TypeError for any other."""
    for kind, read_content in CONTENT_READERS.items():
        if isinstance(target, kind):
            return read_content(target)
    raise TypeError(f"{type(target).__name__!r} object is no plain value")


CONTENT_READERS: dict[type, Callable[[Any], Any]] = {
    list: lambda value: list.__getitem__(value, slice(None)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set().union(value),
}


def list_items(target: Any) -> list[Any]:
    """Return the items of an iterable, at most MAX_ITEMS, as it may be infinite."""
    return list(itertools.islice(target, MAX_ITEMS))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": call_target,
    "get": get_attribute,
    "set": set_attribute,
    "plain": read_plain,
    "items": list_items,
    "length": len,
    "text": str,
    "at": operator.getitem,
}


def describe_failure(raised: Raised) -> dict[str, Any]:
    """Return the exception as a message, from which the tester raises it again."""
    return {"error": raised.builtin, "message": raised.message, "type": type(raised.error).__name__}


def send(peer: socket.socket, message: dict[str, Any]) -> None:
    """Send a frame like `wire.send`, without descriptors: the filter denies sendmsg."""
    peer.sendall(wire.pack(message))


def receive(peer: socket.socket) -> dict[str, Any] | None:
    try:
        (length,) = wire.HEADER.unpack(wire.read_exactly(peer, wire.HEADER.size))
    except EOFError:
        return None
    return json.loads(wire.read_exactly(peer, length))
