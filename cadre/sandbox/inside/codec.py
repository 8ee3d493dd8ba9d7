"""How values cross between a solution and its tester: as JSON that can only mean plain values of exact built-in types.

An object of the solution's own class never crosses, whatever it claims to equal: it stays where it is, and a number
stands for it. Both ends need this module, but only the decoder has to stand up to a hostile other end.
"""

import collections
import datetime
import decimal
import fractions
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 100
MAX_PLAIN_BITS = 2000  # larger integers cross in hexadecimal, past the limit on decimal digits

Reference = Callable[[Any], Any]  # what stands for an object that cannot cross, and the way back


class CodecError(Exception):
    """A value that cannot cross, or a text that means none."""


def no_reference(value: Any) -> Any:
    raise CodecError(f"a value of type {type(value).__name__} cannot cross; plain values can")


def encode(value: Any, reference: Reference = no_reference, depth: int = 0) -> Any:
    """The value as JSON-ready data. What is not of an exact known type becomes what `reference` makes of it.

    Raises CodecError for what nests too deeply, cycles included.
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
        return {"t": "ref", "v": reference(value)}
    name, split = ENCODERS[kind]
    return {"t": name, "v": encode(split(value), reference, depth + 1)}


def decode(data: Any, reference: Reference = no_reference, depth: int = 0) -> Any:
    """The value that `data`, as parsed from JSON, means. Raises CodecError when it means none."""
    if depth > 3 * MAX_DEPTH:
        raise CodecError("nested too deep")
    if data is None or type(data) in (bool, int, float, str):
        return data
    if type(data) is list:
        return [decode(item, reference, depth + 1) for item in data]
    if type(data) is not dict or set(data) != {"t", "v"}:
        raise CodecError("not a tagged value")
    if data["t"] == "ref":
        return reference(data["v"])
    if type(data["t"]) is not str or data["t"] not in DECODERS:
        raise CodecError(f"no type is called {data['t']!r}")
    part = decode(data["v"], reference, depth + 1)
    try:
        return DECODERS[data["t"]](part)
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:  # decimal's errors are arithmetic ones
        raise CodecError(f"not a {data['t']}: {error}") from error


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
