"""Values that a JSON schema accepts, for the answers and tool calls that `cadre check` makes up."""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Iterable, Mapping
from re import _parser  # type: ignore[attr-defined] # the tree of a pattern has no public interface
from typing import Any

MAX_DEPTH = 8
FORMATS = {
    "date-time": "2026-01-01T12:00:00Z",
    "date": "2026-01-01",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "a@example.org",
    "hostname": "example.org",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "https://example.org/",
    "url": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
# No word is a command: an agent may run its argument in a shell.
WORDS = ("apple", "blue", "seven", "a plan", "RRD")
# Letters of texts that match a pattern, and the classes of letters that a set in one may name.
LETTERS = "xabc0123456789defghijklmnopqrstuvwyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_. /:@,#+*()"
CATEGORIES = {"DIGIT": r"\d", "NOT_DIGIT": r"\D", "SPACE": r"\s", "NOT_SPACE": r"\S", "WORD": r"\w", "NOT_WORD": r"\W"}


def make_example(schema: Any, generator: random.Random, root: Any = None, depth: int = 0) -> Any:
    """Return a value that the schema accepts, drawn where it leaves a choice. Optional properties are left out half of
    the time. What few schemas have (`not`, `if`, `contains`) is not followed."""
    root = schema if root is None else root
    if not isinstance(schema, Mapping):
        return generator.choice(WORDS)
    if isinstance(reference := schema.get("$ref"), str):
        return make_example(_resolve(root, reference), generator, root, depth + 1) if depth < 4 * MAX_DEPTH else None
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return generator.choice(schema["enum"])
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list) and schema[name]:
            choices = schema[name]
            if depth >= MAX_DEPTH:  # what ends a schema that contains itself
                plain = ("string", "integer", "number", "boolean", "null")
                simple = (choice for choice in choices if isinstance(choice, Mapping) and choice.get("type") in plain)
                choices = list(simple) or choices
            rest = {key: value for key, value in schema.items() if key != name}
            return make_example(_merge(rest, generator.choice(choices)), generator, root, depth + 1)
    if isinstance(schema.get("allOf"), list):
        merged: Any = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            target = _resolve(root, part["$ref"]) if isinstance(part, Mapping) and "$ref" in part else part
            merged = _merge(merged, target)
        return make_example(merged, generator, root, depth + 1)

    kind = schema.get("type")
    if isinstance(kind, list):
        kind = generator.choice(kind) if kind else None
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    if kind == "object":
        return _make_object(schema, generator, root, depth)
    if kind == "array":
        minimum = int(schema.get("minItems", 0))
        count = (
            minimum
            if depth >= MAX_DEPTH
            else max(minimum, min(int(schema.get("maxItems", 2)), generator.randint(0, 2)))
        )
        fixed = schema.get("prefixItems", [])
        items = [fixed[index] if index < len(fixed) else schema.get("items") for index in range(max(count, len(fixed)))]
        return [make_example(item, generator, root, depth + 1) for item in items]
    if kind in ("integer", "number"):
        return _make_number(schema, generator, kind == "integer")
    if kind == "boolean":
        return generator.random() < 0.5
    if kind == "null":
        return None
    if isinstance(pattern := schema.get("pattern"), str):
        with contextlib.suppress(re.error):  # a pattern of another language demands nothing
            return _make_matching(_parser.parse(pattern), generator)
    text = FORMATS.get(str(schema.get("format"))) or generator.choice(WORDS)
    text = text.ljust(int(schema.get("minLength", 0)), "x")
    return text[: int(schema["maxLength"])] if "maxLength" in schema else text


def _make_object(schema: Mapping[str, Any], generator: random.Random, root: Any, depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required", [])
    names = [name for name in properties if name in required or (depth < MAX_DEPTH and generator.random() < 0.5)]
    names += [name for name in required if name not in properties]
    additional = schema.get("additionalProperties")
    additional = additional if isinstance(additional, Mapping) else {}
    minimum = max(int(schema.get("minProperties", 0)), bool(additional) and depth < MAX_DEPTH)
    names += [f"key_{number}" for number in range(minimum - len(names))]
    return {name: make_example(properties.get(name, additional), generator, root, depth + 1) for name in names}


def _make_number(schema: Mapping[str, Any], generator: random.Random, is_integer: bool) -> int | float:
    low = max((schema[name] for name in ("minimum", "exclusiveMinimum") if name in schema), default=None)
    high = min((schema[name] for name in ("maximum", "exclusiveMaximum") if name in schema), default=None)
    if low is None:
        low = 0 if high is None else high - 3
    high = low + 3 if high is None else high
    multiple = schema.get("multipleOf", 1 if is_integer else None)
    if multiple is None:  # away from both ends, which may be excluded
        part = generator.choice((0.25, 0.5, 0.75))
        return float((1 - part) * low + part * high)
    first, last = math.ceil(low / multiple), math.floor(high / multiple)
    first += first * multiple == schema.get("exclusiveMinimum")
    last -= last * multiple == schema.get("exclusiveMaximum")
    number = generator.randint(first, max(first, last)) * multiple
    return int(number) if is_integer else float(number)


def _make_matching(parsed: Iterable[tuple[Any, Any]], generator: random.Random) -> str:
    """Return a text that matches a parsed regular expression; what looks around a place is not followed."""
    text = ""
    for kind, value in parsed:
        match str(kind):
            case "LITERAL":
                text += chr(value)
            case "ANY":
                text += "x"
            case "NOT_LITERAL":
                text += "x" if value != ord("x") else "y"
            case "IN":
                is_excluded = str(value[0][0]) == "NEGATE"
                named = "".join(chr(code) for name, code in value if str(name) == "LITERAL")
                letters = [letter for letter in LETTERS + named if _is_member(letter, value) != is_excluded]
                text += generator.choice(letters or ["x"])
            case "BRANCH":
                text += _make_matching(generator.choice(value[1]), generator)
            case "SUBPATTERN":
                text += _make_matching(value[3], generator)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                minimum, maximum, part = value
                count = generator.randint(minimum, min(maximum, minimum + 8))
                text += "".join(_make_matching(part, generator) for _ in range(count))
    return text


def _is_member(letter: str, members: Iterable[tuple[Any, Any]]) -> bool:
    """Return True if a set of a regular expression names the letter."""
    for kind, value in members:
        if str(kind) == "LITERAL" and value == ord(letter):
            return True
        if str(kind) == "RANGE" and value[0] <= ord(letter) <= value[1]:
            return True
        if str(kind) == "CATEGORY" and re.match(CATEGORIES[str(value).removeprefix("CATEGORY_")], letter):
            return True
    return False


def _resolve(root: Any, reference: str) -> Any:
    """Return the part of the schema that a reference such as `#/$defs/Step` names."""
    value = root
    for name in filter(None, reference.removeprefix("#").split("/")):
        name = name.replace("~1", "/").replace("~0", "~")
        value = value.get(name, {}) if isinstance(value, Mapping) else {}
    return value


def _merge(first: Any, second: Any) -> Any:
    """Return one schema with the demands of both."""
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return second
    merged = {**first, **second}
    if "properties" in first and "properties" in second:
        merged["properties"] = {**first["properties"], **second["properties"]}
    if "required" in first and "required" in second:
        merged["required"] = [*first["required"], *second["required"]]
    return merged
