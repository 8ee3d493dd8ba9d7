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
from .program import FILE_NAME, execute

MAX_ITEMS = 100_000


def serve(job: dict[str, Any], peer: socket.socket | None) -> None:
    """Run `job["program"]` as a module, say which names it has, and answer until the tester hangs up."""
    assert peer is not None
    names = sys.modules.setdefault("solution", types.ModuleType("solution")).__dict__
    loaded = attempt(lambda: execute(job["program"], FILE_NAME, names))
    public = [name for name in names if not name.startswith("__")]
    send(peer, {"names": public} if isinstance(loaded, Returned) else failure(loaded))
    objects: list[Any] = []
    while (call := receive(peer)) is not None:
        send(peer, {"id": call["id"], **answer(call, names, objects)})


def answer(call: dict[str, Any], names: dict[str, Any], objects: list[Any]) -> dict[str, Any]:
    """Do what one call asks: its value, or what it raised."""

    def keep(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    def work() -> Any:
        target = names[call["name"]] if "name" in call else objects[call["object"]]
        arguments = codec.decode(call["arguments"], objects.__getitem__)
        keywords = codec.decode(call["keywords"], objects.__getitem__)
        return codec.encode(OPERATIONS[call["operation"]](target, *arguments, **keywords), keep)

    outcome = attempt(work)
    return {"value": outcome.value} if isinstance(outcome, Returned) else failure(outcome)


def apply(target: Any, *arguments: Any, **keywords: Any) -> Any:
    return target(*arguments, **keywords)


def items(target: Any) -> list[Any]:
    """The items of an iterable; only so many, as it may have no end."""
    return list(itertools.islice(target, MAX_ITEMS))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": apply,
    "get": getattr,
    "set": setattr,
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
