"""The tester's view of the solution: calls go over a socket, plain values come back, other objects stay there.

Everything that arrives here was written by a hostile process.
"""

import builtins
import json
import socket
from collections.abc import Iterator
from os import urandom  # the kernel's own, whatever stands in for it later
from typing import Any

from . import codec, wire

MAX_REPLY = 8 << 20
EXCEPTIONS = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
}
# On this side they would mean that something has come to its end: `all(map(f, items))` would be true.
for ended in ("StopIteration", "StopAsyncIteration"):
    del EXCEPTIONS[ended]


class SolutionGone(Exception):
    """The solution's process ended, or sent what means nothing; no further call can be answered."""


class SolutionError(Exception):
    """The solution raised an exception of its own making."""


class Peer:
    """The line to the solution. Lives as long as the tester."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel

    def call(self, target: dict[str, Any], operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Have the solution do something; its plain value. Raises what it raised, or SolutionGone."""
        number = urandom(8).hex()  # so that an answer cannot be sent before it is asked for
        request = {"id": number, "operation": operation, **target}
        passed = [list(arguments), keywords]
        request["passed"] = codec.encode(passed, own_reference)
        reply = self.exchange(request)
        if reply.get("id") != number:
            raise SolutionGone("the solution answered what it was not asked")
        if "passed" in reply:
            for mine, theirs in zip(held(passed), held(self.decoded(reply["passed"])), strict=False):
                codec.refresh(mine, theirs)
        if "error" in reply:
            raise raised(reply)
        return self.decoded(reply.get("value"))

    def decoded(self, data: Any) -> Any:
        """What the solution sent, as plain values and objects that stay there."""
        return codec.decode(data, lambda place: Remote(self, place), shadow=shadow_of)

    def exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self.channel.sendall(wire.pack(request))
        except OSError as error:
            raise SolutionGone("the solution's process has ended") from error
        return self.read()

    def read(self) -> dict[str, Any]:
        """One reply of the solution. Raises SolutionGone for anything but an object of reasonable size."""
        try:
            (length,) = wire.HEADER.unpack(wire.read_exactly(self.channel, wire.HEADER.size))
            if length > MAX_REPLY:
                raise SolutionGone(f"the solution answered {length} bytes; {MAX_REPLY} are allowed")
            reply = json.loads(wire.read_exactly(self.channel, length))
        except (OSError, EOFError) as error:
            raise SolutionGone("the solution's process has ended") from error
        except (ValueError, RecursionError) as error:
            raise SolutionGone("the solution sent no message") from error
        if type(reply) is not dict:
            raise SolutionGone("the solution sent no message")
        return reply


def raised(reply: dict[str, Any]) -> Exception:
    """The built-in exception that the solution told of, or a SolutionError."""
    name, message = str(reply["error"]), str(reply.get("message", ""))
    kind = EXCEPTIONS.get(name, SolutionError)
    try:
        return kind(message)
    except TypeError:  # UnicodeDecodeError and its like take other arguments
        return SolutionError(f"{name}: {message}")


def held(passed: Any) -> list[Any]:
    """The arguments of a call, by position and then by name. Raises CodecError where they are none."""
    if type(passed) is not list or len(passed) != 2 or type(passed[0]) is not list or type(passed[1]) is not dict:
        raise codec.CodecError("no arguments")
    return [*passed[0], *(passed[1][name] for name in sorted(passed[1]))]


class Remote:
    """An object that stayed with the solution: to be passed back, called, or looked into.

    It equals what it holds where its class is derived from a list, a dictionary or a set, and nothing otherwise.
    """

    def __init__(self, peer: Peer, place: Any = None, name: str | None = None) -> None:
        target = {"object": place} if name is None else {"name": name}
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_target", target)

    def _do(self, operation: str, /, *arguments: Any, **keywords: Any) -> Any:
        peer: Peer = object.__getattribute__(self, "_peer")
        return peer.call(object.__getattribute__(self, "_target"), operation, arguments, keywords)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        return self._do("call", *arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._do("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._do("set", name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._do("items"))

    def __len__(self) -> int:
        return int(self._do("length"))

    def __getitem__(self, key: Any) -> Any:
        return self._do("at", key)

    def __eq__(self, other: object) -> bool:
        try:
            held = self._do("plain")
        except TypeError:
            raise TypeError("an object of the solution's own class cannot be compared: only plain values can") from None
        return bool(held == (other._do("plain") if type(other) is Remote else other))

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("an object of the solution's own class is neither true nor false here")

    def __repr__(self) -> str:
        return "<an object of the solution>"


def shadow_of(remote: Remote, plain: Any) -> Any:
    """A plain value that stands for an object of the solution: what the value has not is asked of the object."""
    kind = SHADOWS.get(type(plain))
    if kind is None:
        raise codec.CodecError(f"nothing can be like a value of type {type(plain).__name__}")
    value = kind(plain)
    value._remote = remote
    return value


def shadow_class(base: type) -> type:
    """A type of values that are of a built-in one, and know the solution's object that they are of."""

    def get(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_remote"], name)

    return type(base.__name__, (base,), {"__getattr__": get})


SHADOWS = {base: shadow_class(base) for base in codec.INHERITED}


def own_reference(value: Any) -> int:
    """Send an object of the solution back to it. Raises CodecError for an object of anybody else."""
    value = vars(value)["_remote"] if type(value) in SHADOWS.values() else value
    if type(value) is not Remote:
        return int(codec.no_reference(value))
    target: dict[str, Any] = object.__getattribute__(value, "_target")
    if "object" not in target:
        raise codec.CodecError("a function of the solution cannot be passed to it")
    return int(target["object"])
