"""Encode values between a solution and its tester as JSON that can only represent plain values of built-in types.

An object of the solution's own class never crosses, whatever it claims to equal: it stays in its process and is
represented by a number. If it inherits from a plain type, as a named tuple or an IntEnum does, the plain value is sent
with the number: the value that the built-in type holds, read past the class's own methods. Both ends need this module,
but only the decoder has to withstand a hostile other end.
"""

import collections
import datetime
import decimal
import fractions
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 100
MAX_PLAIN_BITS = 2000  # larger integers cross in hexadecimal, past the limit on decimal digits

# Encoding: from an object to the number that represents it. Decoding: from the number to a proxy or the object.
Reference = Callable[[Any], Any]
# Decoding of an object that inherits from a plain type: (proxy, plain value) to the value that the tests see.
Shadow = Callable[[Any, Any], Any]


class CodecError(Exception):
    """A value that cannot be encoded, or data that encodes no value."""


def no_reference(value: Any) -> Any:
    raise CodecError(f"a value of type {type(value).__name__} cannot cross; plain values can")


def encode(value: Any, reference: Reference = no_reference, depth: int = 0) -> Any:
    """Return the value as JSON-ready data. A value of no known exact type is encoded by `reference`.

    Raises CodecError for values that nest too deeply, cycles included.
    """
    if depth > MAX_DEPTH:
        raise CodecError(f"nested more than {MAX_DEPTH} deep")
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if value.bit_length() <= MAX_PLAIN_BITS else {"t": "int", "v": hex(value)}
    if kind is list:
        return [encode(item, reference, depth + 1) for item in value]
    if kind is type and value in TYPES.values():
        return {"t": "type", "v": value.__name__}
    if kind not in ENCODERS:
        return encode_object(value, reference, depth)
    name, split = ENCODERS[kind]
    return {"t": name, "v": encode(split(value), reference, depth + 1)}


def encode_object(value: Any, reference: Reference, depth: int) -> dict[str, Any]:
    """Encode an object of a class that is not built in: its number, and its immutable plain value, if any."""
    number = reference(value)
    for kind, plain in INHERITED.items():
        if isinstance(value, kind):
            return {"t": "like", "v": [number, encode(plain(value), reference, depth + 1)]}
    return {"t": "ref", "v": number}


def decode(data: Any, reference: Reference = no_reference, depth: int = 0, shadow: Shadow | None = None) -> Any:
    """Return the value that parsed JSON encodes. Raises CodecError if it encodes none."""
    if depth > 3 * MAX_DEPTH:
        raise CodecError("nested too deep")
    if data is None or type(data) in (bool, int, float, str):
        return data
    if type(data) is list:
        return [decode(item, reference, depth + 1, shadow) for item in data]
    if type(data) is not dict or set(data) != {"t", "v"}:
        raise CodecError("not a tagged value")
    if data["t"] == "ref":
        return reference(data["v"])
    if type(data["t"]) is not str or data["t"] not in TAGS:
        raise CodecError(f"no type is called {data['t']!r}")
    part = decode(data["v"], reference, depth + 1, shadow)
    if data["t"] == "like":
        if type(part) is not list or len(part) != 2:
            raise CodecError("not an object with its value")
        return reference(part[0]) if shadow is None else shadow(reference(part[0]), part[1])
    try:
        return DECODERS[data["t"]](part)
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:  # decimal's errors are arithmetic ones
        raise CodecError(f"not a {data['t']}: {error}") from error


def refresh(old: Any, new: Any) -> None:
    """Update a container in place with its content in another process, so that all references to it see the change."""
    kind = type(old)
    if kind is not type(new):
        return
    if kind in (list, collections.deque):
        for index, item in enumerate(new):
            if index < len(old):
                old[index] = updated_item(old[index], item)
            else:
                old.append(item)
        while len(old) > len(new):
            old.pop()
    elif kind in MAPPINGS:
        items = [(key, updated_item(old[key], item) if key in old else item) for key, item in new.items()]
        old.clear()
        old.update(items)
    elif kind in (set, bytearray):
        old.clear()
        old.update(new) if kind is set else old.extend(new)


def updated_item(old: Any, new: Any) -> Any:
    """Return the old container, updated from the new one, or the new value if their types differ."""
    if type(old) is not type(new) or type(old) not in CHANGING:
        return new
    refresh(old, new)
    return old


def pairs(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(value.items())


def parse_hex(text: str) -> int:
    return int(text, 16)


def default_dict(items: list[tuple[Any, Any]]) -> collections.defaultdict[Any, Any]:
    return collections.defaultdict(None, items)


TYPES = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, set, dict)}

ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    tuple: ("tuple", list),
    set: ("set", list),
    frozenset: ("frozenset", list),
    dict: ("dict", pairs),
    bytes: ("bytes", bytes.hex),
    bytearray: ("bytearray", bytearray.hex),
    complex: ("complex", lambda value: [value.real, value.imag]),
    range: ("range", lambda value: [value.start, value.stop, value.step]),
    collections.Counter: ("Counter", pairs),
    collections.OrderedDict: ("OrderedDict", pairs),
    collections.defaultdict: ("defaultdict", pairs),
    collections.deque: ("deque", lambda value: [list(value), value.maxlen]),
    decimal.Decimal: ("Decimal", str),
    fractions.Fraction: ("Fraction", lambda value: [value.numerator, value.denominator]),
    datetime.date: ("date", datetime.date.isoformat),
    datetime.datetime: ("datetime", datetime.datetime.isoformat),
    datetime.time: ("time", datetime.time.isoformat),
    datetime.timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
}

MAPPINGS = (dict, collections.Counter, collections.OrderedDict, collections.defaultdict)
UNCHANGING = frozenset((type(None), bool, int, float, complex, str, bytes, range, decimal.Decimal, fractions.Fraction))
CHANGING = frozenset((list, set, bytearray, collections.deque, *MAPPINGS))
# Read the plain value of an object of a derived class by methods of the built-in type, which the class cannot override.
INHERITED: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    frozenset: lambda value: frozenset().union(value),
}

DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": parse_hex,
    "type": lambda part: TYPES[str(part)],
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda part: complex(*part),
    "range": lambda part: range(*part),
    "Counter": lambda part: collections.Counter(dict(part)),
    "OrderedDict": collections.OrderedDict,
    "defaultdict": default_dict,
    "deque": lambda part: collections.deque(part[0], part[1]),
    "Decimal": decimal.Decimal,
    "Fraction": lambda part: fractions.Fraction(*part),
    "date": datetime.date.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda part: datetime.timedelta(*part),
}
TAGS = DECODERS.keys() | {"like"}
