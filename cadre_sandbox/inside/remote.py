"""The tester's proxy of the solution: calls go over a socket, plain values come back, other objects stay there.

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
# Raised here they would end an iteration of the test: `all(map(f, items))` would be true.
for ended in ("StopIteration", "StopAsyncIteration"):
    del EXCEPTIONS[ended]


class SolutionGone(Exception):
    """The solution's process ended or sent an invalid message; no further call can be answered."""


class SolutionError(Exception):
    """The solution raised an exception that is not built in."""


class Peer:
    """The connection to the solution. Lives as long as the tester."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel

    def call(self, target: dict[str, Any], operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Do an operation in the solution's process and return its value. Raises what it raised, or SolutionGone."""
        # An unpredictable id, so that the solution cannot send the reply to a call before the call arrives.
        number = urandom(8).hex()
        request = {"id": number, "operation": operation, **target}
        passed = [list(arguments), keywords]
        request["passed"] = codec.encode(passed, encode_remote)
        reply = self.exchange(request)
        if reply.get("id") != number:
            raise SolutionGone("the solution answered what it was not asked")
        # The call may have changed its arguments; the tests must see that in their own objects.
        if "passed" in reply:
            for old_value, new_value in zip(
                arguments_of(passed), arguments_of(self.decode(reply["passed"])), strict=False
            ):
                codec.refresh(old_value, new_value)
        if "error" in reply:
            raise exception_of(reply)
        return self.decode(reply.get("value"))

    def decode(self, data: Any) -> Any:
        """Decode a value that the solution sent; objects that stay there become `Remote`."""
        return codec.decode(data, lambda number: Remote(self, number), shadow=make_shadow)

    def exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self.channel.sendall(wire.pack(request))
        except OSError as error:
            raise SolutionGone("the solution's process has ended") from error
        return self.read()

    def read(self) -> dict[str, Any]:
        """Return one reply of the solution. Raises SolutionGone for anything but a JSON object of limited size."""
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


def exception_of(reply: dict[str, Any]) -> Exception:
    """Return the built-in exception that the solution reported, or a SolutionError."""
    name, message = str(reply["error"]), str(reply.get("message", ""))
    kind = EXCEPTIONS.get(name, SolutionError)
    try:
        return kind(message)
    except TypeError:  # UnicodeDecodeError and its like take other arguments
        return SolutionError(f"{name}: {message}")


def arguments_of(passed: Any) -> list[Any]:
    """Return the arguments of a call, by position and then by name. Raises CodecError for anything else."""
    if type(passed) is not list or len(passed) != 2 or type(passed[0]) is not list or type(passed[1]) is not dict:
        raise codec.CodecError("no arguments")
    return [*passed[0], *(passed[1][name] for name in sorted(passed[1]))]


class Remote:
    """A proxy of an object that stays in the solution's process; it can be called, read, and passed back.

    If its class is derived from list, dict or set, it compares by its content; any other comparison raises TypeError.
    """

    def __init__(self, peer: Peer, number: Any = None, name: str | None = None) -> None:
        target = {"object": number} if name is None else {"name": name}
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
            value = self._do("plain")
        except TypeError:
            raise TypeError("an object of the solution's own class cannot be compared: only plain values can") from None
        return bool(value == (other._do("plain") if type(other) is Remote else other))

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("an object of the solution's own class is neither true nor false here")

    def __str__(self) -> str:
        return str(self._do("text"))

    def __repr__(self) -> str:
        return "<an object of the solution>"


def make_shadow(remote: Remote, plain: Any) -> Any:
    """Return a plain value with the attributes of an object of the solution, which are fetched from it when read."""
    kind = SHADOWS.get(type(plain))
    if kind is None:
        raise codec.CodecError(f"nothing can be like a value of type {type(plain).__name__}")
    value = kind(plain)
    value._remote = remote
    return value


def shadow_class(base: type) -> type:
    """Return a subclass of a built-in type whose values have the attributes of an object of the solution."""

    def get(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_remote"], name)

    return type(base.__name__, (base,), {"__getattr__": get})


SHADOWS = {base: shadow_class(base) for base in codec.INHERITED}


def encode_remote(value: Any) -> int:
    """Return the number of an object of the solution. Raises CodecError for any other object."""
    value = vars(value)["_remote"] if type(value) in SHADOWS.values() else value
    if type(value) is not Remote:
        return int(codec.no_reference(value))
    target: dict[str, Any] = object.__getattribute__(value, "_target")
    if "object" not in target:
        raise codec.CodecError("a function of the solution cannot be passed to it")
    return int(target["object"])
